"""Surveys for a command to read: from the paths it was given, else from the store."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from amp_matrix.codec import DocumentError
from amp_matrix.matrix import merge
from amp_matrix.store import Loaded, PathError, Store, StoreError, is_url, read_path
from amp_matrix.survey import Survey
from amp_probe.cli import output
from amp_probe.cli.refused import Refused


def read(paths: Sequence[str], store: Store, *, strict: bool = False) -> tuple[Survey, ...]:
    """Every survey, each once. Raises Refused for a missing path and a damaged file.

    A damaged file among others in a folder or the store is told and skipped, unless `strict`.
    """
    return read_paths(paths, strict=strict) if paths else merge(_kept(_load(store), strict))


def read_paths(paths: Sequence[str], *, strict: bool = False) -> tuple[Survey, ...]:
    """The same from these paths alone, every fault of all of them in one Refused."""
    faults: list[str] = []
    found: list[tuple[Survey, ...]] = []
    for path in paths:
        try:
            found.append(_kept(read_path(path), strict or _is_one_file(path)))
        except PathError as error:
            faults.append(str(error))
        except Refused as refused:
            faults += refused.faults
    if faults:
        raise Refused(faults)
    return merge(*found)


def to_show(
    paths: Sequence[str], store: Store, devices: Sequence[str]
) -> tuple[tuple[Survey, ...], tuple[Survey, ...]]:
    """Every survey there is to read, and of them those of these devices; a hint is given where either is none."""
    every = read(paths, store)
    surveys = on_devices(every, devices)
    hint_where_empty(every, paths)
    if every and not surveys:
        hint_where_absent(devices, paths)
    return every, surveys


def on_devices(surveys: Sequence[Survey], devices: Sequence[str]) -> tuple[Survey, ...]:
    """The surveys of these devices; `cuda` means every `cuda:N`, none means all."""
    return tuple(s for s in surveys if means(devices, s.device))


def with_status(surveys: Sequence[Survey], statuses: Sequence[str]) -> tuple[Survey, ...]:
    """The surveys with only the cells of these statuses; none means all."""
    if not statuses:
        return tuple(surveys)
    return tuple(
        msgspec.structs.replace(s, cells=tuple(c for c in s.cells if str(c.outcome.status) in statuses))
        for s in surveys
    )


def hint_where_empty(surveys: Sequence[Survey], paths: Sequence[str]) -> None:
    """Say what to do where there is nothing to read."""
    if surveys:
        return
    if paths:
        output.note(f"no survey in {', '.join(paths)}")
    else:
        output.note("nothing has been measured here yet; start with: amp-probe run")


def hint_where_absent(devices: Sequence[str], paths: Sequence[str]) -> None:
    """Say what to do where there are surveys, but none of these devices."""
    named = " or ".join(devices)
    if paths:
        output.note(f"no survey of {named} in {', '.join(paths)}")
    else:
        asked = " ".join(f"--device {device}" for device in devices)
        output.note(f"nothing measured on {named} here yet; amp-probe run {asked}")


def means(asked: Sequence[str], device: str) -> bool:
    """Whether a device is one of those asked for; `cuda` means every `cuda:N`, none means all."""
    return not asked or any(_means(name, device) for name in asked)


def _load(store: Store) -> Loaded:
    try:
        return store.load()
    except (StoreError, PathError) as error:
        raise Refused(str(error)) from error


def _kept(loaded: Loaded, strict: bool) -> tuple[Survey, ...]:
    if loaded.damaged and strict:
        raise Refused([line for d in loaded.damaged for line in str(d).splitlines()])
    for damaged in loaded.damaged:
        output.warn(f"skipped a damaged survey: {_brief(damaged)}")
    return loaded.surveys


def _is_one_file(path: str) -> bool:
    return path.endswith(".json") if is_url(path) else not os.path.isdir(path)


def _brief(error: DocumentError) -> str:
    lines = str(error).splitlines() or [error.source]
    return lines[0] if len(lines) == 1 else f"{lines[0]} (and {len(lines) - 1} more)"


def _means(asked: str, device: str) -> bool:
    return device == asked or (":" not in asked and device.startswith(f"{asked}:"))

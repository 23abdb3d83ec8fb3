"""Which GPU is torch's `cuda:N` in a process that has not initialised CUDA: the rules of CUDA_VISIBLE_DEVICES.

Where the rules leave a doubt that could name the wrong kind of GPU, the answer is a CaptureError and never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from amp_matrix.environment.errors import CaptureError
from amp_matrix.environment.nvml import Gpu

_START_IT = "call torch.cuda.init() first, and torch will say"


def pick(index: int, gpus: Sequence[Gpu], visible: str | None, order: str = "") -> Gpu:
    """The GPU or MIG slice that `cuda:<index>` will be.

    `gpus` in PCI order as NVML lists them; `visible` is CUDA_VISIBLE_DEVICES (None: unset), `order` CUDA_DEVICE_ORDER.
    """
    shown = _shown(gpus, visible, order)
    if index >= len(shown):
        raise CaptureError(f"this process sees {len(shown)} CUDA {'device' if len(shown) == 1 else 'devices'}")
    return shown[index]


def _shown(gpus: Sequence[Gpu], visible: str | None, order: str) -> tuple[Gpu, ...]:
    words = [w.strip() for w in visible.split(",")] if visible is not None else [str(i) for i in range(len(gpus))]
    by_uuid = words[0].startswith(("GPU-", "MIG-"))
    chosen = _by_uuid(words, gpus) if by_uuid else _by_number(words, gpus)
    if not by_uuid and not _alike(gpus) and order != "PCI_BUS_ID":
        raise CaptureError(
            f"the GPUs differ and CUDA numbers them by speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or {_START_IT}"
        )
    return _whole_or_slice(chosen)


def _by_number(words: Sequence[str], gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """GPUs by their numbers, up to the first word that is no number of a GPU, as CUDA reads the list."""
    numbers: list[int] = []
    for word in words:
        if not word.isdecimal() or int(word) >= len(gpus):
            break
        numbers.append(int(word))
    if len(set(numbers)) < len(numbers):
        return ()
    return tuple(gpus[n] for n in numbers)


def _by_uuid(words: Sequence[str], gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """GPUs and slices by the beginning of their UUID, up to the first that fits none or several."""
    known = [*gpus, *(s for g in gpus for s in g.slices)]
    chosen: list[Gpu] = []
    for word in words:
        fitting = [g for g in known if word and g.uuid.startswith(word)]
        if len(fitting) != 1 or fitting[0] in chosen:
            break
        chosen.append(fitting[0])
    return tuple(chosen)


def _whole_or_slice(chosen: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs as they are, or the one MIG slice that a process may use where a GPU is cut into slices."""
    if not any(g.mig or g.uuid.startswith("MIG-") for g in chosen):
        return chosen
    if len(chosen) > 1:
        raise CaptureError(f"CUDA shows one MIG slice, and it is not certain which; {_START_IT}")
    slices = chosen[0].slices if chosen[0].mig else chosen
    if not _alike(slices):
        raise CaptureError(f"the MIG slices differ; name one in CUDA_VISIBLE_DEVICES, or {_START_IT}")
    return slices[:1]


def _alike(gpus: Sequence[Gpu]) -> bool:
    return len({(g.name, g.capability, g.multiprocessors, g.mig) for g in gpus}) <= 1

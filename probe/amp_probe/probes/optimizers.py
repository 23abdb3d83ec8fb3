"""Optimizers in the forms that torch has them in: a loop over the tensors, `foreach`, and `fused`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from amp_matrix.survey import Status
from amp_probe.harness.recorder import Fault

_FLAGS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


@dataclass(frozen=True)
class Form:
    """An optimizer with its settings, in one form; `plain` is the loop over tensors that it is compared with."""

    kind: type[torch.optim.Optimizer]
    settings: Mapping[str, Any]
    form: str

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer in its form. Fault(unsupported) where torch refuses to fuse it for the parameters' device."""
        try:
            return self._of(parameters, self.form)
        except RuntimeError as error:
            if "fused=True" not in str(error):
                raise
            raise Fault(Status.UNSUPPORTED, f"RuntimeError: {error}", "refused") from error

    def plain(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The same optimizer as a loop: a fault of a fused kernel must not be in what it is compared with."""
        return self._of(parameters, "loop")

    def _of(self, parameters: Iterable[nn.Parameter], form: str) -> torch.optim.Optimizer:
        make: Any = self.kind
        optimizer: torch.optim.Optimizer = make(list(parameters), **self.settings, **_FLAGS[form])
        return optimizer


_KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
}

FORMS: Mapping[str, Form] = {
    f"{name}_{form}": Form(kind, settings, form) for name, (kind, settings) in _KINDS.items() for form in _FLAGS
}
"""`sgd_loop`, `sgd_foreach`, `sgd_fused`, `adam_loop` and so on; SGD with momentum and weight decay."""

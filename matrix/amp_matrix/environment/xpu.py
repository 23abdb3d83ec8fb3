"""What identifies an Intel GPU."""

from __future__ import annotations

from amp_matrix.environment.common import variable
from amp_matrix.environment.errors import CaptureError
from amp_matrix.survey import Environment


def read(index: int, may_initialize: bool = False) -> Environment:
    """The fields of `xpu:<index>`. torch reads them by opening the device; nothing else tells them."""
    import torch

    if not torch.xpu._is_compiled():
        raise CaptureError("torch built without XPU")
    try:
        found = torch.xpu.get_device_properties(index)
    except (RuntimeError, AssertionError) as error:
        raise CaptureError(f"torch cannot open xpu:{index}: {' '.join(str(error).split())}") from None
    return Environment(
        identity={
            "name": found.name,
            "compute_units": str(getattr(found, "max_compute_units", "")),
            "xpu": str(getattr(torch.version, "xpu", None) or ""),
            "driver": str(getattr(found, "driver_version", "")),
        },
        scoped={"ONEDNN_DEFAULT_FPMATH_MODE": variable("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")},
        recorded={"memory": str(getattr(found, "total_memory", ""))},
    )

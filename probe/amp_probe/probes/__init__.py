"""Every probe that ships, one file a family. The order is a run's: cheap questions first, timings last."""

from __future__ import annotations

from amp_probe.probes import (
    activation,
    attention,
    autocast,
    autocast_cache,
    autocast_functions,
    autocast_operands,
    autocast_policy,
    autocast_regions,
    basic,
    clipping,
    conv,
    embedding,
    loss,
    matmul,
    norm,
    optim,
    optim_forms,
    scaler,
    scaler_forms,
    scaler_gradients,
    scaler_range,
    speed,
    train,
    train_networks,
)
from amp_probe.suite import Probe

_FAMILIES = (
    basic,
    autocast,
    autocast_policy,
    autocast_regions,
    autocast_cache,
    autocast_functions,
    autocast_operands,
    matmul,
    conv,
    embedding,
    activation,
    norm,
    attention,
    loss,
    optim,
    optim_forms,
    clipping,
    scaler,
    scaler_forms,
    scaler_gradients,
    scaler_range,
    train,
    train_networks,
    speed,
)

ALL: tuple[Probe, ...] = tuple(probe for family in _FAMILIES for probe in family.PROBES)

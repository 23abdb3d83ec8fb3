"""Convnet, LSTM and float32 islands: sound ones pass, what this torch cannot do is an error, faults on purpose show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_matrix.survey import Outcome, Stage
from amp_probe.case import Training
from amp_probe.draw import Draw
from amp_probe.probes import train_networks
from amp_probe.probes.networks import Convnet, pictures

Kernels = Mapping[str, Callable[..., Any]]
Cell = Callable[..., Outcome]

PROBES = {p.name: p for p in train_networks.PROBES}
SOUND = ("fp32", "bf16-mixed", "fp16-mixed")
_truly = torch.ops.aten


@pytest.fixture
def cell(run_case: Callable[..., Outcome]) -> Cell:
    """cell("train.convnet", "bf16-mixed", kernels={}): the outcome of a cell of a probe that ships."""

    def run(name: str, precision: str, kernels: Kernels | None = None) -> Outcome:
        draw = Draw(name)
        return run_case(PROBES[name].make(draw), draw, precision, kernels)

    return run


def stage(outcome: Outcome, name: str) -> Stage:
    return next(s for s in outcome.stages if s.name == name)


def _lstm_trains(dtype: torch.dtype) -> bool:
    with torch.autocast("cpu", dtype):
        try:
            nn.LSTM(32, 32)(torch.ones(4, 2, 32))[0].sum().backward()
        except RuntimeError:
            return False
    return True


@pytest.mark.parametrize("precision", SOUND)
@pytest.mark.parametrize("name", [name for name in PROBES if name != "train.lstm"])
def test_here_fp32_and_mixed_precisions_are_right(cell: Cell, name: str, precision: str) -> None:
    outcome = cell(name, precision)
    assert (outcome.status, outcome.reason) == ("ok", "")


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16-mixed", torch.bfloat16), ("fp16-mixed", torch.float16)],
)
def test_an_lstm_trains_where_it_does_and_is_an_error_elsewhere(cell: Cell, precision: str, dtype: torch.dtype) -> None:
    """torch-xpu-ops#4066; on a CPU in fp16-mixed, and in bf16-mixed without AVX512."""
    outcome = cell("train.lstm", precision)
    sound = precision == "fp32" or _lstm_trains(dtype)
    assert (outcome.status, outcome.stage) == (("ok", "") if sound else ("error", "step0"))


@pytest.mark.parametrize("precision", ["bf16-true", "fp16-true"])
@pytest.mark.parametrize(("name", "where"), [("train.float32_islands", "step0"), ("infer.float32_islands", "infer")])
def test_a_float32_softmax_before_a_low_product_is_refused_without_autocast(
    cell: Cell, name: str, where: str, precision: str
) -> None:
    """accelerate#2033."""
    outcome = cell(name, precision)
    assert (outcome.status, outcome.stage) == ("error", where)
    assert "dtype" in outcome.reason or "scalar type" in outcome.reason


# --- batch norm's statistics


def _statistics(change: Callable[[Tensor, Tensor], Tensor]) -> Kernels:
    """Batch norm that leaves something else in its running statistics: `change` gets them before and after."""

    def kernel(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *args: Any) -> Any:
        before = [t.clone() for t in (mean, var)]
        out = _truly.native_batch_norm(x, weight, bias, mean, var, training, *args)
        if training and x.dtype is not torch.float64:
            for tensor, old in zip((mean, var), before, strict=True):
                tensor.copy_(change(old, tensor))
        return out

    return {"aten::native_batch_norm": kernel}


@pytest.mark.parametrize("precision", SOUND)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda old, new: old, id="never updated"),
        pytest.param(lambda old, new: new + 0.05 * (new - old), id="another momentum"),
    ],
)
def test_running_statistics_that_are_wrong_are_seen(cell: Cell, precision: str, change: Any) -> None:
    outcome = cell("train.convnet", precision, _statistics(change))
    assert (outcome.status, outcome.stage) == ("inaccurate", "step0")
    assert "buffer" in outcome.reason


def test_a_count_that_stands_still_is_seen(run_case: Callable[..., Outcome]) -> None:
    class Uncounted(Convnet):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if x.dtype is not torch.float64:
                self.norm1.num_batches_tracked.sub_(1)
            return out

    draw = Draw("test.networks.uncounted")
    case = Training(Uncounted, pictures(draw), F.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.03), 6)
    outcome = run_case(case, draw, "fp32")
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "step0", "exact")
    assert "num_batches_tracked" in outcome.reason


def test_a_problem_with_buffers_is_left_as_it_was(cell: Cell) -> None:
    first, again = (cell("train.convnet", "bf16-mixed") for _ in range(2))
    assert [s.errors for s in first.stages] == [s.errors for s in again.stages]


def test_an_evaluation_by_the_batchs_statistics_is_seen(cell: Cell) -> None:
    def kernel(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *args: Any) -> Any:
        return _truly.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), True, *args)

    outcome = cell("infer.convnet", "bf16-mixed", {"aten::native_batch_norm": kernel})
    assert (outcome.status, outcome.stage) == ("inaccurate", "infer")


# --- backward


@pytest.mark.parametrize("precision", SOUND)
@pytest.mark.parametrize(
    ("name", "place"), [("aten::native_batch_norm_backward", 1), ("aten::convolution_backward", 1)]
)
def test_a_backward_that_weakens_a_weights_gradient_is_seen(cell: Cell, name: str, place: int, precision: str) -> None:
    plain = getattr(_truly, name.partition("::")[2])

    def kernel(*args: Any, **kwargs: Any) -> Any:
        out = list(plain(*args, **kwargs))
        out[place] = out[place] * 0.9
        return tuple(out)

    outcome = cell("train.convnet", precision, {name: kernel})
    assert (outcome.status, outcome.stage) == ("inaccurate", "step0")


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_grouped_convolution_that_mixes_its_groups_is_seen(cell: Cell, precision: str) -> None:
    def kernel(x: Tensor, weight: Tensor, *args: Any) -> Tensor:
        return _truly.convolution(x.roll(1, 1) if args[-1] == 2 else x, weight, *args)

    kernels = {"aten::convolution": kernel, "aten::mkldnn_convolution": kernel}
    assert cell("infer.convnet", precision, kernels).stage == "infer"
    assert cell("train.convnet", precision, kernels).stage == "step0"


@pytest.mark.parametrize("name", ["train.lstm", "infer.lstm"])
def test_an_lstm_that_is_a_little_wrong_is_seen(cell: Cell, name: str) -> None:
    """Ten percent, in whichever form the device has the layer."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        out = _truly.mkldnn_rnn_layer(*args, **kwargs)
        return (out[0] * 1.1, *out[1:])

    kernels = {"aten::mkldnn_rnn_layer": kernel, "aten::tanh": lambda x: _truly.tanh(x) * 1.1}
    outcome = cell(name, "fp32", kernels)
    assert outcome.status == "inaccurate"


@pytest.mark.parametrize("precision", SOUND)
def test_a_softmax_backward_that_is_wrong_is_seen(cell: Cell, precision: str) -> None:
    kernels = {"aten::_softmax_backward_data": lambda *a: _truly._softmax_backward_data(*a) * 0.5}
    outcome = cell("train.float32_islands", precision, kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "step0")

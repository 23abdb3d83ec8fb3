"""Regions of torch.autocast inside one another, in threads, and what its flags say: `autocast.nested` and others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe import precisions
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft, Fault
from amp_probe.harness.script import Lab
from amp_probe.suite import Probe

MIXED = ("bf16-mixed", "fp16-mixed")
FP32_EPS = 2.0**-23


def nested(draw: Draw) -> Script:
    """Regions in a region: a disabled one gives float32 (and its accuracy), leaving one gives back the outer dtype.

    `raised`: an exception leaves the inner region. `decorated`: the regions are decorators. `other_dtype`: the inner
    region asks for the other low dtype. `backward`: what was computed in a disabled region keeps float32 in backward,
    in a custom function too; `backward_inside`: also when backward is called inside the outer region, which torch
    advises against: gradients of a loss that was put into float32 are then computed low, which is `inert`.
    Would have caught a state that is not restored, a disabled region that rounds its operands, and a backward pass
    that takes the dtype of where it is called (pytorch#87979).
    """
    return Script(functools.partial(_NESTED[draw.variant], _Product(draw)))


def thread(draw: Draw) -> Script:
    """A thread started in a region does not inherit it; a region entered there applies, and ends with it.

    Would have caught data-parallel forward passes that run in float32, and a thread that changes its parent's state.
    """
    return Script(functools.partial(_thread, _Product(draw)))


def flags(draw: Draw) -> Script:
    """What torch.is_autocast_enabled and get_autocast_dtype say, beside the dtype that a product really has.

    Only the answers that name the device must be right. torch.is_autocast_enabled() without one asks about CUDA, and
    is False inside autocast of any other device: it is recorded, with a note.
    """
    return Script(functools.partial(_flags, _Product(draw)))


class _Product:
    """A product of two matrices with all their bits: in float32 it is far more accurate than in a low dtype."""

    def __init__(self, draw: Draw) -> None:
        self.values = draw.full_mantissa(16, 24), draw.full_mantissa(24, 32)
        self.right = self.values[0] @ self.values[1]

    def place(self, lab: Lab) -> Callable[[], Tensor]:
        """The product on the lab's device, not yet done."""
        a, b = (lab.place(v) for v in self.values)
        return lambda: a @ b

    def expect(self, lab: Lab, draft: Draft, name: str, got: Tensor, dtype: torch.dtype) -> None:
        """Fail the stage where the product has another dtype (`inert`), or is not as near as that dtype allows."""
        if expect_dtype(draft, name, got.dtype, dtype):
            eps = FP32_EPS if dtype is torch.float32 else float(torch.finfo(dtype).eps)
            # An operand's rounding and the result's: the ideal run of three casts, without running it.
            best = self._rounded(dtype)
            lab.judge(draft, name, got, self.right, best, eps=eps)

    def _rounded(self, dtype: torch.dtype) -> Tensor:
        a, b = (v.to(dtype).double() for v in self.values)
        return (a @ b).to(dtype).double()


def expect_dtype(draft: Draft, name: str, got: torch.dtype, wanted: torch.dtype) -> bool:
    """Tell the stage what dtype was seen, and fail it as `inert` where it is not the one that was asked for."""
    draft.dtypes[name] = precisions.name(got)
    if got != wanted:
        reason = f"{name} is {precisions.name(got)}, asked for {precisions.name(wanted)}"
        draft.fail(Status.INERT, reason, "dtype")
    return got == wanted


def disabled(lab: Lab) -> AbstractContextManager[Any]:
    """A region in which autocast is off for the lab's device."""
    return torch.autocast(lab.device.type, enabled=False)


def _in_and_out(product: _Product, lab: Lab) -> None:
    with lab.stage("build"):
        work = product.place(lab)
    with lab.stage("regions") as draft:
        with lab.enter():
            before = work()
            with disabled(lab):
                off = work()
                with lab.enter():
                    on_again = work()
                still_off = work()
            after = work()
        outside = work()
        for name, got in {"before": before, "on again": on_again, "after": after}.items():
            product.expect(lab, draft, name, got, lab.low)
        for name, got in {"disabled": off, "still disabled": still_off, "outside": outside}.items():
            product.expect(lab, draft, name, got, torch.float32)


def _raised(product: _Product, lab: Lab) -> None:
    with lab.stage("build"):
        work = product.place(lab)
    with lab.stage("regions") as draft:
        with lab.enter():
            _leave_by_exception(disabled(lab))
            product.expect(lab, draft, "after a disabled region", work(), lab.low)
            with disabled(lab):
                _leave_by_exception(lab.enter())
                product.expect(lab, draft, "after an enabled region", work(), torch.float32)
        _leave_by_exception(lab.enter())
        product.expect(lab, draft, "outside", work(), torch.float32)


def _leave_by_exception(region: AbstractContextManager[Any]) -> None:
    try:
        with region:
            raise LookupError
    except LookupError:
        pass


def _decorated(product: _Product, lab: Lab) -> None:
    with lab.stage("build"):
        work = product.place(lab)
        on = torch.autocast(lab.device.type, dtype=lab.low)(work)
        off = torch.autocast(lab.device.type, enabled=False)(work)
        on_off = torch.autocast(lab.device.type, dtype=lab.low)(lambda: (off(), work()))
    with lab.stage("regions") as draft:
        for _ in range(2):  # a decorator's region is entered again and again
            product.expect(lab, draft, "enabled", on(), lab.low)
            product.expect(lab, draft, "outside", work(), torch.float32)
            inner, outer = on_off()
            product.expect(lab, draft, "disabled in enabled", inner, torch.float32)
            product.expect(lab, draft, "enabled around disabled", outer, lab.low)


def _other_dtype(product: _Product, lab: Lab) -> None:
    other = torch.float16 if lab.low is torch.bfloat16 else torch.bfloat16
    with lab.stage("build"):
        work = product.place(lab)
    with lab.stage("regions") as draft, lab.enter():
        with torch.autocast(lab.device.type, dtype=other):
            inner = work()
        product.expect(lab, draft, "inner", inner, other)
        product.expect(lab, draft, "outer", work(), lab.low)


class _Observed(torch.autograd.Function):
    """A product whose backward tells the dtypes of the products that it makes."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, seen: list[torch.dtype]) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.seen = seen
        return a @ b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        of_a, of_b = gradients[0] @ b.t(), a.t() @ gradients[0]
        ctx.seen += [of_a.dtype, of_b.dtype]
        return of_a, of_b, None


def _backward(inside: bool, product: _Product, lab: Lab) -> None:
    """Both the gradients of a custom function and those of torch's own product must be as float32 makes them."""
    seen: list[torch.dtype] = []
    with lab.stage("build"):
        a, b = (lab.place(v, grad=True) for v in product.values)
        a2, b2 = (lab.place(v, grad=True) for v in product.values)
    with lab.stage("forward") as draft, lab.enter():
        with disabled(lab):
            custom, own = _Observed.apply(a, b, seen), a2 @ b2  # type: ignore[no-untyped-call]
            loss = custom.square().sum() + own.square().sum()
        product.expect(lab, draft, "output", own, torch.float32)
    with lab.stage("backward") as draft:
        if inside:
            with lab.enter():
                loss.backward()
        else:
            loss.backward()
        for dtype in seen:
            expect_dtype(draft, "product in backward", dtype, torch.float32)
        if draft.status is not Status.OK:
            raise Fault(draft.status, f"{draft.reason}: a disabled region's backward", draft.code)
        _judge_float32(lab, draft, product, (a, b), (a2, b2))


def _judge_float32(lab: Lab, draft: Draft, product: _Product, *pairs: tuple[Tensor, Tensor]) -> None:
    """Judge the gradients of the sum of the product's squares with respect to each pair of operands."""
    (a, b), gradient = product.values, 2 * product.right
    for where, (one, two) in zip(("custom", "own"), pairs, strict=True):
        for name, leaf, right in (("a", one, gradient @ b.t()), ("b", two, a.t() @ gradient)):
            if leaf.grad is None:
                draft.fail(Status.INACCURATE, f"{where} {name} got no gradient", "no_gradient")
            else:
                lab.judge(draft, f"{where} grad {name}", leaf.grad, right, eps=FP32_EPS)


def _thread(product: _Product, lab: Lab) -> None:
    def entered() -> tuple[Tensor, Tensor]:
        with lab.enter():
            on = work()
        return on, work()

    with lab.stage("build"):
        work = product.place(lab)
    with lab.stage("threads") as draft, ThreadPoolExecutor(1) as pool:
        with lab.enter():
            product.expect(lab, draft, "in a thread", pool.submit(work).result(), torch.float32)
            on, after = pool.submit(entered).result()
            product.expect(lab, draft, "entered in a thread", on, lab.low)
            product.expect(lab, draft, "left in a thread", after, torch.float32)
            product.expect(lab, draft, "its parent", work(), lab.low)
        on, _ = pool.submit(entered).result()
        product.expect(lab, draft, "entered in a thread alone", on, lab.low)
        product.expect(lab, draft, "its parent, outside", work(), torch.float32)


def _flags(product: _Product, lab: Lab) -> None:
    with lab.stage("build"):
        work = product.place(lab)
    with lab.stage("outside") as draft:
        _compare(lab, draft, work())
    with lab.enter():
        with lab.stage("inside") as draft:
            _compare(lab, draft, work())
        with disabled(lab), lab.stage("disabled") as draft:
            _compare(lab, draft, work())
    with lab.stage("left") as draft:
        _compare(lab, draft, work())


def _compare(lab: Lab, draft: Draft, product: Tensor) -> None:
    """What the flags say now, against the product's dtype."""
    kind, low = lab.device.type, product.dtype is not torch.float32
    says, bare = torch.is_autocast_enabled(kind), torch.is_autocast_enabled()
    asked = torch.get_autocast_dtype(kind)
    draft.numbers |= {"applies": float(low), "enabled": float(says), "enabled_without_device": float(bare)}
    draft.dtypes |= {"product": precisions.name(product.dtype), "get_autocast_dtype": precisions.name(asked)}
    if says != low:
        reason = f"is_autocast_enabled({kind!r}) is {says}, and a product is {precisions.name(product.dtype)}"
        draft.fail(Status.INERT, reason, "flag")
    elif low and asked != product.dtype:
        reason = f"get_autocast_dtype({kind!r}) is {precisions.name(asked)}, a product {precisions.name(product.dtype)}"
        draft.fail(Status.INERT, reason, "flag")
    if bare != low:
        lab.note(f"{draft.name}: torch.is_autocast_enabled() without a device is {bare}; with {kind!r} it is {says}")


_NESTED: dict[str, Callable[[_Product, Lab], None]] = {
    "base": _in_and_out,
    "raised": _raised,
    "decorated": _decorated,
    "other_dtype": _other_dtype,
    "backward": functools.partial(_backward, False),
    "backward_inside": functools.partial(_backward, True),
}

PROBES: tuple[Probe, ...] = (
    Probe("autocast.nested", nested, tuple(_NESTED), MIXED),
    Probe("autocast.thread", thread, precisions=MIXED),
    Probe("autocast.flags", flags, precisions=MIXED),
)

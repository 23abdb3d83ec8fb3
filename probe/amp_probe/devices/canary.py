"""A question with a known answer, to see whether a device still computes after a failure."""

from __future__ import annotations

import torch

from amp_probe.scrub import scrub

_SIZE = 8


def canary(device: torch.device) -> str:
    """What is wrong with the device, as one sentence, or "" where it gives every known value exactly.

    A float32 matmul, an elementwise op and a sum over small integers, copied back and compared. The values are
    integers from 1 to 1144, exact in any order of adding, and none is zero.
    """
    try:
        return _wrong(device)
    except Exception as error:  # noqa: BLE001 -- a broken device may raise anything; the caller needs a sentence
        return scrub(f"the device raised {type(error).__name__}: {error}")


def _wrong(device: torch.device) -> str:
    left, right = _operands()
    a = torch.tensor(left, dtype=torch.float32, device="cpu").to(device)
    b = torch.tensor(right, dtype=torch.float32, device="cpu").to(device)
    product = a @ b
    found = {
        "a matrix product": (product.cpu().tolist(), _product(left, right)),
        "an elementwise product": ((a * 3.0 + b).cpu().tolist(), _elementwise(left, right)),
        "a sum": (a.sum().cpu().item(), float(sum(map(sum, left)))),
    }
    wrong = [name for name, (got, expected) in found.items() if got != expected]
    return f"{' and '.join(wrong)} of small integers came out wrong" if wrong else ""


def _operands() -> tuple[list[list[float]], list[list[float]]]:
    """Two square matrices of integers from 1 to 13, no two rows or columns of one alike."""
    span = range(_SIZE)
    left = [[float((3 * i + 5 * j + i * j) % 11 + 1) for j in span] for i in span]
    right = [[float((2 * i + 3 * j + 2 * i * j) % 13 + 1) for j in span] for i in span]
    return left, right


def _product(left: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]


def _elementwise(left: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    return [[x * 3.0 + y for x, y in zip(r, s, strict=True)] for r, s in zip(left, right, strict=True)]

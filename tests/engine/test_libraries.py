"""Libraries that take memory of their own on a device: it counts in the budget before they take it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.kernels.protocol import Library
from chunkflow.testing import filled

TAKEN = 10_000_000
"""Bytes that a library takes."""


class Loading(NumpyDevice):
    """A device whose libraries take memory when they are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "loading"
        self.loaded: list[Library] = []

    @property
    def reserve(self) -> int:
        return TAKEN * len(self.loaded)

    def to_load(self, library: Library) -> int:
        return 0 if library in self.loaded else TAKEN

    def load(self, library: Library) -> None:
        self.loaded.append(library)


Call = Callable[..., Any]

CALLERS: dict[str, tuple[Library, Call]] = {
    "matmul": ("BLAS", lambda x, **how: cf.matmul(x, np.ones((40, 3), "f4"), **how)),
    "einsum": ("BLAS", lambda x, **how: cf.einsum("ij,ij->i", x, x, **how)),
    "gram": ("BLAS", cf.gram),
    "cov": ("BLAS", cf.cov),
    "a lazy product": ("BLAS", lambda x, **how: cf.compute((cf.open(x) + 1) @ np.ones((40, 3), "f4"), **how)),
    "fft": ("FFT", lambda x, **how: cf.fft.fft(x, axis=0, **how)),
    "convolve": ("FFT", lambda x, **how: cf.fft.convolve(x, np.ones((3, 3)), **how)),
    "convolve, lazy": ("FFT", lambda x, **how: cf.compute(cf.fft.convolve(cf.open(x) * 2, np.ones((3, 3))), **how)),
}


@pytest.mark.parametrize("name", CALLERS)
def test_a_budget_without_room_for_a_library_is_refused_before_it_is_loaded(name: str) -> None:
    library, call = CALLERS[name]
    x, device = filled((60, 40), "f4"), Loading()
    with pytest.raises(cf.BudgetError, match=library) as refused:
        call(x, budget=TAKEN // 2, device=device)
    assert device.loaded == []
    smallest = refused.value.smallest
    assert smallest is not None
    assert smallest > TAKEN
    got = call(x, budget=smallest, device=device)
    assert device.loaded == [library]
    expected = call(x, device="cpu")
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-3)
    call(x, budget=smallest, device=device)
    assert device.loaded == [library]


SEVERAL: dict[str, Callable[[Any, Any], Any]] = {
    "a transform of a product": lambda x, w: cf.fft.fft(x @ w, axis=0),
    "a product of a transform": lambda x, w: cf.fft.fftn(x).real @ w,
    "a convolution of a product": lambda x, w: cf.fft.convolve(x @ w, np.ones((3, 3))),
    "whole axes of a product": lambda x, w: cf.map(lambda b: np.sort(b, axis=0), x @ w, chunks=(-1, 10)),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_later_passes_have_room_for_the_libraries_of_earlier_ones(name: str) -> None:
    x, w = filled((300, 200), "f8"), filled((200, 150), "f8")
    device, made = Loading(), SEVERAL[name](cf.open(x), w)
    with pytest.raises(cf.BudgetError) as refused:
        cf.compute(made, budget=1000, device=device)
    assert device.loaded == []
    got = cf.compute(made, budget=refused.value.smallest, device=device)
    np.testing.assert_allclose(got, cf.compute(made, device="cpu"), rtol=1e-9, atol=1e-6)


def test_a_function_that_fails_on_the_host_is_tried_on_the_device() -> None:
    def particular(block: Any) -> Any:
        if "real" not in seen:
            raise ZeroDivisionError("not on the host")
        return block + 1

    seen: list[str] = []
    x, device = cf.open(filled((60, 40), "f4")), Loading()
    made = cf.fft.convolve(cf.map(particular, x, dtype="f4"), np.ones((3, 3)))
    with pytest.raises(cf.BudgetError):
        cf.compute(made, budget=1000, device=device)
    seen.append("real")
    assert cf.compute(made, budget=4 * TAKEN, device=device).shape == (60, 40)


@dataclass(frozen=True)
class Scaled:
    """A function whose hash fails with another error than TypeError."""

    table: memoryview

    def __call__(self, block: Any) -> Any:
        return block * 2


def test_nothing_is_asked_of_functions_of_the_user() -> None:
    x = filled((6, 4), "f4")
    np.testing.assert_array_equal(cf.map(Scaled(memoryview(bytearray(8))), x, device="cpu"), x * 2)


def test_a_library_without_free_memory_is_a_budget_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(library: Library) -> None:
        raise MemoryError("the card is full")

    device = Loading()
    monkeypatch.setattr(device, "load", full)
    with pytest.raises(cf.BudgetError, match="no more memory free"):
        cf.gram(filled((60, 40), "f4"), budget=4 * TAKEN, device=device)


def test_a_plan_leaves_room_for_what_was_loaded() -> None:
    x, device = filled((400, 300), "f4"), Loading()
    before = cf.explain(np.negative, x, budget="12MB", device=device).memory.total
    cf.gram(x, budget="12MB", device=device)
    after = cf.explain(np.negative, x, budget="12MB", device=device).memory.total
    assert before < TAKEN < after <= 12_000_000


def test_functions_that_call_no_library_load_none() -> None:
    x, device = filled((60, 40), "f4"), Loading()
    cf.map(np.sqrt, x, budget="1MB", device=device)
    cf.sum(x, budget="1MB", device=device)
    assert device.loaded == []

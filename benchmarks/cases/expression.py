"""Ten steps of ``sqrt(x * x + 1)`` from a page-cached memmap to RAM, beside one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import poison, sample_planes

ONE = "one step"


def steps_of(x: Any, number: int) -> Any:
    """An expression of so many steps."""
    for _ in range(number):
        x = np.sqrt(x * x + 1)
    return x


def cases(bench: Bench) -> Iterator[Case]:
    """Ten steps beside one."""
    x = bench.x
    out = np.empty(x.shape, x.dtype)
    numbers = {OURS: 10, ONE: 1}
    expected = {(name, i): steps_of(x[i], n) for name, n in numbers.items() for i in sample_planes(x)}

    def check(name: str, _: Any) -> None:
        for i in sample_planes(x):
            np.testing.assert_allclose(out[i], expected[name, i], rtol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all()
        poison(out)

    def run(number: int) -> None:
        cf.store(steps_of(cf.open(x), number), out, **bench.options)

    poison(out)
    runs: dict[str, Callable[[], Any]] = {name: lambda n=n: run(n) for name, n in numbers.items()}
    what = f"ten steps, memmap to RAM {x.shape}"
    yield Case("expression", what, x.nbytes / 1e9, runs, check, (ONE, None))

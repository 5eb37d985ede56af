"""A 7-point stencil beside a map, with the budget and with smaller ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, Goal
from benchmarks.data import blur, edged, poison, sample_planes, work


def cases(bench: Bench) -> Iterator[Case]:
    """A 7-point stencil beside a map, at the budget and at smaller ones."""
    ram = bench.ram
    out = bench.out
    amount = ram.nbytes / 1e9
    planes = sample_planes(ram)
    expected = {i: (blur(block)[0], work(ram[i])) for i, block in edged(ram, planes).items()}

    def check(name: str, got: Any) -> None:
        for i in planes:
            np.testing.assert_allclose(out[i], expected[i][name == "a map"], rtol=1e-4, atol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all(), f"{name} left something out"
        poison(out)

    def run(**more: Any) -> Any:
        halo: dict[str, Any] = {"depth": 1, "boundary": "nearest", "trim": False, "out": out}
        return cf.map_overlap(blur, ram, **halo, **bench.options, **more)

    poison(out)
    what, full = f"7 points, RAM to RAM {ram.shape}", f"the same with {bench.budget}"
    runs = {OURS: run, "a map": lambda: cf.map(work, ram, out=out, **bench.options)}
    yield Case("stencil", what, amount, runs, check, ("a map", None), Goal(0.95))
    for budget in ("1GB", "256MB"):
        runs = {OURS: lambda b=budget: run(budget=b), full: run}
        yield Case(f"stencil, {budget}", what, amount, runs, check, (full, None), Goal(0.9))

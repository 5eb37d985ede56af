"""20 iterations of the heat equation from RAM to RAM: one step in each pass, four, and as many as the model chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import blur, poison

ITERATIONS = 20
ONE = "one step a pass"


def heat(u: Any) -> Any:
    """One step of the heat equation: a 7-point stencil inside, the rim is cut."""
    new = u.copy()
    new[1:-1, 1:-1, 1:-1] = blur(u)
    return new


def stepped(x: np.ndarray, corner: Sequence[int], size: int) -> np.ndarray:
    """NumPy's result in a cube, from all that it depends on."""
    inside = [slice(c, c + size) for c in corner]
    needed = [slice(max(0, s.start - ITERATIONS), s.stop + ITERATIONS) for s in inside]
    u = x[tuple(needed)]
    for _ in range(ITERATIONS):
        u = blur(np.pad(u, 1, "edge"))
    return u[tuple(slice(s.start - n.start, s.stop - n.start) for s, n in zip(inside, needed, strict=True))]


def cases(bench: Bench) -> Iterator[Case]:
    """Iterations with one or more steps in a pass."""
    x = np.array(bench.x)
    out = np.empty_like(x)
    halo: dict[str, Any] = {"depth": 1, "boundary": "nearest", "iterations": ITERATIONS, **bench.options}
    ways: dict[str, int | None] = {OURS: None, ONE: 1, "four steps a pass": 4}
    size = min(8, *x.shape)
    corners = [(0, 0, 0), tuple(n // 2 for n in x.shape), tuple(n - size for n in x.shape)]
    expected = [stepped(x, corner, size) for corner in corners]

    def check(_: str, got: Any) -> None:
        for corner, values in zip(corners, expected, strict=True):
            found = out[tuple(slice(c, c + size) for c in corner)]
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all()
        poison(out)

    def run(steps: int | None) -> np.ndarray:
        return cf.map_overlap(heat, x, out=out, steps_per_pass=steps, **halo)

    poison(out)
    columns: dict[str, dict[str, str]] = {"passes": {}, "GB moved": {}}
    for name, steps in ways.items():
        plan = cf.iteration_plan(heat, x, out=out, steps_per_pass=steps, budget=bench.budget, **halo)
        columns["passes"][name] = str(plan.passes)
        columns["GB moved"][name] = f"{(plan.bytes_read + plan.bytes_written) / 1e9:.3g}"
    runs: dict[str, Callable[[], Any]] = {name: lambda s=steps: run(s) for name, steps in ways.items()}
    what = f"{ITERATIONS} iterations, RAM to RAM {x.shape}, budget {bench.budget}"
    amount = 2 * ITERATIONS * x.nbytes / 1e9
    yield Case("heat", what, amount, runs, check, (ONE, None), columns=columns)

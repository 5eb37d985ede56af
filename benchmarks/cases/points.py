"""Stencils of 7 and of 27 points from RAM to RAM, beside a plain map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import blur, edged, poison, sample_planes, work

PLAIN = "a map"
SMALLER = "7 points"


def smooth(block: Any) -> Any:
    """A 27-point stencil: weights 1, 2, 1 along each axis."""
    for axis in range(3):
        lines = (slice(None),) * axis
        block = block[(*lines, slice(1, -1))] * 2 + block[(*lines, slice(-2))] + block[(*lines, slice(2, None))]
    block *= np.float32(1 / 64)
    return block


def cases(bench: Bench) -> Iterator[Case]:
    """All three in turn."""
    ram = np.array(bench.x)
    out = np.empty_like(ram)
    halo: dict[str, Any] = {"depth": 1, "boundary": "nearest", "trim": False, "out": out, **bench.options}
    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: cf.map_overlap(smooth, ram, **halo),
        SMALLER: lambda: cf.map_overlap(blur, ram, **halo),
        PLAIN: lambda: cf.map(work, ram, out=out, **bench.options),
    }
    blocks = edged(ram, sample_planes(ram))
    expected = {
        OURS: {i: smooth(block)[0] for i, block in blocks.items()},
        SMALLER: {i: blur(block)[0] for i, block in blocks.items()},
        PLAIN: {i: work(ram[i]) for i in blocks},
    }

    def check(name: str, _: Any) -> None:
        for i, values in expected[name].items():
            np.testing.assert_allclose(out[i], values, rtol=1e-5, atol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all()
        poison(out)

    poison(out)
    yield Case("27 points", f"RAM to RAM {ram.shape}", ram.nbytes / 1e9, runs, check, (PLAIN, None))

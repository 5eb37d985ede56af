"""Raw chunks that are read in place, and those that are copied to their rows of a block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.planner.traffic import COPIED, _is_copied


@pytest.mark.parametrize(
    ("chunks", "copied"),
    [((8, 512, 512), False), ((1, 256, 512), False), ((8, 32, 512), True), ((8, 512, 64), True), ((1, 1, 64), False)],
)
def test_chunks_whose_rows_lie_apart_in_a_block_are_copied(chunks: tuple[int, ...], copied: bool) -> None:
    spec = ArraySpec("x", (64, 512, 512), np.dtype("f4"), chunks=chunks, storage=Storage(how="zarr", raw=True))
    assert _is_copied(spec, (8, 512, 512)) is copied
    assert not _is_copied(spec.with_storage(raw=False), (8, 512, 512)), "decoding counts for itself"


def test_of_large_raw_chunks_only_the_parts_that_are_read_count(tmp_path: Path) -> None:
    shape, chunks = (256, 256, 256), (256, 128, 128)
    zarr.create_array(tmp_path / "x.zarr", shape=shape, chunks=chunks, dtype="f4", compressors=None)
    plan = cf.explain(cf.map, np.tanh, tmp_path / "x.zarr", chunks=(16, -1, -1), budget="64MB", device="cpu")
    assert len(plan.grid) == 16
    copying = plan.estimate.asking - 64 * plan.machine.handling  # which is for each of so many parts
    assert pytest.approx(copying, rel=1e-6) == 256**3 * 4 / COPIED

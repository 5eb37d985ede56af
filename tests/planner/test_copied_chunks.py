"""Raw chunks that are read in place, and those that are copied to their rows of a block."""

from __future__ import annotations

import numpy as np
import pytest

from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.planner.traffic import _is_copied


@pytest.mark.parametrize(
    ("chunks", "copied"),
    [((8, 512, 512), False), ((1, 256, 512), False), ((8, 32, 512), True), ((8, 512, 64), True), ((1, 1, 64), False)],
)
def test_chunks_whose_rows_lie_apart_in_a_block_are_copied(chunks: tuple[int, ...], copied: bool) -> None:
    spec = ArraySpec("x", (64, 512, 512), np.dtype("f4"), chunks=chunks, storage=Storage(how="zarr", raw=True))
    assert _is_copied(spec, (8, 512, 512)) is copied
    assert not _is_copied(spec.with_storage(raw=False), (8, 512, 512)), "decoding counts for itself"

"""A region that is in memory is read as its array would be, by compiled loops too."""

from __future__ import annotations

import numpy as np

from chunkflow.stores.memory import ArraySource
from chunkflow.stores.protocol import run_of
from chunkflow.stores.views.shared import Held


def test_a_region_in_memory_is_a_run_of_bytes_where_its_array_is() -> None:
    array = np.arange(60.0).reshape(3, 4, 5)
    source = Held(array, (slice(7, 10), slice(0, 4), slice(0, 5)), (20, 4, 5)).__chunkflow_source__()
    region, there = (slice(8, 10), slice(1, 3), slice(0, 5)), (slice(1, 3), slice(1, 3), slice(0, 5))
    assert run_of(source, region) == run_of(ArraySource(array), there) is not None
    out = np.empty((2, 2, 5))
    source.read(region, out)
    assert (out == array[there]).all()

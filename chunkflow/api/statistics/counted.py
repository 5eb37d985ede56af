"""About how many different numbers an array has: for the refusal of a budget that has no room for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chunkflow.api.operation import Chunks, Options, Request, execute
from chunkflow.api.statistics.bins import in_memory, over_everything
from chunkflow.core.memory import RoomForEach
from chunkflow.errors import BudgetError
from chunkflow.kernels.statistics.distinct_number import hashes_of, number_of, smallest
from chunkflow.kernels.statistics.histogram import Tally
from chunkflow.stores import spec_of

MOST_READ = 4 << 30
"""Bytes of arrays that are read for it, at most: it takes seconds. Of larger ones a few refusals are quicker."""


def counted(x: Any, chunks: Chunks, options: Options, needs: RoomForEach) -> RoomForEach:
    """What is needed for each, with the number that there is about, from a pass; as it was where that takes long."""
    if spec_of(x).nbytes > MOST_READ:
        return needs
    try:
        hashes = execute(Request(over_everything(Tally(hashes_of, smallest), chunks), (x,), in_memory(options)))
    except BudgetError:
        return needs
    return replace(needs, there=number_of(hashes))

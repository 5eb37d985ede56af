"""Arrays of one shape as one array: stacked along a new first axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chunkflow.core.arrangement import Separable, joined, straight
from chunkflow.stores.protocol import Source
from chunkflow.stores.views.composed import ComposedSource


def stacked(sources: Sequence[Source]) -> Source:
    """The stack of sources, which it closes, in the dtype to which theirs are promoted."""
    specs = [source.spec for source in sources]
    arrangement = Separable((joined([1] * len(specs)), *map(straight, specs[0].shape)))
    chunks = next(((1, *spec.chunks) for spec in specs if spec.chunks is not None), None)
    return ComposedSource(sources, arrangement, np.result_type(*(spec.dtype for spec in specs)), chunks, new=0)

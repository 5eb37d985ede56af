"""Counts of which the budget does not hold all: they are made in parts, one pass each.

How many counts there are may be known from the elements only, and a budget must do whatever these are. A part also
tells the least element beyond it. So the next one begins there, and there are no more passes than different elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.api.operation import Options, Request, execute
from chunkflow.api.statistics.bins import in_memory
from chunkflow.engine.dry_run import is_dry
from chunkflow.errors import BudgetError


def no_counts(number: int, dtype: np.dtype) -> np.ndarray:
    """Zeros; in a dry run, which fills none of them, they take no memory."""
    return np.broadcast_to(np.zeros((), dtype), number) if is_dry() else np.zeros(number, dtype)


def in_parts(
    part: Callable[[int, int, Options], Request],
    after: Callable[[Any], int],
    counts: np.ndarray,
    first: int,
    least: int,
    options: Options,
) -> np.ndarray:
    """Fill `counts`, which are zeros, from `first` on; as many at a time as the budget holds, and at least so many.

    ``part(first, number, options)`` is the request of some counts, with the least element beyond them in an array of
    one; ``after(element)`` is the first count that such an element has a part in. A dry run plans one part.
    """
    number = len(counts)
    while first < len(counts):
        number = min(number, len(counts) - first)
        try:
            found, (beyond,) = execute(part(first, number, in_memory(options)))
        except BudgetError:
            if number <= least:
                raise
            number = max(least, number // 2)
            continue
        if is_dry():
            break
        counts[first : first + number] = found
        first = max(first + number, after(beyond))
    return counts

"""Counts of which the budget does not hold all: they are made in parts, one pass each.

How many counts there are may be known from the elements only, and a budget must do whatever these are. A part also
tells the least element beyond it. So the next one begins there, and there are no more passes than different elements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from chunkflow.api.operation import Options, Request, execute
from chunkflow.api.statistics.bins import in_memory
from chunkflow.engine.dry_run import is_dry
from chunkflow.errors import BudgetError, WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.protocol import Target
from chunkflow.stores.publication.scratch import Scratch


@contextmanager
def in_parts(
    part: Callable[[int, int, Options], Request],
    after: Callable[[Any], int],
    length: int,
    dtype: np.dtype,
    first: int,
    least: int,
    target: Target,
    options: Options,
) -> Iterator[tuple[np.ndarray, int | None]]:
    """Counts, made from `first` on; as many at a time as the budget holds, and at least so many.

    ``part(first, number, options)`` is the request of some counts, with the least element beyond them in an array of
    one; ``after(element)`` is the first count that such an element has a part in. Those before `first` are zeros. A dry
    run plans one part.

    Counts for a target in memory are in memory as well. Others are in a temporary file, which is mapped: after them
    comes how many of them the budget holds.
    """

    def keep(begin: int, found: np.ndarray) -> None:
        counts[begin : begin + len(found)] = found

    if is_dry():
        _make(part, after, length, first, least, options, lambda begin, found: None)
        yield np.broadcast_to(np.zeros((), dtype), length), None
    elif target.describe((length,), dtype, None).storage.in_memory:
        counts = np.zeros(length, dtype)
        _make(part, after, length, first, least, options, keep)
        yield counts, None
    else:
        scratch = Scratch(target.name, "counts")
        try:
            path, doing = os.path.join(scratch.folder, "counts"), f"cannot keep counts of {target.name}"
            with translated(WriteError, doing, path, foreign=OSError), open(path, "wb") as file:
                file.truncate(length * dtype.itemsize)

                def write(begin: int, found: np.ndarray) -> None:
                    file.seek(begin * dtype.itemsize)
                    file.write(np.ascontiguousarray(found, dtype).data)

                at_once = _make(part, after, length, first, least, options, write)
            yield np.memmap(path, dtype, "r", shape=(length,)), at_once
        finally:
            scratch.end()


def _make(
    part: Callable[[int, int, Options], Request],
    after: Callable[[Any], int],
    length: int,
    first: int,
    least: int,
    options: Options,
    put: Callable[[int, np.ndarray], None],
) -> int:
    """Put the parts that hold other counts than zeros, each at its first place; return how many the largest has."""
    number, most = length, 1
    while first < length:
        number = min(number, length - first)
        try:
            found, (beyond,) = execute(part(first, number, in_memory(options)))
        except BudgetError:
            if number <= least:
                raise
            number = max(least, number // 2)
            continue
        if is_dry():
            break
        put(first, found)
        most = max(most, number)
        del found  # the next part is planned for a budget that holds nothing else
        first = max(first + number, after(beyond))
    return most

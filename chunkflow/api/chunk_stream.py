"""The blocks of an array on the device, for a loop of the user's own."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from chunkflow.core.chunking import Chunks
from chunkflow.core.grid import Region, Shape
from chunkflow.core.spelling import spelt
from chunkflow.engine import pipeline
from chunkflow.engine.observe.progress import watching
from chunkflow.engine.options import BudgetLike, Options, ProgressLike
from chunkflow.engine.prepare import prepared
from chunkflow.engine.run import look_after, warn_of_slowness
from chunkflow.engine.trace import Trace
from chunkflow.errors import StaleChunkError
from chunkflow.graph.live import refuse_blocks
from chunkflow.kernels.declare import declare_blocks
from chunkflow.system import interrupts


class Chunk:
    """A block of an array on the device.

    Attributes
    ----------
    index : tuple of int
        Its place in the grid of blocks.
    region : tuple of slice
        Its place in the array.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> for chunk in cf.chunks(np.arange(6.0), chunks=3, device="cpu"):
    ...     print(chunk.index, chunk.region, chunk.data)
    (0,) (slice(0, 3, None),) [0. 1. 2.]
    (1,) (slice(3, 6, None),) [3. 4. 5.]
    """

    __slots__ = ("_data", "index", "region")

    def __init__(self, index: Shape, region: Region, data: Any) -> None:
        self.index, self.region, self._data = index, region, data

    @property
    def data(self) -> Any:
        """The block: a NumPy or CuPy array, not to be written to. What the loop keeps stays valid.

        Raises
        ------
        StaleChunkError
            The loop has moved on, and nobody kept the array.
        """
        if self._data is None:
            raise StaleChunkError(
                f"the block {self.index} is gone: the loop has moved on, or its iterator was closed. Take chunk.data "
                "in the block's own iteration, and keep that array"
            )
        return self._data

    def __repr__(self) -> str:
        return f"Chunk(index={self.index}, region={self.region})"


_open: weakref.WeakSet[ChunkStream] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the streams that a script left open, while their threads can still be joined."""
    for stream in list(_open):
        stream.close()


class ChunkStream:
    """Iterator over the blocks of an array; see `chunks`. ``len()`` is their number, `plan` how they are cut.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> with cf.chunks(np.arange(6.0), chunks=2, device="cpu") as stream:
    ...     len(stream), [float(chunk.data.sum()) for chunk in stream]
    (3, [1.0, 5.0, 9.0])
    """

    def __init__(self, array: Any, options: Options, watch: Trace) -> None:
        refuse_blocks(array)
        self._stack = ExitStack()
        self._trace = watch
        self._blocks: Iterator[Any] | None = None
        self._chunk: Chunk | None = None
        self._over = False
        with interrupts.deferred():
            self._run = self._stack.enter_context(prepared(declare_blocks, (array,), options))
        self.plan = self._run.plan
        _open.add(self)

    def __len__(self) -> int:
        return len(self.plan.grid)

    def __iter__(self) -> ChunkStream:
        return self

    def __next__(self) -> Chunk:
        self._expire()
        if self._over:
            raise StopIteration
        with interrupts.deferred():
            try:
                if self._blocks is None:
                    run = self._run
                    warn_of_slowness(run.plan)
                    self._trace.started(run.plan, run)
                    self._blocks = self._stack.enter_context(
                        pipeline.streaming(run.plan, run.sources[0], run.device, run.pool, self._trace)
                    )
                try:
                    step, data = next(self._blocks)
                except StopIteration:
                    look_after(self._run, self._trace)
                    raise
            except BaseException as error:
                self._finish(None if isinstance(error, StopIteration) else error)
                raise
            self._chunk = Chunk(step.index, step.box, data)
            return self._chunk

    def _expire(self) -> None:
        if self._chunk is not None:
            self._chunk._data, self._chunk = None, None

    def _finish(self, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = True
        self._stack.close()
        if self._blocks is not None:
            self._trace.finished(error, self._run.pool.peak)

    def close(self) -> None:
        """Stop, and release threads, files and memory. The present chunk's data are gone. Idempotent."""
        with interrupts.deferred():
            self._expire()
            self._finish(None)

    def __enter__(self) -> ChunkStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "plan"):
            self.close()


@spelt()
def chunks(
    array: Any,
    *,
    budget: BudgetLike = None,
    chunks: Chunks = None,
    device: Any = None,
    progress: ProgressLike = None,
) -> ChunkStream:
    """Iterate over an array's blocks on the device, prefetched, for a loop of one's own.

    Parameters
    ----------
    array : array_like, str or path
        A source, as for `map`.
    budget, device, progress
        As for `map`. The budget covers the blocks that are on the device, those that the loop keeps among them; what
        its body allocates is its own affair.
    chunks : int or tuple, optional
        Shape of the blocks: for each axis a length, -1 or None for the whole axis, or "auto".

    Returns
    -------
    ChunkStream
        Yields `Chunk` objects in the array's order. Leaving the loop early releases everything once the
        iterator is closed or no longer referenced; use it as a context manager to be exact.

    Raises
    ------
    BudgetError, ArgumentError, ArgumentTypeError, SourceNotFoundError
        Before the first read.
    BudgetError
        Later also: the loop keeps so many blocks that there is no room for another one.
    ReadError
        A block could not be read.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = np.arange(1000.0).reshape(10, 100)
    >>> float(sum(chunk.data.sum() for chunk in cf.chunks(x, chunks=(4, -1), device="cpu")))
    499500.0
    """
    return ChunkStream(array, Options(budget=budget, chunks=chunks, device=device), watching(progress))

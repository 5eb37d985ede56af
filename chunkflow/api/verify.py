"""Reads all of an array, and reports what cannot be read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from chunkflow.core.grid import Region, describe, regions, shape_of
from chunkflow.core.spec import default_chunks
from chunkflow.core.spelling import spelt
from chunkflow.core.units import format_bytes
from chunkflow.engine.observe.progress import make
from chunkflow.engine.options import ProgressLike
from chunkflow.engine.trace import Trace
from chunkflow.errors import ArgumentError, ReadError
from chunkflow.stores import Source, open_source
from chunkflow.stores.checks import TimesError
from chunkflow.stores.protocol import checksums_of, gaps_of, guards_of, refuse_doubtful, where
from chunkflow.stores.registry import Stored, stored
from chunkflow.stores.times import counts_of
from chunkflow.system.host import cores

LISTED = 1000
"""Most damaged places that are listed. All are counted."""

READ_AS = " (they read as the fill value; --missing error, or missing='error', counts them as damaged)"


@dataclass(frozen=True)
class Damage:
    """A part of an array that cannot be read.

    Attributes
    ----------
    region : tuple of slice or None
        The elements; None for the whole array.
    where : str
        The file or object where they lie, and from which byte on, as far as that is known.
    problem : str
        What is wrong.
    """

    region: Region | None
    where: str
    problem: str

    def __str__(self) -> str:
        part = "all of it" if self.region is None else describe(self.region)
        return f"{part}, in {self.where}: {self.problem}"


@dataclass(frozen=True)
class Verification:
    """What `verify` found; it is true if nothing is damaged, and ``print`` shows it.

    Attributes
    ----------
    name : str
        The array's path or URL.
    chunks, damaged, missing : int
        How many chunks (or blocks, of an array without) were read, are damaged, and are not stored at all.
    nbytes : int
        Bytes of the elements.
    checksums : str
        The checksums that were verified; empty if the array has none, and damage shows only where it does not decode.
    damages : tuple of Damage
        The first thousand.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> _ = cf.copy(np.ones((4, 4)), cf.NewArray("x.zarr", chunks=(2, 4)), device="cpu")
    >>> found = cf.verify("x.zarr")
    >>> bool(found), found.chunks, found.damaged, found.nbytes
    (True, 2, 0, 128)
    """

    name: str
    chunks: int
    damaged: int
    missing: int
    nbytes: int
    checksums: str
    damages: tuple[Damage, ...]

    def __bool__(self) -> bool:
        return not self.damaged

    def __str__(self) -> str:
        lines = [f"damaged: {damage}" for damage in self.damages]
        if self.damaged > len(self.damages):
            lines.append(f"... and {self.damaged - len(self.damages)} more")
        sums = f"verified by {self.checksums}" if self.checksums else "without checksums: what decodes counts as whole"
        chunks = "chunk" if self.chunks == 1 else "chunks"
        lines.append(
            f"{self.name}: {self.chunks} {chunks} of {format_bytes(self.nbytes)} in all, {self.damaged} damaged, "
            f"{self.missing} missing{READ_AS if self.missing else ''}; {sums}"
        )
        return "\n".join(lines)


@spelt()
def verify(
    path: Any, *, missing: Literal["fill", "error"] | None = None, progress: ProgressLike = None
) -> Verification:
    """Read all of a stored array chunk by chunk, and report damage.

    Nothing is written. Each core reads and decodes a chunk at a time.

    Parameters
    ----------
    path : str or path
        Of a ``.npy`` file, a zarr array or an HDF5 dataset, or a URL: of one array. The command ``chunkflow verify``
        takes files and groups with several, and patterns of files.
    missing : {"fill", "error"}, optional
        What chunks of a zarr array are that are not stored. Writers leave out chunks that hold only the fill value, so
        they are whole by default. If all were written, one that is gone is damage: say "error".
    progress : bool, "always" or callable
        As for `chunkflow.map`.

    Returns
    -------
    Verification
        True if all could be read.

    Raises
    ------
    SourceNotFoundError, ArgumentError, ArgumentTypeError
        There is no array, or it is of a kind that cannot be read.
    ReadError
        It was changed meanwhile; or its server has no chunk of it at all, and cannot list what it has.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> _ = cf.map(np.sqrt, np.arange(12.0).reshape(3, 4), out="roots.zarr", device="cpu")
    >>> bool(cf.verify("roots.zarr")), cf.verify("roots.zarr").checksums
    (True, 'crc32c')
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"verify takes a path or a URL, not a {type(path).__name__}")
    if missing not in (None, "fill", "error"):
        raise ArgumentError(f"missing={missing!r} is unknown: 'fill' or 'error', for missing chunks")
    given, shown = stored(path, missing=missing), make(progress)
    watch = Trace([shown] if shown is not None else [])
    try:
        source = _opened(given)
    except ReadError as error:
        damage = Damage(None, given.path, str(error))
        return Verification(given.path, 0, 1, 0, 0, "", (damage,))
    with closing(source):
        found = _Reading(source, watch)
        watch.started(_Bytes(source.spec.nbytes))
        try:
            found.run()
        finally:
            watch.finished(None, 0)
        for guard in guards_of([source]):
            guard.check()
        refuse_doubtful([source])
        gone = sum(gaps.number for _, gaps in gaps_of([source]))
        spec = source.spec
        return Verification(
            spec.name, found.done, found.damaged, gone, spec.nbytes, checksums_of(source), found.in_order()
        )


def _opened(given: Stored) -> Source:
    """The source of a path; of times their integers."""
    try:
        return open_source(given)
    except TimesError as error:
        source = open_source(counts) if (counts := counts_of(given.path, error.dtype)) is not None else None
        if source is None:
            raise
    for _, gaps in gaps_of([source]):
        gaps.refuses, gaps.accepts = given.missing == "error", given.missing == "fill"
    return source


@dataclass(frozen=True)
class _Bytes:
    """What a bar has to know of a plan."""

    bytes_given: int
    bytes_out: int = 0


class _Reading:
    """Chunks of a source, which threads read one after the other."""

    def __init__(self, source: Source, watch: Trace) -> None:
        self._source, self._watch, self._lock = source, watch, threading.Lock()
        spec = source.spec
        sides = spec.chunks or default_chunks(spec.shape, spec.dtype.itemsize)
        self._left: Iterator[Region] = regions(spec.shape, sides) if spec.size else iter(())
        self.done = self.damaged = 0
        self.damages: list[Damage] = []

    def run(self) -> None:
        """Read all of them."""
        from concurrent.futures import ThreadPoolExecutor  # not at the top: it takes 3 ms

        with ThreadPoolExecutor(cores(), "chunkflow-verify") as threads:
            try:
                for each in [threads.submit(self._some) for _ in range(cores())]:
                    each.result()
            except BaseException:  # Ctrl-C, say: no thread begins another chunk
                with self._lock:
                    self._left = iter(())
                raise

    def in_order(self) -> tuple[Damage, ...]:
        """The damages in the order of their places, which threads found in any."""
        return tuple(sorted(self.damages, key=lambda each: [side.start for side in each.region or ()]))

    def _some(self) -> None:
        memory = np.empty(0, np.uint8)
        dtype = self._source.spec.dtype
        while True:
            with self._lock:
                region = next(self._left, None)
            if region is None:
                return
            shape = shape_of(region)
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            memory = memory if len(memory) >= nbytes else np.empty(nbytes, np.uint8)
            try:
                self._source.read(region, memory[:nbytes].view(dtype).reshape(shape))
                self._note(nbytes, None)
            except ReadError as error:
                self._note(nbytes, Damage(region, where(self._source, region), str(error.__cause__ or error)))
            except BaseException:
                with self._lock:
                    self._left = iter(())
                raise

    def _note(self, nbytes: int, damage: Damage | None) -> None:
        with self._lock:
            self.done += 1
            if damage is not None:
                self.damaged += 1
                if len(self.damages) < LISTED:
                    self.damages.append(damage)
            self._watch.landed(nbytes, 0)

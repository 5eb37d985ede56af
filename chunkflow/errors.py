"""Every exception that chunkflow raises.

Each one is a :class:`ChunkflowError` and also the built-in exception that Python users already
catch, and carries the figures of its message as attributes. This room imports nothing of ours.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_USER = re.compile(r"([A-Za-z][\w+.-]*://)[^/\s'\"?#]*@")
_QUERY = re.compile(r"([A-Za-z][\w+.-]*://[^\s?'\"<>]*)\?[^\s'\"<>]*[^\s'\"<>.,:;)]")


def hidden(text: str) -> str:
    """A text without the users, passwords and queries of the URLs in it.

    >>> hidden("cannot open https://me:word@host/x.zarr?token=abc: gone")
    'cannot open https://***@host/x.zarr?***: gone'
    """
    if "://" not in text:
        return text
    return _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", text))


class ChunkflowError(Exception):
    """Base class of every error that chunkflow raises on purpose. Its message shows no password or token of a URL.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> try:
    ...     cf.sum("nowhere.npy")
    ... except cf.ChunkflowError as error:
    ...     print(type(error).__name__, isinstance(error, FileNotFoundError))
    SourceNotFoundError True
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*(hidden(each) if isinstance(each, str) else each for each in args))
        self.args = tuple(hidden(each) if isinstance(each, str) else each for each in self.args)


class ArgumentError(ChunkflowError, ValueError):
    """An argument has an impossible value."""


class ValueRangeError(ArgumentError, OverflowError):
    """A number that the array's dtype cannot hold."""


class ZeroWeightsError(ArgumentError, ZeroDivisionError):
    """Weights that sum to zero, so that there is no average."""


class AxisError(ArgumentError, np.exceptions.AxisError):
    """An axis is out of bounds."""


class LinAlgError(ArgumentError, np.linalg.LinAlgError):
    """An array is no matrix, or no square one."""


class PlaceError(ChunkflowError, IndexError):
    """An index that the array does not have, or that is none."""


class ArgumentTypeError(ChunkflowError, TypeError):
    """An argument, or an array's dtype, is of a kind that cannot be processed."""


class UnsupportedError(ChunkflowError, TypeError):
    """NumPy has it and chunkflow has not: the message says what could be used instead."""


class MissingAttributeError(UnsupportedError, AttributeError):
    """An attribute that NumPy's arrays have and expressions have not; functions of numpy.ma's ask for some."""


class ResultError(ChunkflowError, ValueError):
    """The user's function returned an array of the wrong shape."""


class ResultTypeError(ChunkflowError, TypeError):
    """The user's function returned the wrong type, dtype or device of array."""


class _MemoryError(ChunkflowError, MemoryError):
    """One that says itself how it goes to another process: what stands in for `pickle` there cannot guess it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__


class BudgetError(_MemoryError):
    """The run does not fit in its byte budget.

    Attributes
    ----------
    needed, limit, smallest : int or None
        Bytes asked for, bytes allowed, and the smallest budget in bytes that would do for all passes, where known.
        Where memory depends on the elements (distinct values, labels, counts) it does whatever they are; counts up to
        an integer larger than their number are refused once more, by the pass that finds it.
    likely : int or None
        There, a budget that has room for as many as there are, which are counted where that takes seconds; else for
        twice as many as were found before the run was refused.
    about : str
        Which arrays the figures are of. The message ends with it.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> try:
    ...     cf.gram(np.ones((100, 100)), budget="50kB", device="cpu")
    ... except cf.BudgetError as error:
    ...     error.limit, error.smallest > 50_000
    (50000, True)
    """

    def __init__(
        self,
        message: str,
        *,
        needed: int | None = None,
        limit: int | None = None,
        smallest: int | None = None,
        likely: int | None = None,
        about: str = "",
    ) -> None:
        super().__init__(message)
        self.needed, self.limit, self.smallest, self.likely = needed, limit, smallest, likely
        self.about = hidden(about)

    def __str__(self) -> str:
        return f"{self.args[0]}. {self.about}" if self.about else str(self.args[0])


class HostMemoryError(_MemoryError):
    """The host's memory cannot hold what was asked for."""


class CodingWarning(UserWarning):
    """An array's attributes say that its numbers stand for others, and these are not computed."""


class FileOrderWarning(UserWarning):
    """Files of a pattern are in the order of their names as text, and numbers in these have another one.

    As text ``f10.tif`` comes before ``f2.tif``. Numbers that have the same number of digits, with zeros in front, have
    one order; so have those behind a decimal point.
    """


class LossWarning(UserWarning):
    """What is written has less than what was there, or what is copied: attributes, or digits."""


class SlowRunWarning(UserWarning):
    """A run takes much longer than it need, for its blocks are small. The warning says why, and what to do.

    It is given once a run starts, if one of these holds by the plan:

    - There are more than 100,000 blocks, and handling them takes more than half of the time.
    - Elements are read 8 times or more, 256 MiB or more in all in the passes of a call, reading bounds the run, and a
      larger budget would do with less.
    - Blocks are given 32 times as many elements as the array has or more, 256 MiB or more in all, as their neighbours,
      and a larger budget would do with less.
    - Sources are asked for parts of blocks so often that this takes 5 s or more, and more than half of the time, where
      a larger budget would do with less: a read of an array of xarray's or dask's takes milliseconds.

    ``cf.explain`` does not warn: its text has the same as a note.
    """


class BlockEdgeWarning(UserWarning):
    """Values of a function near the borders of its blocks are not those of the whole array, as it looks further.

    It is given once a run starts whose blocks the plan chooses, or have a depth. Of a small block, elements that the
    function must not need are changed, or cut off, and some value changed by more than a hundredth of the range of all.
    Nothing is tried where there is one block, with both `dtype` and `workspace` given, or of functions that ask for
    `block_id` or `block_info`.
    """


class MemoryUseWarning(UserWarning):
    """A function takes more memory for a later block than its trial call let expect, where nothing can refuse it."""


class DeviceError(ChunkflowError, RuntimeError):
    """The device that was asked for does not exist or cannot be used."""


class SourceNotFoundError(ChunkflowError, FileNotFoundError):
    """No array is stored under the path given."""


class OutputExistsError(ChunkflowError, FileExistsError):
    """Something is stored under the output's path already."""


class OutputBusyError(OutputExistsError):
    """Another run, which is alive, writes the output."""


class ResumeError(ArgumentError):
    """A run has left what can be gone on with, and this call is another one, or does not go on with it."""


class _StoreError(ChunkflowError, OSError):
    """A failed transfer, with the store's name and the region of the array that it was for."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        region: tuple[slice, ...] | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.path, self.region = path and hidden(path), region
        if isinstance(cause, OSError):
            self.errno, self.strerror = cause.errno, cause.strerror

    def __str__(self) -> str:  # OSError would print only errno and strerror once they are set
        return str(self.args[0])


class ReadError(_StoreError):
    """A source could not deliver a region: a failed or short read, or a chunk that does not decode.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> np.save("x.npy", np.ones(1000))
    >>> with open("x.npy", "r+b") as file:
    ...     _ = file.truncate(4000)
    >>> try:
    ...     cf.sum("x.npy", device="cpu")
    ... except cf.ReadError as error:
    ...     print(isinstance(error, OSError))
    True
    """


class WriteError(_StoreError):
    """A sink could not take a region: a full disk, say.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> class Full:
    ...     shape, dtype = (4,), np.dtype("f8")
    ...     def __setitem__(self, index, values):
    ...         raise OSError(28, "No space left on device")
    >>> try:
    ...     cf.map(np.sqrt, np.ones(4), out=Full(), device="cpu")
    ... except OSError as error:
    ...     print(type(error).__name__, error.errno)
    WriteError 28
    """


class RaceError(ChunkflowError, RuntimeError):
    """Two accesses to one buffer, one of them a write, that no event orders (checking devices only)."""


class StaleChunkError(ChunkflowError, RuntimeError):
    """The data of a chunk were asked for after the loop had moved on to the next one."""


_REFUSALS: dict[type[Exception], type[ChunkflowError]] = {
    OverflowError: ValueRangeError,
    np.exceptions.AxisError: AxisError,
    IndexError: PlaceError,
    ValueError: ArgumentError,
    TypeError: ArgumentTypeError,
}
"""Our errors for what Python and NumPy say about an argument, the narrower ones first."""


_DEEPEST = 64
"""Most lists in each other that NumPy makes an array of."""


def uneven(value: Any, depth: int = 0) -> str:
    """How a list is no array, as its rows have different lengths; empty if they have not.

    >>> uneven([[1, 2], [3]]), uneven([[1, 2], 3]), uneven([[1, 2], [3, 4]])
    ('its rows are of different lengths, 2 and 1, say', 'it has rows and numbers beside each other', '')
    """
    if not isinstance(value, list | tuple) or depth > _DEEPEST:
        return ""
    rows = [each for each in value if isinstance(each, list | tuple)]
    if 0 < len(rows) < len(value) and all(np.isscalar(each) for each in value if not isinstance(each, list | tuple)):
        return "it has rows and numbers beside each other"
    for row in rows:
        if len(row) != len(rows[0]):
            return f"its rows are of different lengths, {len(rows[0])} and {len(row)}, say"
    return next(filter(None, (uneven(row, depth + 1) for row in rows)), "")


@contextmanager
def even(name: str, values: Iterable[Any]) -> Iterator[None]:
    """Say which argument NumPy could not make an array of, as its rows have different lengths."""
    try:
        yield
    except ValueError as error:
        if "inhomogeneous" in str(error):
            for value in values:
                if how := uneven(value):
                    raise ArgumentError(f"{name}: {reprlib.repr(value)} is no array: {how}") from error
        raise


@contextmanager
def refused_by(name: str, values: Iterable[Any] = ()) -> Iterator[None]:
    """Translate what Python or NumPy raise about the arguments of the function of this name: its `values`."""
    try:
        with even(name, values):
            yield
    except tuple(_REFUSALS) as error:
        if isinstance(error, ChunkflowError):
            raise
        kind = next(kind for theirs, kind in _REFUSALS.items() if isinstance(error, theirs))
        raise kind(f"{name}: {error}") from error

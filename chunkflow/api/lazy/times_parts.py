"""What an expression of times is made of: integers that count units, and the dtype that says which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.times_units import in_unit
from chunkflow.api.lazy.together import Together
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.nodes import Lazy, SourceNode
from chunkflow.stores import Source, array_of, is_labelled
from chunkflow.stores.checks import check_unmasked
from chunkflow.stores.times import NAT, counts_of

WAYS_OUT = "x.view('i8') is an expression of the integers (NaT is the lowest), x.astype(unit) one of other units"


class Times(Together):
    """An expression of integers, and the dtype of the times that they count."""

    __slots__ = ("_counts", "_dtype")
    storable = "x.view('i8'), or use x.to_zarr(path)"

    def __init__(self, counts: Array, dtype: Any) -> None:
        wanted = as_dtype(dtype).newbyteorder("=")
        if wanted.kind not in "mM":
            raise ArgumentTypeError(f"{wanted} is no dtype of times: give datetime64 or timedelta64 with a unit")
        if counts.dtype != np.dtype("i8"):
            raise ArgumentTypeError(f"integers of {counts.dtype} do not count times: x.astype({str(wanted)!r}) does")
        self._counts, self._dtype = counts, wanted

    @classmethod
    def of(cls, source: Any, dtype: np.dtype) -> Self | None:
        """The expression of a source of times; None if it is not read as integers."""
        counts = counts_of(source, dtype)
        return None if counts is None else cls(Array(SourceNode(counts)), dtype)

    def kept(self, counts: Any) -> Any:
        """Other counts of the same dtype, or lists of them."""
        if isinstance(counts, list | tuple):
            return type(counts)(self.kept(each) for each in counts)
        return type(self)(counts, self._dtype) if isinstance(counts, Array) else seen(counts, self._dtype)

    def parts(self) -> tuple[Array]:
        """The integers."""
        return (self._counts,)

    def assembled(self, results: Sequence[Any]) -> Any:
        """The array of times; without dimensions a scalar."""
        return seen(results[0], self._dtype)

    @property
    def shape(self) -> Shape:
        """Elements along each axis."""
        return self._counts.shape

    @property
    def dtype(self) -> np.dtype:
        """Whether they are datetime64 or timedelta64, and their unit."""
        found: np.dtype = self._dtype
        return found

    def __chunkflow_spec__(self) -> ArraySpec:
        self._refuse("the source of an operation")

    def __chunkflow_source__(self) -> Source:
        self._refuse("the source of an operation")

    def _refuse(self, what: str) -> NoReturn:
        raise ArgumentTypeError(f"{self!r} is not taken as {what}, which is of numbers: {WAYS_OUT}")


def seen(counts: Any, dtype: np.dtype) -> Any:
    """Integers in memory as the times that they count."""
    return np.asarray(counts).view(dtype)[()]


class Argument(NamedTuple):
    """An argument: an expression, or an array in memory, of numbers or of the counts of times; and its dtype.

    That of one of Python's numbers is its class, by which NumPy resolves dtypes.
    """

    values: Any
    dtype: Any

    @property
    def is_time(self) -> bool:
        """Whether it counts times."""
        return isinstance(self.dtype, np.dtype) and self.dtype.kind in "mM"

    def to(self, dtype: np.dtype) -> Any:
        """The values in another dtype, or unit."""
        if self.is_time:
            return in_unit(self.values, self.dtype, dtype)
        if dtype.kind in "mM":
            dtype = np.dtype("i8")
        return (
            self.values.astype(dtype) if isinstance(self.values, Array) else np.asarray(self.values).astype(dtype)[()]
        )


def operand(value: Any) -> Argument:
    """What an argument is.

    Raises
    ------
    ArgumentTypeError
        A text, which might mean a time: it is for NumPy to read; a masked array.
    UnsupportedError
        An array that is no expression, and not in memory.
    """
    if isinstance(value, Times):
        return Argument(value.parts()[0], value.dtype)
    if isinstance(value, Lazy):
        return Argument(value, Array(value._node).dtype)
    if is_labelled(value):
        raise UnsupportedError("labelled arrays beside expressions of times are not taken: give .data of them")
    check_unmasked(value)
    if hasattr(value, "shape") and not isinstance(value, np.ndarray | np.generic):
        raise UnsupportedError(f"a {type(value).__name__} beside times: give chunkflow.open(array), or one of NumPy's")
    if isinstance(value, bool):
        return Argument(value, np.dtype(bool))
    if type(value) is int and not NAT <= value < -NAT:
        raise ArgumentError(f"{value} is beyond what integers of 64 bits have")
    if type(value) in (int, float, complex):
        return Argument(value, type(value))
    if isinstance(value, date | timedelta):  # a datetime is a date
        try:
            value = np.asarray(value, "M8" if isinstance(value, date) else "m8")
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"{value!r} is not read as a time: {error}; np.datetime64('NaT') is missing"
            ) from None
    found = array_of(value)
    if found.dtype.kind in "mM":
        return Argument(
            found.astype(found.dtype.newbyteorder("="), copy=False).view("i8")[()], found.dtype.newbyteorder("=")
        )
    if found.dtype.kind not in "biufc":
        text = ": np.datetime64(text) makes a time of a text" if found.dtype.kind in "US" else ""
        raise ArgumentTypeError(f"{value!r} is no time and no number{text}")
    return Argument(found[()], found.dtype)


def same_unit(values: Sequence[Any]) -> tuple[list[Any], np.dtype]:
    """Counts of several arguments in the unit that NumPy takes for all of them, and the dtype.

    Raises
    ------
    ArgumentTypeError
        They do not go together: times and spans, or numbers beside them.
    """
    given = [operand(value) for value in values]
    dtypes = [np.dtype(each.dtype) for each in given]
    named = " and ".join(sorted(set(map(str, dtypes))))
    try:
        dtype = np.result_type(*dtypes)
    except (TypeError, OverflowError):
        raise ArgumentTypeError(f"{named} do not go together: {WAYS_OUT}") from None
    if len({each.kind for each in dtypes}) > 1:
        raise ArgumentTypeError(f"{named} do not go together: {WAYS_OUT}")
    return [each.to(dtype) for each in given], dtype


def time_of(value: Any, dtype: np.dtype) -> Any:
    """The counts of a time that goes among others of a dtype; an integer is one, as NumPy has it."""
    given = operand(value)
    kinds = (dtype.kind,) if given.is_time else ("i", "u")
    if np.dtype(given.dtype).kind not in kinds:
        raise ArgumentTypeError(f"{value!r} is none of {dtype}: give np.{dtype.type.__name__}(...)")
    return given.to(dtype)


def counts_in(value: Any) -> Any:
    """An argument with expressions of integers in the place of those of times, in lists too."""
    if isinstance(value, Times):
        return value.parts()[0]
    if isinstance(value, Mapping):
        return {key: counts_in(each) for key, each in value.items()}
    return type(value)(map(counts_in, value)) if type(value) in (list, tuple) else value


def has_times(value: Any) -> bool:
    """Whether an argument is an expression of times, or a list that holds one."""
    return isinstance(value, Times) or (isinstance(value, list | tuple) and any(map(has_times, value)))

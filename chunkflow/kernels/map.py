"""``map``: a function of aligned blocks. Arrays broadcast as in NumPy; axes may go, come or resize."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, shape_of
from chunkflow.core.nest import LoopNest, outputs_like
from chunkflow.errors import ResultError
from chunkflow.kernels.protocol import Kernel, Library, libraries_of
from chunkflow.kernels.twins import suited


@dataclass(frozen=True)
class MapKernel(Kernel):
    """The user's function with all its arguments but the blocks.

    Attributes
    ----------
    fn : callable
        The user's function.
    args : tuple
        Its positional arguments; `SLOT` stands where the next array's block goes.
    kwargs : mapping
        Its keyword arguments.
    axes : tuple
        For each dimension of its results the axis of the nest that it follows; None for a new one.
    dtypes : tuple of numpy.dtype
        Dtypes of its results, as far as they are known: one None before the trial call.
    chosen : bool
        Whether the user chose the function, which may be NumPy's.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = field(hash=False)
    kwargs: Mapping[str, Any] = field(hash=False)
    axes: tuple[int | None, ...]
    dtypes: tuple[np.dtype | None, ...] = (None,)
    chosen: bool = False
    wants: frozenset[str] = field(init=False)
    kinds: tuple[type, ...] = field(init=False)
    """Types of the positional arguments: 2 and 2.0 are equal, and what is computed with them is not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(map(type, self.args)))
        object.__setattr__(self, "wants", _named(self.fn, ("block_id", "block_info")) - set(self.kwargs))

    def __call__(
        self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, ...] | Any:
        given = iter(blocks)
        args = [next(given) if a is SLOT else a for a in self.args]
        extra: dict[str, Any] = {}
        if "block_id" in self.wants:
            extra["block_id"] = tuple(0 if a is None else index[a] for a in self.axes)
        if "block_info" in self.wants:
            extra["block_info"] = self._block_info(nest, grid, index, box)
        try:
            return suited(self.fn, args)(*args, **self.kwargs, **extra)
        except StopIteration as error:  # which generators that it passes on its way take for their end
            raise ResultError("fn raised StopIteration, as next() does of what has no more: catch it in fn") from error

    @property
    def libraries(self) -> frozenset[Library]:
        return libraries_of(self.fn)

    def shortened(self, nest: LoopNest, short: LoopNest) -> MapKernel | None:
        fn = self.fn.func if isinstance(self.fn, functools.partial) else self.fn
        return self if getattr(fn, "any_length", False) else None  # as our own say

    @property
    def tried_on_zeros(self) -> bool:
        return is_elementwise(self.fn) or self.fn is np.where or getattr(self.fn, "any_data", False)  # as our own say

    @property
    def data_independent(self) -> bool:
        return is_elementwise(self.fn) and not self.kwargs and all(issubclass(kind, _NUMBERS) for kind in self.kinds)

    @property
    def is_ufunc(self) -> bool:
        return isinstance(self.fn, np.ufunc)

    def informed(self, nest: LoopNest, dtypes: tuple[np.dtype, ...]) -> MapKernel:
        return replace(self, dtypes=dtypes)

    def _block_info(self, nest: LoopNest, grid: Grid, index: Shape, box: Region) -> dict[int | None, dict[str, Any]]:
        """As dask's ``map_blocks`` passes it: one entry for each array argument, and the entry None for the result.

        In the trial call, before the results are known, they are assumed to have their blocks' shape.
        """
        info: dict[int | None, dict[str, Any]] = {}
        places = [i for i, a in enumerate(self.args) if a is SLOT]
        for place, operand in zip(places, nest.operands, strict=True):
            info[place] = {
                "shape": operand.shape(nest.extents),
                "num-chunks": operand.shape(grid.counts),
                "array-location": [(s.start, s.stop) for s in operand.region(box)],
                "chunk-location": tuple(0 if a is None else index[a] for a in operand.axes),
            }
        outputs = nest.outputs or (outputs_like(self.axes, [None] * len(self.axes)),)
        results = [
            {
                "shape": out.shape(nest.extents),
                "num-chunks": tuple(1 if a is None else grid.counts[a] for a in self.axes),
                "array-location": [(s.start, s.stop) for s in out.region(box)],
                "chunk-location": tuple(0 if a is None else index[a] for a in self.axes),
                "chunk-shape": shape_of(out.region(box)),
                "dtype": dtype,
            }
            for out, dtype in zip(outputs, self.dtypes, strict=True)
        ]
        info[None] = results[0] if len(results) == 1 else {"outputs": results}
        return info


def is_elementwise(fn: Any) -> bool:
    """Whether a function is a compiled ufunc of single elements: its results depend on shapes and dtypes only.

    No other function is trusted, whatever module it names: ``np.diff`` resizes its block, ``np.frompyfunc`` calls the
    user's own function, and a decorator may pass for what it wraps.
    """
    return isinstance(fn, np.ufunc) and fn.signature is None and any("O" not in loop for loop in fn.types)


class _Slot(Enum):
    """Marks the place of an array among a function's arguments."""

    SLOT = "SLOT"


SLOT = _Slot.SLOT

_NUMBERS = _Slot, bool, int, float, complex, np.generic


def is_scalar(value: Any) -> bool:
    """Whether an argument is passed to the function as it is: a number or None, and no array."""
    return value is None or isinstance(value, bool | int | float | complex | np.generic)


def _named(fn: Callable[..., Any], names: tuple[str, ...]) -> frozenset[str]:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # ufuncs and some built-ins have no signature
        return frozenset()
    return frozenset(n for n in names if n in parameters)

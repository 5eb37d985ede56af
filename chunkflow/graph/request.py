"""A request: what an operation asks the engine to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.engine.options import Options
from chunkflow.errors import ResultError
from chunkflow.kernels.declare import Declare
from chunkflow.kernels.map import is_elementwise


@dataclass(frozen=True)
class Request:
    """An operation, its arrays, and how it runs.

    Attributes
    ----------
    declare : callable
        Declares the operation once the arrays' specs are known.
    arrays : sequence
        The operation's arguments: arrays, expressions and scalars.
    options : Options
        Outputs, budget, device, dtype and blocks.
    finish : callable, optional
        Turns the results into what the caller gets.
    is_view : bool
        Whether the result has the elements of the one array, so that an expression need not compute it.
    fn : callable, optional
        The user's own function, whose results are unknown before a trial call.
    shapes_only : bool
        Whether the declaration depends on the arrays' shapes only, and not on their dtypes.
    keeps : bool
        Whether an axis of a result that follows one of the array's has the same positions, so that its name and
        coordinates hold.
    beside : tuple
        Values that the caller gets after the result, as they are.
    results : int
        How many results an operation of ours gives.
    elementwise : bool
        Whether each element of the result depends on those at its place alone, whatever shape the arrays have.
    name : callable, optional
        Puts labels on what the caller gets, of labelled arrays, where `keeps` does not say all.
    several : callable, optional
        Given the options of a run, what makes the result of an expression by several passes where one does not fit;
        or None. It is called as the `run` of a `chunkflow.graph.nodes.MultiPassNode` that streams.
    """

    declare: Declare
    arrays: Sequence[Any]
    options: Options
    finish: Callable[[Any], Any] | None = None
    is_view: bool = False
    fn: Callable[..., Any] | None = None
    shapes_only: bool = False
    keeps: bool = False
    beside: tuple[Any, ...] = ()
    results: int = 1
    elementwise: bool = False
    name: Callable[[Any, Any], Any] | None = None
    several: Callable[[Options], Callable[..., Any] | None] = lambda _: None

    @property
    def number(self) -> int:
        """How many results it is said to give. A function of the user's own may give several where none says so."""
        if isinstance(self.options.dtype, tuple):
            return len(self.options.dtype)
        return self.fn.nout if isinstance(self.fn, np.ufunc | Stated) else self.results

    @property
    def is_known(self) -> bool:
        """Whether what the function does to shapes and dtypes is known, so that both can be found from ones."""
        return self.fn is None or is_elementwise(self.fn)


@dataclass(frozen=True)
class Stated:
    """A function of which it is said that it returns an array, or a tuple of `nout` arrays if that is more than one."""

    fn: Callable[..., Any]
    nout: int

    def __call__(self, *blocks: Any) -> Any:
        found = self.fn(*blocks)
        number = len(found) if isinstance(found, tuple) else 1
        if number != self.nout:
            raise ResultError(
                f"fn returned {number} arrays, and the call names the dimensions of {self.nout}: one for each"
            )
        return found

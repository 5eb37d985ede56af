"""A request: what an operation asks the engine to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.engine.options import Options
from chunkflow.kernels.declare import Declare


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

    @property
    def is_known(self) -> bool:
        """Whether the function is NumPy's or ours, so that its results' dtypes can be found from ones."""
        package = str(getattr(self.fn, "__module__", "")).partition(".")[0]
        return self.fn is None or isinstance(self.fn, np.ufunc) or package in ("numpy", "chunkflow")

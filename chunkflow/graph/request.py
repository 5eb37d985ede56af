"""An operation as it is asked for: how it is declared, its arrays, and its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.engine.options import Options
from chunkflow.kernels.declare import Declare


@dataclass(frozen=True)
class Request:
    """What is to be run: an operation's declaration, its arrays, and how.

    `finish` makes of the results what the caller gets. `is_view` says that they are the one array's own elements.
    `fn` is the user's own function, of which nobody knows what it gives, and `loose` says that the declaration asks for
    shapes alone. `keeps` says that a result's axis that follows one of the array's has its places, so that its name and
    coordinates hold. `beside` are values that the caller gets after the result, as they are.
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
        """Whether it is one of NumPy's operations or ours, which any elements will do for."""
        return self.fn is None or isinstance(self.fn, np.ufunc) or _root(self.fn) in ("numpy", "chunkflow")


def _root(fn: Any) -> str:
    """The package that a function is from."""
    return str(getattr(fn, "__module__", "")).partition(".")[0]

"""Functions of expressions' elements: NumPy's ufuncs, and those of its functions that are much the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chunkflow.declare import declare_map
from chunkflow.graph import Item, Lazy, Op, Request, first_lazy, interned, is_scalar, key_of
from chunkflow.passes import learn
from chunkflow.prepare import Options


def mapped(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The expression of a function of each place's elements; a tuple of them where a ufunc gives several."""
    arrays = [argument(a) for a in args]
    first = first_lazy(*arrays)
    assert first is not None
    name = getattr(fn, "__name__", type(fn).__name__)
    request = Request(declare_map(fn, kwargs), arrays, Options())
    node = interned(key_of(fn, args, kwargs), lambda: Op(request, name, learn))
    assert isinstance(node, Op)
    _ = node.declared
    number = fn.nout if isinstance(fn, np.ufunc) else 1
    if number == 1:
        return type(first)(node)
    return tuple(type(first)(interned((Item, node, i), lambda i=i: Item(node, i))) for i in range(number))  # type: ignore[misc]


def argument(value: Any) -> Any:
    """What an operation gets for an argument: an expression, a scalar, or a source."""
    if isinstance(value, Lazy) or is_scalar(value):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = np.asarray(value)
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value

"""Elementwise functions of expressions: NumPy's ufuncs and similar functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.engine.options import Options
from chunkflow.errors import ArgumentError, UnsupportedError, refused_by
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import Lazy, Node, first_lazy, key_of, node_of, remembered, source_of
from chunkflow.graph.request import Request
from chunkflow.graph.windows import windowed, windows_of
from chunkflow.kernels.declare import declare_map
from chunkflow.kernels.fusion.codegen import power
from chunkflow.kernels.map import is_elementwise, is_scalar
from chunkflow.kernels.twins import suited
from chunkflow.stores import array_of


def mapped(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The expression of an elementwise function; a tuple of them for a ufunc of several results.

    Arrays among the keyword arguments are cut into blocks like the others.
    """
    return applied(fn, args, kwargs, {})


def applied(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """As `mapped`. The keyword arguments in `whole`, arrays included, are passed to each call uncut.

    `fn` is elementwise. So it is known what it does to shapes, and only of a ufunc that calls Python one must see.
    """
    kwargs = {key: argument(value) if _is_array(value, fn) else value for key, value in kwargs.items()}
    named = [key for key, value in kwargs.items() if _is_array(value, fn)]
    work = _Named(fn, tuple(named)) if named else fn
    arrays = [argument(a) for a in (*args, *(kwargs[key] for key in named))]
    first = first_lazy(*arrays)
    if (slid := _of_windows(fn, args, kwargs, whole)) is not None:
        return remembered(slid, applied, (fn, tuple(args), kwargs, dict(whole)), {}, arrays)
    name = getattr(fn, "__name__", type(fn).__name__)
    if first is None:
        raise UnsupportedError(f"{name}: none of its arrays is an expression: chunkflow.open makes one of an array")
    rest = {key: value for key, value in kwargs.items() if key not in named} | dict(whole)
    own = fn if isinstance(fn, np.ufunc) and not is_elementwise(fn) else None
    request = Request(declare_map(work, rest), arrays, Options(), fn=own, shapes_only=True, elementwise=True)
    node = op_node(request, name, key_of(fn, args, {**kwargs, **whole}))
    if own is not None:  # what the user's function raises is his
        node.check()
    else:
        with refused_by(name):
            node.check()
    if fn in (np.power, power):
        _check_exponents(node, arrays[1])
    number = fn.nout if isinstance(fn, np.ufunc) else 1
    kind = type(first)
    result = kind(node) if number == 1 else tuple(kind(node.item(i)) for i in range(number))
    return remembered(result, applied, (fn, tuple(args), kwargs, dict(whole)), {}, arrays)


def _check_exponents(result: Node, exponent: Any) -> None:
    """Refuse negative exponents of integers that are in memory: others are refused when they are computed."""
    known = source_of(node_of(exponent)) if isinstance(exponent, Lazy) else exponent
    if type(known) is not np.ndarray or result.spec.dtype.kind not in "iu" or not result.spec.size * known.size:
        return
    if (least := known.min()) < 0:
        raise ArgumentError(
            f"integers to the power {least}: integers to negative integer powers are not allowed; x.astype(float) first"
        )


def _of_windows(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], whole: Mapping[str, Any]
) -> Any:
    """The windows of an elementwise function, where all its arrays are windows alike; None where they are not.

    An array without dimensions is the same for each window.
    """
    given = (*args, *kwargs.values())
    values = [v for v in given if not is_scalar(v) and _is_array(v, fn) and getattr(v, "ndim", None) != 0]
    found = [windows_of(value) for value in values]
    if not found or len({None if f is None else (f[0].shape, f[1]) for f in found}) > 1 or found[0] is None:
        return None
    origins = {id(value): type(value)(f[0]) for value, f in zip(values, found, strict=True) if f is not None}
    own = [origins.get(id(a), a) for a in args]
    named = {key: origins.get(id(value), value) for key, value in kwargs.items()}
    result = applied(fn, own, named, whole)
    windows = found[0][1]
    if isinstance(result, tuple):
        return tuple(type(each)(windowed(node_of(each), windows)) for each in result)
    return type(result)(windowed(node_of(result), windows))


@dataclass(frozen=True)
class _Named:
    """A function whose last positional arguments are passed on by name."""

    fn: Callable[..., Any]
    names: tuple[str, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        count = len(args) - len(self.names)
        fn = suited(self.fn, args)
        return fn(*args[:count], **dict(zip(self.names, args[count:], strict=True)), **kwargs)


def _is_array(value: Any, fn: Callable[..., Any]) -> bool:
    """Whether a keyword argument of a function is an array, to be cut into blocks."""
    if isinstance(value, type) or is_scalar(value):  # NumPy's types and scalars have a shape and a dtype too
        return False
    if isinstance(value, list | tuple):
        return not isinstance(fn, np.ufunc)  # for a ufunc it is the signature
    return isinstance(value, Lazy) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def argument(value: Any) -> Any:
    """An expression, a scalar or a source, as operations take it. Text could be a path: it is an `UnsupportedError`."""
    if isinstance(value, str | bytes | os.PathLike):
        raise UnsupportedError(f"{value!r} is no number and no array: chunkflow.open opens what lies under a path")
    if isinstance(value, np.datetime64 | np.timedelta64):
        raise UnsupportedError(f"{value!r} is no number: beside it chunkflow.open makes an expression of times")
    if isinstance(value, Lazy) or is_scalar(value):
        return value
    if isinstance(value, Sequence):
        value = array_of(value)
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value

"""Generalized ufuncs of expressions: NumPy's own, and those of other libraries, as numbagg's ``ffill``.

A block has the axes of their signature whole.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from chunkflow.api.core_axes import loops_of
from chunkflow.api.lazy.numpy_functions import moveaxis
from chunkflow.api.operation import Options, Request, op_node
from chunkflow.errors import ArgumentError, UnsupportedError
from chunkflow.graph.elementwise import argument
from chunkflow.graph.nodes import first_lazy
from chunkflow.kernels.declare import declare_blockwise
from chunkflow.kernels.map import is_scalar
from chunkflow.stores import spec_of


def generalized(fn: np.ufunc, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a generalized ufunc of one result gives of expressions; ``axis=`` as NumPy's."""
    taken, (given, *more) = ([_names(side) for side in re.findall(r"\((.*?)\)", part)] for part in _sides(fn))
    if more or options.keys() - {"axis"}:
        raise UnsupportedError(
            f"np.{fn.__name__} of an expression supports one result, and no argument but axis=: use "
            "chunkflow.apply_gufunc for more"
        )
    axis = options.get("axis", -1)
    if axis != -1 and any(len(names) > 1 for names in (*taken, given)):
        raise ArgumentError(
            f"np.{fn.__name__}: axis={axis} is for signatures with one axis for each array, not {fn.signature}: leave "
            "it out, and move the axes with np.moveaxis"
        )
    pairs: list[Any] = []
    dtypes: list[Any] = []
    lengths: dict[str, int] = {}
    loops = 0
    for value, names in zip(inputs, taken, strict=True):
        array = argument(value)
        if is_scalar(array):
            pairs += [array, None]
            dtypes.append(type(array) if isinstance(array, int | float | complex) else np.asarray(array).dtype)
            continue
        array = moveaxis(array, axis, -1) if names and axis != -1 else array
        spec = spec_of(array)
        own = len(spec.shape) - len(names)
        if own < 0:
            raise ArgumentError(
                f"np.{fn.__name__}: an array has {len(spec.shape)} dimensions, and needs at least {len(names)} for the "
                f"signature {fn.signature}"
            )
        lengths |= dict(zip(names, spec.shape[own:], strict=True))
        loops = max(loops, own)
        pairs += [array, (*loops_of(own), *(("core", name) for name in names))]
        dtypes.append(spec.dtype)
    new: dict[Hashable, int] = {("result", name): lengths[name] for name in given if name in lengths}
    if len(new) < len(given):
        raise UnsupportedError(
            f"np.{fn.__name__} of an expression: the length of its result is not known; compute() the expression first"
        )
    dtype = None
    if isinstance(fn, np.ufunc):  # numba's are no more than like one
        try:
            dtype = fn.resolve_dtypes((*dtypes, None))[-1]
        except TypeError as error:
            raise ArgumentError(f"np.{fn.__name__}: {error}") from None
    declare, arrays = declare_blockwise(fn, {}, (*loops_of(loops), *new), pairs, None, new)
    node = op_node(Request(declare, arrays, Options(dtype=dtype), fn=fn, shapes_only=True), fn.__name__)
    node.check()
    kind: Any = type(first_lazy(*inputs))
    return moveaxis(kind(node), -1, axis) if given and axis != -1 else kind(node)


def _sides(fn: np.ufunc) -> list[str]:
    assert fn.signature is not None
    return fn.signature.replace(" ", "").split("->")


def _names(side: str) -> list[str]:
    return [name.rstrip("?") for name in side.split(",") if name]

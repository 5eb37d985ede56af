"""Functions of blocks that have their last axes whole, as the core axes of generalized ufuncs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from chunkflow.api.operation import Options, Request, op_node
from chunkflow.graph.nodes import first_lazy, remembered
from chunkflow.kernels.declare import declare_blockwise
from chunkflow.stores import spec_of


def whole_axes(
    fn: Any, name: str, inputs: Sequence[tuple[Any, Sequence[str]]], lengths: Sequence[int], dtype: Any
) -> Any:
    """The expression of a function of blocks that have their last axes whole.

    Parameters
    ----------
    fn : callable
        Is given a block of each array, and makes one that has axes of its own last.
    name : str
        Name of the expression.
    inputs : sequence of (array, sequence of str)
        Arrays, each with names of its last axes; axes of one name are as long. The others broadcast.
    lengths : sequence of int
        Lengths of the result's own axes.
    dtype : dtype
        Its dtype.
    """
    loops = [len(spec_of(array).shape) - len(names) for array, names in inputs]
    pairs: list[Any] = []
    for (array, names), own in zip(inputs, loops, strict=True):
        pairs += [array, (*loops_of(own), *(("core", axis) for axis in names))]
    new: dict[Hashable, int] = {("result", number): n for number, n in enumerate(lengths)}
    declare, arrays = declare_blockwise(fn, {}, (*loops_of(max(loops)), *new), pairs, None, new)
    node = op_node(Request(declare, arrays, Options(dtype=dtype), fn=fn, shapes_only=True), name)
    node.check()
    kind: Any = type(first_lazy(*arrays))
    given = (fn, name, tuple(inputs), tuple(lengths), dtype)
    return remembered(kind(node), whole_axes, given, {}, [array for array, _ in inputs])


def loops_of(number: int) -> tuple[Hashable, ...]:
    """Names of the axes that are not in the signature, counted from the last one."""
    return tuple(("loop", n) for n in range(number, 0, -1))

"""Nodes of arrays that are made where they are needed, and read from nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.engine.options import Options
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import Lazy, OpNode, SourceNode, remembered
from chunkflow.graph.request import Request
from chunkflow.kernels.create import declare_line
from chunkflow.kernels.declare import declare_broadcast

_NOTHING = Lazy(SourceNode(np.zeros((), np.uint8)))
"""The operand of what reads nothing."""

INT64 = np.dtype(np.int64)
"""The dtype of places."""


def line(start: int, number: int, step: int, dtype: np.dtype) -> OpNode:
    """The node of `number` integers from `start` on, `step` apart, of a dtype that has each exactly."""
    request = Request(declare_line(start, number, step, dtype), [_NOTHING], Options(), shapes_only=True)
    return op_node(request, "arange", ("line", start, number, step, dtype.str))


def constant(shape: Shape, number: np.ndarray) -> OpNode:
    """The node of an array of this shape of one number, which is an array without dimensions."""
    request = Request(declare_broadcast(shape), [Lazy(SourceNode(number))], Options(), shapes_only=True)
    return op_node(request, "full", ("constant", shape, number.dtype.str, number.tobytes()))


def integers(kind: type[Any], start: int, number: int, step: int = 1, dtype: np.dtype = INT64) -> Any:
    """The expression of a `line`, of a kind of arrays."""
    return remembered(kind(line(start, number, step, dtype)), integers, (kind, start, number, step, dtype), {}, ())


def filled(kind: type[Any], shape: Shape, number: np.ndarray) -> Any:
    """The expression of a `constant`, of a kind of arrays."""
    return remembered(kind(constant(shape, number)), filled, (kind, shape, number), {}, ())

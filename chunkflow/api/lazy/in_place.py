"""Operators in place: they give a name another expression, which has the shape and the dtype of the one before."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.api.compound import Compound
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.nodes import Lazy, Node, node_of

Operator = Callable[[Any, Any], Any]


def _in_place(operation: Operator, sign: str) -> Operator:
    """Python's operator ``x += y`` of an expression, say, by ``x + y``: what NumPy refuses to write to `x` is refused.

    Raises
    ------
    ArgumentError
        The result has another shape.
    ArgumentTypeError
        It has a dtype that cannot be cast to that of `x` by the rule "same_kind".
    """

    def method(self: Any, other: Any) -> Any:
        found = operation(self, other)
        if not _is_expression(found):  # the other operand has its own operators
            return found
        shape, own = _node(found).shape, _node(self).shape
        if shape != own:
            raise ArgumentError(
                f"x {sign}= y of shape {own} would have the shape {shape}, and x keeps its own: x = x {sign} y gives "
                "the name another array"
            )
        if not np.can_cast(found.dtype, self.dtype, "same_kind"):
            raise ArgumentTypeError(
                f"x {sign}= y of {self.dtype} would have {found.dtype}, which is not cast to {self.dtype} by the rule "
                f"'same_kind': x = x {sign} y gives the name another array"
            )
        return found if found.dtype == self.dtype else found.astype(self.dtype)

    return method


def _is_expression(x: Any) -> bool:
    return isinstance(x, Lazy | Compound)


def _node(x: Any) -> Node:
    return node_of(x.parts()[0] if isinstance(x, Compound) else x)


class InPlace:
    """Has Python's operators in place."""

    __slots__ = ()

    __iadd__, __isub__ = _in_place(operator.add, "+"), _in_place(operator.sub, "-")
    __imul__, __imatmul__ = _in_place(operator.mul, "*"), _in_place(operator.matmul, "@")
    __itruediv__, __ifloordiv__ = _in_place(operator.truediv, "/"), _in_place(operator.floordiv, "//")
    __imod__, __ipow__ = _in_place(operator.mod, "%"), _in_place(operator.pow, "**")
    __ilshift__, __irshift__ = _in_place(operator.lshift, "<<"), _in_place(operator.rshift, ">>")
    __iand__, __ior__, __ixor__ = (
        _in_place(operator.and_, "&"),
        _in_place(operator.or_, "|"),
        _in_place(operator.xor, "^"),
    )

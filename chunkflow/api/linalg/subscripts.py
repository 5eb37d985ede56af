"""Subscripts of `numpy.einsum` in all its forms, as text in which no index comes twice in one array."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.nodes import Lazy, Node, SourceNode, node_of, remembered, source_of
from chunkflow.graph.slicing import pointed
from chunkflow.stores import spec_of


def from_lists(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Subscripts as text, and the arrays: of text and arrays, or of arrays that are each followed by its indices.

    >>> from_lists((np.ones((2, 3)), [0, 1], np.ones(3), [1], [0]))[0]
    'AB,B->A'
    """
    if operands and isinstance(operands[0], str):
        return operands[0], list(operands[1:])
    *pairs, result = operands if len(operands) % 2 else (*operands, None)
    arrays, lists = pairs[::2], pairs[1::2]
    if any(not isinstance(each, list | tuple) for each in (*lists, result or ())):
        raise ArgumentTypeError('np.einsum: give text such as "ij,jk->ik", or after each array the list of its indices')
    named = [index for each in (*lists, result or ()) for index in each if index is not Ellipsis]
    if any(isinstance(index, bool) or not isinstance(index, int | np.integer) for index in named):
        raise ArgumentTypeError("np.einsum: indices in lists are ints, and Ellipsis")
    if len(known := sorted(set(map(int, named)))) > 52:
        raise ArgumentError(f"np.einsum: {len(known)} different indices, and there may be 52")
    letters = dict(zip(known, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", strict=False))

    def text(indices: Any) -> str:
        return "".join("..." if index is Ellipsis else letters[int(index)] for index in indices)

    joined = ",".join(map(text, lists))
    return joined if result is None else f"{joined}->{text(result)}", list(arrays)


def without_repeats(subscripts: str, arrays: Sequence[Any]) -> tuple[str, list[Any]]:
    """Subscripts and arrays in which a diagonal takes the place of two axes with one name."""
    sides = subscripts.replace(" ", "").split("->")
    terms = sides[0].split(",")
    if len(terms) != len(arrays):  # which is refused
        return subscripts, list(arrays)
    pairs = [_once(term, array) for term, array in zip(terms, arrays, strict=True)]
    if len(sides) == 1 and any(term != own for term, (own, _) in zip(terms, pairs, strict=True)):
        letters = [letter for letter in sides[0] if letter.isalpha()]
        dots = "..." if "..." in sides[0] else ""
        sides.append(dots + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1)))
    return "->".join([",".join(own for own, _ in pairs), *sides[1:]]), [array for _, array in pairs]


def _once(term: str, array: Any) -> tuple[str, Any]:
    """A term in which no index comes twice, and the array: a diagonal takes the place of two axes with one name."""
    names = re.findall(r"\.\.\.|.", term)
    if all(name == "..." or names.count(name) == 1 for name in names):
        return term, array
    while (twice := next((name for name in names if name != "..." and names.count(name) > 1), None)) is not None:
        places = [place for place, name in enumerate(names) if name == twice][:2]
        one, other = (place - len(names) if "..." in names[:place] else place for place in places)
        shape = spec_of(array).shape
        letters = len([name for name in names if name != "..."])
        if letters > len(shape) or (letters < len(shape) and "..." not in names):  # which is refused
            return term, array
        if shape[one] != shape[other]:
            raise ArgumentError(f"einsum: index {twice!r} of {term!r} has the lengths {shape[one]} and {shape[other]}")
        array = _diagonal(array, one % len(shape), other % len(shape))
        names = [name for place, name in enumerate(names) if place not in places] + [twice]  # which is the last axis
    return "".join(names), array


def _diagonal(array: Any, one: int, other: int) -> Any:
    """The diagonal of an array, as its last axis: of one that is not in memory, a view that reads it."""
    if isinstance(array, Lazy):
        return diagonal_of(array, one, other)
    if isinstance(array, np.ndarray):
        return np.diagonal(array, 0, one, other)
    return source_of(_diagonal_node(SourceNode(array), one, other, 0))


def diagonal_of(x: Any, one: int, other: int, offset: int = 0) -> Any:
    """A diagonal of an expression along two axes, as the last axis. Chunks that hold no element of it are not read."""
    found = type(x)(_diagonal_node(node_of(x), one, other, offset))
    return remembered(found, diagonal_of, (x, one, other, offset), {}, ())


def _diagonal_node(node: Node, one: int, other: int, offset: int) -> Node:
    before, after = max(-offset, 0), max(offset, 0)
    places = np.arange(max(min(node.shape[one] - before, node.shape[other] - after), 0))
    pairs = sorted([(one, places + before), (other, places + after)], key=lambda pair: pair[0])
    points = np.stack([along for _, along in pairs])
    return pointed(node, [axis for axis, _ in pairs], points, len(node.shape) - 2)

"""Slices of expressions: axes that no array has, and expressions that are sliced at every step."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.devices import same

import chunkflow as cf
from chunkflow.graph.nodes import Node, OpNode

VECTOR, OTHER = np.arange(4.0), np.arange(3.0)


def _outer(a: Any, b: Any) -> Any:
    return a[:, None] * b[None]


def _twice(a: Any) -> Any:
    return np.stack([a] * 2)


# -- Axes that come from no array ------------------------------------------------------------------------------------

WIDER: dict[str, Callable[[Any, Any], Any]] = {
    "a new axis": lambda v, w: v[None],
    "two of them": lambda v, w: v[None, :, None][..., 0],
    "the last": lambda v, w: w[:, None],
    "a sum's": lambda v, w: v.sum()[None, None],
    "a mean's": lambda v, w: v[None].mean(axis=0, keepdims=True),
    "a function of it": lambda v, w: np.where(np.sqrt(v[None]) > 1, 1, 2),
    "one of several results": lambda v, w: np.modf(v[None] / 2)[1],
    "transposed": lambda v, w: v[None].T,
    "at least two": lambda v, w: np.atleast_2d(v),
    "stretched": lambda v, w: np.broadcast_to(v, (3, 4)),
    "stretched to one": lambda v, w: np.broadcast_to(v, (1, 4)),
    "a stretched scalar": lambda v, w: np.broadcast_to(v.sum(), (2, 3)),
    "repeated": lambda v, w: np.repeat(v[None], 3, axis=0),
    "stacked": lambda v, w: np.stack([v, v]),
    "an outer product": lambda v, w: np.outer(w, v),
    "one of elements": lambda v, w: w[:, None] * v[None],
    "where": lambda v, w: np.where(w[:, None] > 1, v, 2.0),
}
CUTS = [slice(None), slice(1, None), slice(0, 0), slice(None, None, -1), slice(0, 1)]


@pytest.mark.parametrize("make", WIDER.values(), ids=WIDER)
def test_axes_that_no_array_has(make: Callable[[Any, Any], Any]) -> None:
    lazy, array = make(cf.open(VECTOR), cf.open(OTHER)), make(VECTOR, OTHER)
    for index in list(itertools.product(CUTS, repeat=2))[::2]:
        for got, expected in (
            (lazy[index], array[index]),
            (lazy[index].sum(), array[index].sum()),
            ((lazy[index] + 1)[::-1, ..., None][..., 1:], (array[index] + 1)[::-1, ..., None][..., 1:]),
        ):
            assert got.shape == expected.shape
            same(got.compute(device="cpu"), expected)


@pytest.mark.parametrize("rows", CUTS, ids=str)
def test_axes_of_functions_of_blocks(rows: slice) -> None:
    v, w = cf.open(VECTOR), cf.open(OTHER)
    for got, expected in (
        (cf.blockwise(_outer, "ij", w, "i", v, "j"), np.outer(OTHER, VECTOR)),
        (cf.blockwise(_twice, "ij", v, "j", new_axes={"i": 2}), np.stack([VECTOR] * 2)),
        (cf.map(lambda a: a[None], v, new_axis=0), VECTOR[None]),
        (cf.map(lambda a: a + 1, v[None]), VECTOR[None] + 1),
    ):
        same(got[rows, 1:].compute(device="cpu"), expected[rows, 1:])


def test_parts_of_a_new_axis() -> None:
    x = cf.open(VECTOR)
    assert [part.shape for part in np.array_split(x[None], 3, axis=0)] == [(1, 4), (0, 4), (0, 4)]
    assert cf.open(np.ones((1, 5)))[..., None][..., 1:].sum().compute(device="cpu") == 0
    same((x[None][1:] + np.ones((1, 4))).compute(device="cpu"), np.ones((0, 4)))


# -- What is sliced at every step ------------------------------------------------------------------------------------


def heat(u: Any, steps: int) -> Any:
    """An explicit scheme of three points."""
    for _ in range(steps):
        u = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u


def heat_2d(u: Any, steps: int) -> Any:
    """One of five."""
    for _ in range(steps):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u = u[1:-1, 1:-1] + 0.1 * (around - 4 * u[1:-1, 1:-1])
    return u


def below(node: Node) -> set[Node]:
    """A node and all that it is made of."""
    found, stack = set(), [node]
    while stack:
        this = stack.pop()
        if this not in found:
            found.add(this)
            stack += this.inputs
    return found


def test_schemes_of_many_steps() -> None:
    array = np.random.default_rng(0).random(1000)
    lazy = heat(cf.open(array), 30)
    # Of each step as many regions as there are shifts: 5 operations and a slice of the source for each.
    assert len(below(lazy._node)) < 5 * 30 * 31
    same(lazy.compute(device="cpu"), heat(array, 30))
    flat = np.random.default_rng(1).random((40, 50))
    same(heat_2d(cf.open(flat), 8).compute(device="cpu"), heat_2d(flat, 8))
    same(heat_2d(cf.open(flat), 3).compute(device="cpu", budget=30_000), heat_2d(flat, 3))


def test_schemes_in_between_are_not_sliced() -> None:
    u = cf.open(np.ones(1000))
    gc.collect()
    before = sum(isinstance(o, OpNode) for o in gc.get_objects())
    for _ in range(20):
        u = heat(u, 1)
    # The 5 operations of each step, and 3 slices of the one before.
    assert sum(isinstance(o, OpNode) for o in gc.get_objects()) - before <= 8 * 20


INDICES: list[Any] = [
    slice(1, None), slice(None, -1), slice(None, None, -1), slice(1, None, 2), slice(-2, 0, -2), slice(3, 3), 2,
    (..., -1), (None, slice(1, None)), (slice(None), None, slice(2, None)), (slice(None), slice(None, None, -3)),
]  # fmt: skip


@pytest.mark.parametrize("first", INDICES, ids=str)
def test_slices_of_slices_of_expressions(first: Any) -> None:
    array = np.random.default_rng(0).random((7, 8, 6))
    x = cf.open(array)
    for then, last in itertools.product(INDICES, INDICES[:3]):
        for lazy, expected in (
            (x * 2 + x[:, :1], array * 2 + array[:, :1]),
            (divmod(x, 0.25)[1], divmod(array, 0.25)[1]),
            (np.broadcast_to(x[0], (7, 8, 6)), np.broadcast_to(array[0], (7, 8, 6))),
        ):
            try:
                wanted = expected[first][then][last]
            except IndexError:
                continue
            got = lazy[first][then][last]
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            if last == INDICES[2]:
                same(got.compute(device="cpu"), wanted)


def test_the_same_elements_are_one_node() -> None:
    x = cf.open(np.arange(24.0).reshape(4, 6))
    y, (whole, rest) = x + 1, divmod(x, 2.0)
    for some in (x, y, whole, rest, np.broadcast_to(x, (3, 4, 6)), x[:, None], x.cumsum(0)):
        assert some[1:][:-1]._node is some[:-1][1:]._node
        assert some[::-1][::-1]._node is some._node
        assert some[::2][:0]._node is some[1:1]._node
        assert some[2:][::-1][-1:]._node is some[2:3]._node
        assert some[1:][0]._node is some[1]._node


def test_slices_are_tried_as_what_they_are_of() -> None:
    tried = []

    def work(block: Any) -> Any:
        tried.append(block.shape)
        return block.astype("f4")

    y = cf.open(np.arange(20.0)).map(work)
    assert y[3:].dtype == "f4"
    count = len(tried)
    assert {y[i:].dtype for i in range(10)} == {np.dtype("f4")}
    assert len(tried) == count


def test_slices_keep_nothing() -> None:
    x = cf.open(np.ones(9))
    y = np.sqrt(x)
    gone = weakref.ref(y._node), weakref.ref((y[1:] + y[:-1])._node)
    some = y[1:][:-1]
    some.compute(device="cpu")
    gc.collect()
    assert gone[0]() is not None
    assert gone[1]() is None
    del y, some
    gc.collect()
    assert gone[0]() is None

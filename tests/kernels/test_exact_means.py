"""Means of counts of time are those of Python's integers, of blocks in any layout, compiled or not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from chunkflow.core.grid import whole
from chunkflow.kernels.reductions import double_sums, exact_means

NAT = -(1 << 63)
EDGES = [NAT, NAT + 1, -(1 << 32), -1, 0, 1, (1 << 32) - 1, 1 << 32, -NAT - 1]

Block = tuple[np.ndarray, tuple[int, ...]]


@pytest.fixture(autouse=True, params=["compiled", "NumPy"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST", 1), ("SHORT", 1), ("PER_CALL", 0), ("BETWEEN", 0)):
        monkeypatch.setattr(double_sums, name, value)
    if request.param == "NumPy":
        for module in (double_sums, exact_means):
            monkeypatch.setattr(module, "loops", None)
    elif double_sums.loops is None:
        pytest.skip("the loops were not built")


def exact(x: np.ndarray, axes: tuple[int, ...], *, skip: bool, where: Any = True) -> np.ndarray:
    """Means by Python's integers."""
    kept = [a for a in range(x.ndim) if a not in axes]
    order = (*kept, *axes)
    shape = [x.shape[a] for a in kept]
    lines = x.transpose(order).reshape(math.prod(shape), -1)
    wanted = np.broadcast_to(where, x.shape).transpose(order).reshape(lines.shape)
    found = [_exact([int(c) for c in line[taken]], skip) for line, taken in zip(lines, wanted, strict=True)]
    return np.array(found, "i8").reshape([1 if a in axes else n for a, n in enumerate(x.shape)])


def _exact(counts: list[int], skip: bool) -> int:
    present = [c for c in counts if c != NAT]
    if not present or (len(present) < len(counts) and not skip):
        return NAT
    total = sum(present)
    return abs(total) // len(present) * (1 if total > 0 else -1)


def streamed(x: np.ndarray, axes: tuple[int, ...], *, skip: bool, where: Any = None, parts: int = 1) -> np.ndarray:
    """Means of a block that comes in parts along its first axis that is reduced."""
    how = exact_means.mean(math.prod(x.shape[a] for a in axes), skip=skip, masked=where is not None)
    blocks = [np.array_split(x, parts, axes[0])]
    if where is not None:
        blocks.append(np.array_split(np.broadcast_to(where, x.shape), parts, axes[0]))
    first, *rest = [how.chunk(*part, axes, whole(part[0].shape)) for part in zip(*blocks, strict=True)]
    for one in rest:
        first = how.merge(first, one)
    found = how.aggregate(*first)
    assert found.dtype == np.dtype("i8")
    return np.asarray(found)


@st.composite
def blocks(draw: Any) -> Block:
    """Blocks with axes in any order in memory, with gaps and without, and axes along which they are reduced."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 33]), min_size=1, max_size=3))
    shape[-1] = draw(st.sampled_from([shape[-1], 1025])) if len(shape) < 3 else shape[-1]
    gaps = [draw(st.integers(0, 2)) for _ in shape]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    least, most = draw(st.sampled_from([(NAT, -NAT - 1), (-9, 9), (-NAT - 99, -NAT - 1), (NAT + 1, NAT + 99)]))
    held = rng.integers(least, most, [n + gap for n, gap in zip(shape, gaps, strict=True)], endpoint=True)
    edges = rng.random(held.shape) < draw(st.sampled_from([0, 0.01, 0.5]))
    held[edges] = rng.choice(np.array(EDGES[draw(st.integers(0, 1)) :], "i8"), edges.sum())
    x = held[tuple(slice(0, n) for n in shape)].transpose(draw(st.permutations(range(len(shape)))))
    axes = draw(st.sets(st.integers(0, x.ndim - 1), min_size=1))
    return x.astype(draw(st.sampled_from(["<i8", ">i8"]))) if draw(st.booleans()) else x, tuple(sorted(axes))


@given(blocks(), st.booleans(), st.integers(1, 3), st.booleans())
@settings(max_examples=examples(2), deadline=None)
def test_as_pythons_integers(block: Block, skip: bool, parts: int, masked: bool) -> None:
    x, axes = block
    where = np.random.default_rng(x.size).random(x.shape) < 0.7 if masked else None
    found = streamed(x, axes, skip=skip, where=where, parts=parts)
    np.testing.assert_array_equal(found, exact(x, axes, skip=skip, where=True if where is None else where))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("value", EDGES[1:])
def test_sums_that_no_integer_holds(value: int, axes: tuple[int, ...], order: Any) -> None:
    x = np.full((70, 1030), value, "i8", order)
    np.testing.assert_array_equal(streamed(x, axes, skip=False, parts=3), value)
    x[3, 5] = NAT
    found = streamed(x, axes, skip=False)
    lost = np.zeros(x.shape, bool)
    lost[3, 5] = True
    np.testing.assert_array_equal(found == NAT, lost.any(axis=axes, keepdims=True))
    np.testing.assert_array_equal(streamed(x, axes, skip=True, parts=2), value)


@pytest.mark.parametrize("sums", [(-7, 0), (-1, 0, 0), (1, 0, 0), (7, -9), (NAT + 1, -1, -1)])
def test_quotients_are_rounded_towards_zero(sums: tuple[int, ...]) -> None:
    x = np.tile(np.array(sums, "i8"), (40, 1))
    np.testing.assert_array_equal(streamed(x, (1,), skip=False), exact(x, (1,), skip=False))


def test_where_there_is_none() -> None:
    nothing = np.empty((0, 3), "i8")
    np.testing.assert_array_equal(streamed(nothing, (0,), skip=True), [[NAT] * 3])
    assert streamed(nothing, (1,), skip=False).shape == (0, 1)
    none = np.full((4, 30), NAT)
    for skip in (False, True):
        np.testing.assert_array_equal(streamed(none, (0,), skip=skip), np.full((1, 30), NAT))
    x = np.arange(60).reshape(2, 30)
    np.testing.assert_array_equal(streamed(x, (0,), skip=False, where=np.zeros((2, 30), bool)), np.full((1, 30), NAT))


def test_sums_of_more_than_32_bits_of_elements_are_made_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(5).integers(NAT, -NAT - 1, (9, 5, 40), endpoint=True)
    monkeypatch.setattr(exact_means, "AT_ONCE", 16)
    for axes in ((0,), (1, 2), (0, 1, 2)):
        np.testing.assert_array_equal(streamed(x, axes, skip=False), exact(x, axes, skip=False))


def test_as_many_as_there_may_be() -> None:
    """The parts of a sum of nearly 2^40 elements, each of which is the same."""
    most = exact_means.MOST - 1
    for value in EDGES[1:]:
        low, high, _ = exact_means._sums(np.array([value]), (0,))
        total = (int(low[0]) + (int(high[0]) << 64)) * most
        parts = [np.array([part], "u8") for part in (total % (1 << 64), total >> 64)]
        found = exact_means.mean(most, skip=False).aggregate(*parts, np.array([most]))
        np.testing.assert_array_equal(found, [value])

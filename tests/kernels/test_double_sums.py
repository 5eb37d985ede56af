"""Sums by compiled loops are those of NumPy in double precision, of blocks in any layout."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from support.examples import examples

from chunkflow.kernels.reductions import double_sums

pytestmark = pytest.mark.skipif(double_sums.loops is None, reason="the loops were not built")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST", 1), ("SHORT", 1), ("PER_CALL", 0), ("BETWEEN", 0)):
        monkeypatch.setattr(double_sums, name, value)


@st.composite
def blocks(draw: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """Blocks with axes in any order in memory, with gaps and without, and axes along which they are reduced."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 33]), min_size=1, max_size=4))
    shape[-1] = draw(st.sampled_from([shape[-1], 1025, 4097])) if len(shape) < 3 else shape[-1]
    gaps = [draw(st.integers(0, 2)) for _ in shape]
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sides = [(n - 1) * step + 1 + gap for n, step, gap in zip(shape, steps, gaps, strict=True)]
    whole = rng.standard_normal(sides) + 3
    dtype = draw(st.sampled_from(["f4", "f8", "c8"]))
    whole = (whole + 1j * rng.standard_normal(sides) if dtype == "c8" else whole).astype(dtype)
    x = whole[tuple(slice(0, (n - 1) * step + 1, step) for n, step in zip(shape, steps, strict=True))]
    x = x.transpose(draw(st.permutations(range(len(shape)))))
    axes = draw(st.sets(st.integers(0, x.ndim - 1), min_size=1))
    return x, tuple(sorted(axes))


@given(blocks())
@settings(max_examples=examples(2), deadline=None)
def test_as_numpy(block: tuple[np.ndarray, tuple[int, ...]]) -> None:
    x, axes = block
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    means = wide.mean(axis=axes, keepdims=True)
    if (found := double_sums.summed(x, axes)) is not None:
        np.testing.assert_allclose(found, wide.sum(axis=axes, keepdims=True), rtol=1e-13)
        assert (found.shape, found.dtype) == (means.shape, wide.dtype)
    if x.dtype.kind == "c":
        return
    for off in (False, True):
        sums = double_sums.centred(x, means, axes, off=off)
        if sums is None:
            continue
        squares, *more = sums
        np.testing.assert_allclose(squares, ((wide - means) ** 2).sum(axis=axes, keepdims=True), rtol=1e-12)
        assert len(more) == off
        assert all(np.abs(one).max() <= 1e-14 * np.abs(wide).sum() for one in more)


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 40), (1,)), ((40, 5), (0,)), ((3, 4, 50), (1,)), ((3, 4, 50), (0, 2)), ((7, 300), (0, 1))]
)
def test_plain_layouts_are_theirs(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    for x in (np.ones(shape, "f4"), np.ones(shape, "f4", order="F")):
        found = double_sums.summed(x, axes)
        assert found is not None
        np.testing.assert_array_equal(found, x.sum(axis=axes, keepdims=True))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_parts_of_complex_numbers_and_columns_with_steps(axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((40, 3000)) + 1j * rng.standard_normal((40, 3000))).astype("c8")
    x[3, 7], x[5, 11] = complex(np.inf, 1), complex(2, np.nan)
    parts = [x] if axes == (0,) else [x, x.real, x.imag, x.real[:, ::3]]
    for block in parts:
        found = double_sums.summed(block, axes)
        assert found is not None
        right = block.sum(axis=axes, dtype="c16" if block.dtype.kind == "c" else "f8", keepdims=True)
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_windows_that_overlap(axis: int) -> None:
    x = np.random.default_rng(1).standard_normal((9, 8, 33), dtype="f4")
    view = sliding_window_view(x, 5, axis)
    found = double_sums.summed(view, (3,))
    assert double_sums.is_quick(view, (3,)) == (found is not None)
    assert found is not None
    np.testing.assert_allclose(found[..., 0], view.astype("f8").sum(axis=3), rtol=1e-13, atol=1e-13)
    means = found / 5
    squares = double_sums.centred(view, means, (3,), off=False)
    assert squares is not None
    np.testing.assert_allclose(squares[0], ((view - means) ** 2).sum(axis=3, keepdims=True), rtol=1e-12)


def test_what_numpy_sums_as_quickly_is_left_to_it() -> None:
    x = np.ones((4, 64), "f4")
    for block in (x[::-1], x[:, ::-1], x.astype(">f4"), x.astype("f2"), x.astype("i4"), x.astype("c16")):
        assert double_sums.summed(block, (0, 1)) is None
    assert double_sums.summed(x.astype("f8"), (0, 1)) is None
    assert double_sums.summed(x, ()) is None
    assert double_sums.summed(x[:, ::2], (0,)) is None  # columns that are kept
    shifted = np.frombuffer(bytes(1 + x.nbytes), np.uint8)[1:].view("f4").reshape(x.shape)
    assert shifted.flags.aligned or double_sums.summed(shifted, (0,)) is None
    assert double_sums.summed(x[None, :1], (0, 1)) is None  # nothing to reduce


@pytest.mark.parametrize("values", [[np.inf], [-np.inf, 1], [np.inf, -np.inf], [np.nan], [3e38, 3e38]])
def test_infinities_and_nan(values: list[float]) -> None:
    for places, axes in itertools.product((0, 5000, 9000), ((0,), (0, 1), (1,))):
        x = np.ones((2, 10_000), "f4")
        x[0, places : places + len(values)] = values
        found = double_sums.summed(x, axes)
        assert found is not None
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(found, x.sum(axis=axes, dtype="f8", keepdims=True), rtol=1e-13)


def test_long_sums_are_as_exact_as_numpys_pairs() -> None:
    x = np.full(1 << 22, 0.1, "f4")
    found = double_sums.summed(x, (0,))
    assert found is not None
    exact = float(np.float32(0.1)) * len(x)
    assert abs(found[0] - exact) <= 2e-16 * exact

"""Gradients and integrals are NumPy's, whatever the distances, the axes, the cut, the store and the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import CHECKING, CPU, Place, on_cpu_and_gpu

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.testing import CountingSource

DTYPES = ("i1", "u2", "i4", "f4", "f8", "c16")


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(3, 12), min_size=1, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    axes = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))]
    spacing: list[Any] = []
    for axis in axes:
        places = rng.random(shape[axis]) + 0.1
        spacing.append(draw(st.sampled_from([2, 0.5, np.cumsum(places), np.arange(shape[axis])])))
    return {
        "x": (100 * rng.random(shape)).astype(draw(st.sampled_from(DTYPES))),
        "spacing": draw(st.sampled_from([[], [0.25], spacing])),
        "axis": axes[0] if len(axes) == 1 else tuple(axes),
        "edge_order": draw(st.sampled_from([1, 2])),
        "place": draw(st.sampled_from([CPU, *CHECKING])),
        "budget": draw(st.sampled_from([500_000, 4_000_000])),
    }


def each(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@settings(max_examples=60)
@given(case=cases(), lazy=st.booleans())
def test_gradients_are_numpys(case: dict[str, Any], lazy: bool) -> None:
    x, spacing, how = case["x"], case["spacing"], {"axis": case["axis"], "edge_order": case["edge_order"]}
    expected = np.gradient(x, *spacing, **how)
    run = {"device": case["place"].device(), "budget": case["place"].budget(case["budget"])}
    if lazy:
        found = each(np.gradient(cf.open(x) * 1, *spacing, **how))  # type: ignore[call-overload]
        got: Any = tuple(cf.compute(*found, **run)) if len(found) > 1 else (found[0].compute(**run),)
    else:
        got = each(cf.gradient(x, *spacing, **how, **run))
    for one, right in zip(got, each(expected), strict=True):
        assert (one.dtype, one.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(one, right, rtol=1e-4 if right.dtype == "f4" else 1e-10, atol=1e-4)


@on_cpu_and_gpu
def test_a_gradient_of_an_expression_and_its_length_are_one_pass(place: Place, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((60, 40))
    made = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(10, 40), dtype="f8")
    made[...] = x
    one, other = np.gradient(np.exp(cf.open(tmp_path / "x.zarr")))
    length = np.sqrt(one**2 + other**2)
    assert len(cf.explain(length, device="cpu").passes) == 1
    first, second = np.gradient(np.exp(x))
    np.testing.assert_allclose(place.host(length.compute(device=place.device())), np.hypot(first, second))


def test_a_gradient_reads_its_source_once() -> None:
    x = np.random.default_rng(0).random((2000, 300))
    source = CountingSource(x)
    cf.gradient(source, axis=0, budget="4MB", device="cpu")
    assert source.bytes_read <= 1.05 * x.nbytes


@settings(max_examples=30)
@given(case=cases(), dx=st.sampled_from([1.0, 2, 0.5]), how=st.sampled_from(["dx", "line", "array", "lazy"]))
def test_integrals_are_numpys(case: dict[str, Any], dx: float, how: str) -> None:
    x, axis = case["x"], np.atleast_1d(case["axis"])[0].item()
    rng = np.random.default_rng(1)
    line, full = np.cumsum(rng.random(x.shape[axis])), np.cumsum(rng.random(x.shape), axis=axis)
    given_x = {"dx": None, "line": line, "array": full, "lazy": full}[how]
    expected = np.trapezoid(x, given_x, dx, axis)
    got = np.trapezoid(cf.open(x), cf.open(full) if how == "lazy" else given_x, dx, axis)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    found = got.compute(device=case["place"].device(), budget=case["place"].budget(case["budget"]))
    np.testing.assert_allclose(found, expected, rtol=1e-4 if expected.dtype == "f4" else 1e-10)


def test_what_has_no_gradient_is_refused() -> None:
    x = cf.open(np.ones((4, 2)))
    for call, says in (
        (lambda: np.gradient(x, edge_order=2), "needs 3"),
        (lambda: np.gradient(x, edge_order=3), "must be 1 or 2"),
        (lambda: np.gradient(x, [0.0, 1.0], axis=0), "have the shape"),
        (lambda: np.gradient(x[0, 0]), "no axis"),
        (lambda: np.gradient(x, axis=()), "no axis"),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()
    with pytest.raises(ArgumentTypeError, match="one for each"):
        np.gradient(x, 1.0, 2.0, 3.0)
    with pytest.raises(ArgumentTypeError, match="bools"):
        np.gradient(x > 0)

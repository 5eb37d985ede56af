"""`apply_gufunc`: functions with a signature, of any sources, within the budget, as the function of whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import Place, on_cpu_and_gpu

import chunkflow as cf
from chunkflow import errors

X = np.random.default_rng(0).standard_normal((7, 5, 6)).astype("f4")

CASES: dict[str, tuple[Callable[..., Any], str, tuple[Any, ...]]] = {
    "norms": (lambda a: np.sqrt((a * a).sum(-1)), "(i)->()", (X,)),
    "products": (lambda a, b: (a * b).sum(-1), "(i),(i)->()", (X, X[0, 0])),
    "matrices": (lambda a, b: a @ b, "(i,j),(j,k)->(i,k)", (X, X[:, :4].swapaxes(1, 2).copy())),
    "sorted": (lambda a: np.sort(a, axis=-1), "(i)->(i)", (X,)),
    "scaled": (lambda a, s: a * s, "(i),()->(i)", (X, 3)),
    "loops": (lambda a, b: a + b[..., None], "(i),()->(i)", (X, X[:, :, 0].copy())),
    "longer": (lambda a: np.concatenate([a, a], axis=-1), "(i)->(k)", (X,)),
    "of no axes": (lambda a, b: a - b, "(),()->()", (X, X[0])),
}
SIZES = {"k": 12}


@on_cpu_and_gpu
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_whole_arrays(name: str, place: Place) -> None:
    fn, signature, arrays = CASES[name]
    expected = fn(*(np.asarray(a) for a in arrays))
    sizes = SIZES if "k" in signature and name == "longer" else None
    run = {"device": place.device(), "budget": None if place.is_gpu else "20kB"}
    found = cf.apply_gufunc(fn, signature, *arrays, output_sizes=sizes, **run)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    lazies = [cf.open(a) * 1 if isinstance(a, np.ndarray) else a for a in arrays]
    lazy = cf.apply_gufunc(fn, signature, *lazies, output_sizes=sizes)
    assert lazy.shape == expected.shape
    np.testing.assert_allclose(lazy.compute(**run), expected, rtol=1e-5)


@given(st.lists(st.integers(1, 4), max_size=2), st.lists(st.integers(1, 4), max_size=2))
def test_other_axes_broadcast(one: list[int], other: list[int]) -> None:
    shapes = [[1] * (2 - len(s)) + s for s in (one, other)]
    if any(1 not in pair and pair[0] != pair[1] for pair in zip(*shapes, strict=True)):
        return
    a, b = np.ones((*one, 3)), np.arange(np.prod((*other, 3))).reshape(*other, 3)
    found = cf.apply_gufunc(lambda a, b: (a * b).sum(-1), "(i),(i)->()", a, b, device="cpu")
    np.testing.assert_array_equal(found, (a * b).sum(-1))


def test_several_results_arguments_and_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)

    def ends(a: Any, *, scale: float) -> Any:
        return a.min(-1) * scale, a.max(-1)

    out = (tmp_path / "low.npy", tmp_path / "high.zarr")
    low, high = cf.apply_gufunc(
        ends, "(i)->(),()", tmp_path / "x.npy", kwargs={"scale": 2.0}, out=out, device="cpu", budget="20kB"
    )
    np.testing.assert_allclose(low, X.min(-1) * 2)
    np.testing.assert_array_equal(high[...], X.max(-1))


def test_a_function_of_one_line() -> None:
    def spread(line: Any) -> Any:
        assert line.ndim == 1
        return line.max() - line.min()

    found = cf.apply_gufunc(spread, "(i)->()", X, vectorize=True, dtype="f4", device="cpu")
    np.testing.assert_array_equal(found, np.ptp(X, axis=-1))


@pytest.mark.parametrize(
    ("signature", "arrays", "said"),
    [
        ("(i)", (X,), "signature='"),
        ("i->i", (X,), "signature='"),
        (3, (X,), "signature=3"),
        ("(i),(i)->()", (X,), "2 arrays, and 1"),
        ("(i),(i)->()", (X, X[..., :2]), "'i' of .* is 6 long, and 2"),
        ("(i,j,k,l)->()", (X,), "fewer axes"),
        ("(i)->(k)", (X,), "output_sizes="),
        ("(i),(i)->()", (X, 3), "is a scalar"),
    ],
)
def test_what_is_refused_before_anything_is_read(signature: Any, arrays: Any, said: str) -> None:
    with pytest.raises(errors.ArgumentError, match=said):
        cf.apply_gufunc(lambda *a: a[0], signature, *arrays, device="cpu")


def test_results_that_do_not_fit_the_signature() -> None:
    with pytest.raises(errors.UnsupportedError, match="different axes"):
        cf.apply_gufunc(lambda a: (a, a.sum(-1)), "(i)->(i),()", X, device="cpu")
    with pytest.raises(errors.ResultError, match="2"):
        cf.apply_gufunc(lambda a: a.sum(-1), "(i)->(),()", X, device="cpu")
    with pytest.raises(errors.ResultError):
        cf.apply_gufunc(lambda a: a, "(i)->()", X, device="cpu")
    xarray = pytest.importorskip("xarray")
    with pytest.raises(errors.ArgumentTypeError, match="apply_ufunc"):
        cf.apply_gufunc(lambda a: a, "(i)->(i)", xarray.DataArray(X), device="cpu")


@pytest.mark.parametrize("number", [1, 2])
def test_options_of_a_run_are_refused_in_the_name_of_the_function_that_is_called(number: int) -> None:
    lazy = cf.open(X)
    results, several = ",".join(["(i)"] * number), "chunkflow.compute(" if number > 1 else ""
    ending = ", " if several else ").compute("
    with pytest.raises(errors.ArgumentError) as caught:
        cf.apply_gufunc(lambda a: (a,) * number, f"(i)->{results}", lazy, budget="2MB")
    assert str(caught.value).startswith("apply_gufunc of an expression is not run at once, and was given budget")
    assert f"as {several}apply_gufunc(...{')' if several else ''}{ending}budget='2MB')" in str(caught.value)
    xarray = pytest.importorskip("xarray")
    x = cf.open(xarray.DataArray(X))
    dims = [[x.dims[-1]]]
    with pytest.raises(errors.ArgumentError) as caught:
        cf.apply_ufunc(lambda a: a, x, input_core_dims=dims, output_core_dims=dims, budget="2MB", device="cpu")
    assert str(caught.value).startswith("apply_ufunc of an expression is not run at once, and was given budget, device")
    assert "apply_ufunc(...).compute(budget='2MB', device='cpu')" in str(caught.value)

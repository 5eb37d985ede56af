"""Integers that a narrower dtype does not hold are refused wherever a run casts; a cast that is asked for wraps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.devices import Place, everywhere, same

import chunkflow as cf
from chunkflow.errors import ValueRangeError

X = np.array([[3, 200, 255], [7, 2000, 1]], "u2")

DOORS: dict[str, Callable[..., Any]] = {
    "map": lambda x, **o: cf.map(lambda b: b, x, dtype="u1", **o),
    "map_overlap": lambda x, **o: cf.map_overlap(lambda b: b, x, depth=1, dtype="u1", **o),
    "expression": lambda x, **o: (cf.map(lambda b: b, cf.open(x), dtype="u1") + 0).compute(**o),
    "array": lambda x, **o: cf.map(lambda b: b, x, out=np.empty(x.shape, "u1"), **o),
    "store": lambda x, **o: cf.store(cf.open(x) + 0, np.empty(x.shape, "u1"), **o),
    "copy": lambda x, **o: cf.copy(x, np.empty(x.shape, "u1"), **o),
    "sum": lambda x, **o: cf.sum(x, axis=0, out=np.empty(x.shape[1], "u1"), **o),
}


def largest(x: Any, **options: Any) -> Any:
    def fold(b: Any, axis: Any, keepdims: bool) -> Any:
        return b.max(axis=axis, keepdims=keepdims)

    return cf.reduction(x, fold, fold, axis=0, dtype="u1", **options)


def test_results_of_folds_are_looked_at_at_once_and_in_expressions() -> None:
    for run in (lambda x: largest(x, device="cpu"), lambda x: largest(cf.open(x)).compute(device="cpu")):
        same(run(X % 100), (X % 100).max(0).astype("u1"))
        with pytest.raises(ValueRangeError, match="2000 is a value"):
            run(X)


def test_steps_that_are_not_the_last_are_looked_at_too() -> None:
    """Planted: what the first step gives does not fit, and of what would be left of it the second one shows nothing."""

    def step(b: Any) -> Any:
        return np.where(b < 128, b.astype("u2") + np.uint16(456), b.astype("u2") % 128)

    with pytest.raises(ValueRangeError, match="uint8 holds 0 to 255"):
        cf.map_overlap(step, (X % 50).astype("u1"), depth=1, boundary=0, iterations=2, dtype="u1", device="cpu")


@everywhere
@pytest.mark.parametrize("door", DOORS)
def test_what_does_not_fit_is_named(place: Place, door: str) -> None:
    run = {"device": place.device(), "budget": place.budget(4_000_000)}
    with pytest.raises(ValueRangeError, match=r"2[02]0[07] is a value of the region .* uint8 holds 0 to 255"):
        DOORS[door](X, **run)
    fits = X % 100
    got = DOORS[door](fits, **run)
    same(got, fits.sum(0).astype("u1") if door == "sum" else fits.astype("u1"))


def test_an_array_that_exists_keeps_what_it_had(tmp_path: Path) -> None:
    there = zarr.create_array(tmp_path / "x.zarr", data=np.full(X.shape, 9, "i1"))
    with pytest.raises(ValueRangeError, match="wider dtype"):
        cf.copy(X, there, device="cpu")
    assert (there[:] == 9).all()


def test_casts_that_are_asked_for_wrap_as_numpys() -> None:
    same(cf.open(X).astype("u1").compute(device="cpu"), X.astype("u1"))
    same(cf.map(lambda b: b.astype("u1"), X, device="cpu"), X.astype("u1"))

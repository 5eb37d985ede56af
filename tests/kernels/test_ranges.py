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

"""Quantiles of all elements in one pass, whose intervals a sample tells, are exact, and fall back where it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import CHECKING, CUDA, Place, same
from support.examples import examples

import chunkflow as cf
from chunkflow.api.statistics import order_statistics, sampled
from chunkflow.stores import open_source
from chunkflow.testing import CountingSource

MOST = 50_000_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST", 2000), ("PARTS", 4), ("STRIP", 16)):
        monkeypatch.setattr(sampled, name, value)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[sampled.Intervals | None]:
    """What samples have told."""
    found: list[sampled.Intervals | None] = []
    plain = order_statistics.likely

    def noted(*args: Any) -> sampled.Intervals | None:
        found.append(plain(*args))
        return found[-1]

    monkeypatch.setattr(order_statistics, "likely", noted)
    return found


@st.composite
def arrays(draw: Any) -> np.ndarray:
    """Arrays of few or many values, in order or not, with NaN together and apart."""
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8", "i4", "u8", ">f4"])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.standard_normal(draw(st.sampled_from([(3000,), (60, 70), (13, 14, 15)])))
    x = np.round(x * draw(st.sampled_from([1, 1000, 1e6]))) if dtype.kind != "f" else x
    x = np.abs(x) if dtype.kind == "u" else x
    x = np.sort(x.reshape(-1)).reshape(x.shape) if draw(st.booleans()) else x
    x = x.astype(dtype)
    if dtype.kind == "f":
        x.reshape(-1)[: draw(st.sampled_from([0, 0, 1, 700]))] = np.nan
        x[rng.random(x.shape) < draw(st.sampled_from([0, 0, 0.2]))] = draw(st.sampled_from([np.nan, np.inf, -0.0]))
    return x


@given(arrays(), st.sampled_from([0.5, [0.1, 0.9], [0, 1], [0.3, 0.3001]]), st.sampled_from([0.0, 1.0, 4.0]))
@settings(max_examples=examples(1), deadline=None)
def test_as_numpy_whatever_the_sample_tells(x: np.ndarray, q: Any, deviations: float) -> None:
    right = x.astype(x.dtype.newbyteorder("="))
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(sampled, "DEVIATIONS", deviations)
        run: dict[str, Any] = {"budget": MOST, "device": "cpu", "chunks": 9}
        np.testing.assert_array_equal(cf.quantile(x, q, **run), np.quantile(right, q))
        np.testing.assert_array_equal(cf.nanquantile(x, q, **run), np.nanquantile(right, q))
        np.testing.assert_array_equal(np.median(cf.open(x)).compute(device="cpu", budget=MOST), np.median(right))


@pytest.mark.parametrize("place", [CHECKING[0], CHECKING[-1], CUDA[0]], ids=str)
def test_one_pass(place: Place, told: list[sampled.Intervals | None], tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((80, 50, 100), dtype="f4")
    x[::7, 3] = np.nan
    np.save(tmp_path / "x.npy", x)
    run: dict[str, Any] = {"budget": place.budget(MOST), "device": place.device(), "chunks": (10, 50, 100)}
    for source in (x, tmp_path / "x.npy"):
        same(cf.nanquantile(source, [0.1, 0.5, 0.999], **run), np.nanquantile(x, [0.1, 0.5, 0.999]))
    y = np.nan_to_num(x, nan=0.5)
    source = CountingSource(y)
    same(cf.median(source, **run), np.median(y))
    assert len(told) == 3
    assert None not in told
    assert y.nbytes <= source.bytes_read <= 1.3 * y.nbytes


def test_where_elements_are_alike_intervals_are_wide() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(100_000)
    alike = np.repeat(x[::16], 16)
    widths = []
    for one in (x, alike):
        found = sampled.likely(open_source(one), lambda n: np.array([n // 2]), 1e5)
        assert found is not None
        widths.append(found.number)
    assert 3 < widths[1] / widths[0] < 5  # the root of 16


def test_no_sample_of_what_is_in_chunks_or_would_be_too_much(
    told: list[sampled.Intervals | None], tmp_path: Path
) -> None:
    x = np.sort(np.random.default_rng(1).standard_normal(60_000))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(5000,))
    same(cf.median(tmp_path / "x.zarr", chunks=9000, budget=MOST, device="cpu"), np.median(x))
    same(np.median(cf.open(x) + 1).compute(budget=MOST, device="cpu"), np.median(x + 1))
    assert told == []
    same(cf.quantile(x, 0.25, chunks=9000, budget=1_000_000, device="cpu"), np.quantile(x, 0.25))
    assert told == [None]  # strips of a sorted array are too different


@pytest.mark.parametrize("ends", [(0, 1 << 63), (5, 6)])
def test_what_the_sample_foretold_is_wrong(ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """There are far more keys than there is room for, or none."""
    x = np.random.default_rng(1).standard_normal(60_000)
    low, high = (np.full(1, end, "u8") for end in ends)
    monkeypatch.setattr(order_statistics, "likely", lambda *args: sampled.Intervals(low, high, 10.0))
    same(cf.median(x, chunks=9000, budget=MOST, device="cpu"), np.median(x))

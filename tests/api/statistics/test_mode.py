"""Modes are SciPy's, of all elements and along axes, whatever the cut and the device."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import CHECKING, Place, same
from support.examples import examples
from support.foreign_arrays import Foreign

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.statistics import mode as mode_of
from chunkflow.kernels.statistics.mode import ModeOfLines


def sample(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape) * 0.5
    return (np.where(rng.random(shape) < 0.3, np.nan, x) if dtype[-2] == "f" else x * 2).astype(dtype)


def scipys(x: np.ndarray, axis: Any, policy: str, keepdims: bool) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value, count = scipy.stats.mode(x, axis=axis, nan_policy=policy, keepdims=keepdims)
    return np.asarray(value + 0, x.dtype.newbyteorder("=")), np.asarray(count, "i8")


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(["i2", "u8", "f4", ">f8", "f2"]),
    seed=st.integers(0, 99),
    policy=st.sampled_from(["propagate", "omit"]),
    keepdims=st.booleans(),
    place=st.sampled_from(CHECKING),
    data=st.data(),
)
@settings(max_examples=examples(1 / 2))
def test_mode_as_scipy(
    shape: tuple[int, ...], dtype: str, seed: int, policy: str, keepdims: bool, place: Place, data: Any
) -> None:
    x = sample(shape, dtype, seed)
    axis = data.draw(st.sampled_from([None, *range(-1, x.ndim), *([(0, -1)] if x.ndim > 1 else [])]))
    run: dict[str, Any] = {"budget": 1_000_000, "device": place.device()}
    for one, other in zip(cf.mode(x, axis, policy, keepdims, **run), scipys(x, axis, policy, keepdims), strict=True):
        same(np.asarray(one), other)
    lazy = cf.mode(cf.open(x), axis, policy, keepdims)
    for one, other in zip(cf.compute(*lazy, **run), scipys(x, axis, policy, keepdims), strict=True):
        same(np.asarray(one), other)


@pytest.mark.parametrize("policy", ["propagate", "omit"])
def test_of_all_as_tasks(policy: str) -> None:
    dask = pytest.importorskip("dask")
    for x in (sample((50, 60), "f4", 2), np.full((20, 9), np.nan), sample((50, 60), "i2", 2)):
        both = [a.to_dask(partition="2kB") for a in cf.mode(cf.open(x), nan_policy=policy)]
        for one, other in zip(dask.compute(*both, scheduler="sync"), scipys(x, None, policy, False), strict=True):
            same(np.asarray(one), other)


def test_more_different_elements_than_a_task_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask")
    monkeypatch.setattr(mode_of, "ROOM", 99)
    value, _ = cf.mode(cf.open(np.arange(100.0)))
    with pytest.raises(errors.UnsupportedError, match=r"than a task has room for \(100, where 99"):
        value.to_dask().compute(scheduler="sync")


def test_from_zarr_to_paths(tmp_path: Path) -> None:
    x = np.random.default_rng(3).integers(0, 9, (40, 33)).astype("i4")
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(7, 10), dtype="i4")[...] = x
    for axis in (None, 1):
        out = (tmp_path / f"m{axis}.zarr", tmp_path / f"n{axis}.npy")
        got = cf.mode(tmp_path / "x.zarr", axis, out=out, budget=300_000, device="cpu")
        for one, other in zip(got, scipys(x, axis, "propagate", False), strict=True):
            same(np.asarray(one[...]), other)
    same(cf.mode(x > 3, device="cpu")[1], np.int64((x > 3).sum()))


def test_arrays_that_are_not_numpys() -> None:
    x = sample((5, 7), "f8", 1)
    for one, other in zip(ModeOfLines((0,), False, True)(Foreign(x)), scipys(x, 0, "omit", False), strict=True):
        assert isinstance(one, Foreign)
        same(one.array, other)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"axis": 2}, "axis=2"),
        ({"nan_policy": "raise"}, "'raise' is none of propagate, omit"),
        ({"out": np.zeros(4)}, "pair"),
        ({"x": np.zeros((3, 0)), "axis": 1}, "no elements"),
        ({"x": np.zeros(3, "c8")}, "complex64"),
        ({"out": (np.zeros(4), np.zeros(3, int)), "axis": 1}, "shape"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError), match=words):
        cf.mode(**{"x": np.zeros((4, 5)), "device": "cpu", **options})

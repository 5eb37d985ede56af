"""Outputs of several passes appear together, or none does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.engine.resume import Resumption

X = np.random.default_rng(0).random((60, 100))
Y = np.random.default_rng(1).random((400, 40))

PLACES = {
    "npy": ["mean.npy", "gram.npy", "scaled.npy", "other.npy"],
    "zarr": ["mean.zarr", "gram.zarr", "scaled.zarr", "other.zarr"],
    "a group": ["g.zarr/mean", "g.zarr/a/gram", "g.zarr/scaled", "g.zarr/other"],
    "a file": ["o.h5:/mean", "o.h5:/a/gram", "o.h5:/scaled", "o.h5:/other"],
    "mixed": ["mean.npy", "gram.zarr", "o.h5:/scaled", "o.h5:/other"],
}
"""Of outputs that pass through memory or a file to a later pass (the first two), and of others."""


class LastPassError(Exception):
    """What ends a call in its last pass."""


class Failing:
    """A function that fails where `fails` holds of the number of the call and of the block."""

    def __init__(self, fails: Callable[[int, np.ndarray], bool] = lambda *_: False) -> None:
        self.calls, self.fails = 0, fails

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.calls += 1
        if self.fails(self.calls, block):
            raise LastPassError
        return block


def fifth(calls: int, block: np.ndarray) -> bool:
    return calls == 5


def stored(folder: Path, places: list[Any], last: Failing, **options: Any) -> Any:
    """Four outputs of at least four passes, the last of which calls a function.

    The first one is kept in memory for a later pass, and the second one, which is larger, in a file.
    """
    x, y = cf.open(X), cf.open(Y)
    gram = x.T @ x
    arrays = [
        y.mean(axis=0),
        gram,
        gram / gram.max(),
        cf.map(last, y - y.mean(axis=0), dtype="f8", chunks=(20, -1), workspace=0),
    ]
    outs = [f"{folder}/{place}" if isinstance(place, str) else place for place in places]
    return cf.store(arrays, outs, device="cpu", budget="1MB", **options)


def expected() -> list[np.ndarray]:
    gram = X.T @ X
    return [Y.mean(axis=0), gram, gram / gram.max(), Y - Y.mean(axis=0)]


def read(path: str) -> np.ndarray:
    if ".h5:" in path:
        with h5py.File(path.partition(":")[0]) as file:
            return np.asarray(file[path.partition(":")[2]][...])
    return np.load(path) if path.endswith(".npy") else np.asarray(zarr.open_array(path, mode="r")[...])


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("kind", PLACES)
def test_nothing_appears_where_a_later_pass_fails(kind: str, tmp_path: Path) -> None:
    with pytest.raises(LastPassError):
        stored(tmp_path, PLACES[kind], Failing(fifth))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", PLACES)
def test_all_appear_where_none_fails(kind: str, tmp_path: Path) -> None:
    got = stored(tmp_path, PLACES[kind], Failing())
    for place, array, want in zip(PLACES[kind], got, expected(), strict=True):
        np.testing.assert_allclose(array[...], want, rtol=1e-12)
        if isinstance(array, h5py.Dataset):
            array.file.close()
        np.testing.assert_allclose(read(f"{tmp_path}/{place}"), want, rtol=1e-12)
    assert visible(tmp_path) == sorted({Path(place.partition(":")[0]).parts[0] for place in PLACES[kind]})


@pytest.mark.parametrize("kind", PLACES)
def test_what_the_passes_have_made_is_gone_on_with(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land, reached = Resumption.landed, threading.Event()

    def landed(run: Resumption, step: int) -> None:
        land(run, step)
        if step == 12:
            reached.set()

    def last(calls: int, block: np.ndarray) -> bool:
        return np.array_equal(block, expected()[3][-20:]) and reached.wait(60)

    monkeypatch.setattr(Resumption, "landed", landed)
    first, rest = Failing(last), Failing()
    with pytest.raises(LastPassError):
        stored(tmp_path, PLACES[kind], first, resume=True, name="it")
    assert visible(tmp_path) == []
    got = stored(tmp_path, PLACES[kind], rest, resume=True, name="it")
    for array, want in zip(got, expected(), strict=True):
        np.testing.assert_allclose(array[...], want, rtol=1e-12)
        if isinstance(array, h5py.Dataset):
            array.file.close()
    assert rest.calls <= 9, "of 20, and a trial or two"


def test_what_was_there_stays_where_a_later_pass_fails(tmp_path: Path) -> None:
    for place in PLACES["npy"]:
        np.save(tmp_path / place, np.arange(3))
    with pytest.raises(LastPassError):
        stored(tmp_path, PLACES["npy"], Failing(fifth), overwrite=True)
    for place in PLACES["npy"]:
        np.testing.assert_array_equal(np.load(tmp_path / place), np.arange(3))
    stored(tmp_path, PLACES["npy"], Failing(), overwrite=True)
    for place, want in zip(PLACES["npy"], expected(), strict=True):
        np.testing.assert_allclose(np.load(tmp_path / place), want, rtol=1e-12)


def test_a_new_output_waits_for_an_array_in_memory(tmp_path: Path) -> None:
    last = np.zeros(Y.shape)
    with pytest.raises(LastPassError):
        stored(tmp_path, [*PLACES["npy"][:3], last], Failing(fifth))
    assert list(tmp_path.iterdir()) == []
    stored(tmp_path, [*PLACES["npy"][:3], last], Failing())
    np.testing.assert_allclose(last, expected()[3], rtol=1e-12)


@pytest.mark.parametrize("name", ["made.npy", "made.zarr", "o.h5:/made"])
def test_later_passes_read_what_an_earlier_one_has_written(name: str, tmp_path: Path) -> None:
    counted = Failing()
    made = cf.map(counted, cf.open(Y), dtype="f8", chunks=(20, -1), workspace=0)
    outs = [f"{tmp_path}/{name}", tmp_path / "rest.npy"]
    first, rest = cf.store([made, made - made.mean()], outs, device="cpu", budget="1MB")
    np.testing.assert_array_equal(first[...], Y)
    np.testing.assert_allclose(rest, Y - Y.mean(), rtol=1e-12)
    assert counted.calls <= (21 if name.endswith((".npy", ".zarr")) else 41), "the function would be called again"
    if isinstance(first, h5py.Dataset):
        first.file.close()

"""Expressions that are pickled: by the calls that made them, and by the names of the arrays that they read."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numpy_examples import EXAMPLES, arrays, flat, rows

import chunkflow as cf
from chunkflow.api.lazy.numpy_dispatch import name_of
from chunkflow.errors import ArgumentTypeError, ReadError
from chunkflow.graph.nodes import Lazy, node_of
from chunkflow.graph.recognition import recognized
from chunkflow.kernels.digest import digest
from chunkflow.stores.views import marked

X = np.arange(1.0, 25.0).reshape(4, 6)


def twice(block: Any) -> Any:
    return block * 2


def two(block: Any) -> tuple[Any, Any]:
    return block + 1, block < 3


def value(x: Any) -> Any:
    """What a worker computes."""
    return x.compute(device="cpu", budget="1MB")


def sent(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


def same(x: Any, y: Any) -> bool:
    """Whether two expressions compute the same of the same arrays, as far as a digest tells."""
    return digest(recognized([node_of(x)])) == digest(recognized([node_of(y)]))


@pytest.mark.parametrize("fn", rows(EXAMPLES, 3), ids=name_of)
def test_what_numpys_functions_give_is_sent(fn: Any) -> None:
    for example in EXAMPLES[fn]:
        for found in filter(lambda one: isinstance(one, Lazy), flat(example(**arrays(cf.open)))):
            if "nonzero" not in fn.__name__ and fn not in (np.argwhere, np.extract, np.compress):
                again = sent(found)  # what is strided here is not there
                assert same(again, found) or np.array_equal(value(again), value(found), equal_nan=True)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "npy": lambda folder: folder / "x.npy",
    "memory": lambda folder: X,
    "memmap": lambda folder: np.load(folder / "x.npy", mmap_mode="r")[::-1],
    "zarr": lambda folder: folder / "x.zarr",
    "member": lambda folder: zarr.open_group(folder / "g.zarr")["a/x"],
    "cf": lambda folder: cf.open(folder / "x.zarr", decode="cf", missing="fill"),
}

CALLS: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: np.sqrt(x)[1:, ::2].T * 2,
    lambda x: (x - x.mean()) / x.std(axis=0),
    lambda x: cf.map(twice, x),
    lambda x: cf.map(two, x, dtype=("f8", "?"))[1],
    lambda x: cf.concatenate([x, X, x]),
    lambda x: np.median(x, axis=0),
    lambda x: cf.fft.rfft(x, axis=1).imag,
    lambda x: cf.map_overlap(twice, x, depth=1).reshape(-1)[[5, 0, 5]],
    lambda x: np.divmod(x, 5)[1] * x.max(),
    lambda x: np.histogram(x, 3, (0, 30))[0],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    zarr.save(tmp_path / "x.zarr", X)
    zarr.open_group(tmp_path / "g.zarr", mode="w").create_array("a/x", data=X)
    return tmp_path


@pytest.mark.parametrize("source", SOURCES)
def test_values_are_the_same(folder: Path, source: str) -> None:
    for call in CALLS if source == "npy" else CALLS[:4]:
        expression = call(cf.open(SOURCES[source](folder)))
        message = pickle.dumps(expression)
        assert len(message) < 2500
        np.testing.assert_array_equal(value(pickle.loads(message)), value(expression))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=4, deadline=None)
@given(st.lists(st.sampled_from([CALLS[i] for i in (2, 3, 4, 9)]), min_size=1, max_size=4))
def test_calls_upon_calls(calls: Any) -> None:
    expression = cf.open(X)
    for call in calls:
        expression = call(expression + 1)
    np.testing.assert_array_equal(value(sent(expression)), value(expression))


def test_what_is_shared_stays_shared(folder: Path) -> None:
    x = cf.open(folder / "x.npy")
    y = (x + 1).sum(axis=0)
    one, other = sent([y * 2, y * 3])
    assert len(cf.explain(one, other, device="cpu")) == len(cf.explain(y * 2, y * 3, device="cpu"))


def test_relative_paths_mean_the_same_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    message = pickle.dumps(cf.concatenate([cf.open("x.npy"), "x.npy"]))
    monkeypatch.chdir("/")
    assert value(pickle.loads(message)).shape == (8, 6)


def test_a_long_chain_needs_no_deep_stack() -> None:
    x = cf.open(X)
    for number in range(400):
        x = x + number
    assert sent(x).shape == X.shape


def test_other_processes_compute_it(folder: Path) -> None:
    x = cf.map(twice, cf.open(folder / "x.zarr")) + 1
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        np.testing.assert_array_equal(pool.submit(value, x).result(), X * 2 + 1)


def test_functions_travel_as_the_pickler_has_it(folder: Path) -> None:
    x = cf.map(lambda block: block * 2, cf.open(folder / "x.zarr"))
    np.testing.assert_array_equal(value(pickle.loads(cloudpickle.dumps(x))), X * 2)
    message = pickle.loads(cloudpickle.dumps((value, x)))
    np.testing.assert_array_equal(message[0](message[1]), X * 2)


@pytest.mark.parametrize("source", ["npy", "zarr"])
def test_a_source_that_was_changed_is_refused(folder: Path, source: str) -> None:
    message = pickle.dumps(cf.open(folder / f"x.{source}") + 1)
    if source == "npy":
        np.save(folder / "x.npy", X + 1)
        why = "is not what it was"
    else:
        zarr.create_array(folder / "x.zarr", data=X[:2], overwrite=True)
        why = "has changed since it was opened"
    with pytest.raises(ReadError, match=why):
        pickle.loads(message)


def test_hdf5_and_netcdf_are_known_by_their_paths(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/x"] = X
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(value(sent(cf.open(file["g/x"]) * 2)), X * 2)
    np.testing.assert_array_equal(value(sent(cf.open(f"{tmp_path}/x.h5:/g/x") * 2)), X * 2)
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        file["x"] = X
        with pytest.raises(ArgumentTypeError, match="no plain file"):
            pickle.dumps(cf.open(file["x"]))


def test_what_has_no_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cf.config.config, "message_limit", 100)
    monkeypatch.setattr(marked, "SENT", 10)
    x = cf.open(X)
    wide = np.broadcast_to(np.float64(3), (1000, 1000))
    assert value(sent(cf.open(wide).sum())) == 3e6  # one element travels
    for refused, error, why in [
        (x + 1, ArgumentTypeError, "192 B in memory is not pickled"),
        (cf.open(zarr.array(X)), ArgumentTypeError, "this process's memory"),
        (cf.open(Handle()), ArgumentTypeError, "a Handle cannot be pickled: .*no copies"),
        (cf.flatnonzero(x > 2), ArgumentTypeError, "a mask that was counted"),
        (cf.map(lambda block: block, cf.open(wide)), (AttributeError, pickle.PicklingError), "lambda"),
    ]:
        with pytest.raises(error, match=why):
            pickle.dumps(refused)


class Handle:
    """An array of which there is only this one."""

    shape, dtype = X.shape, X.dtype

    def __getitem__(self, region: Any) -> Any:
        return X[region]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("there are no copies of it")

"""Runs that end early, and later calls that go on with them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import h5py
import numpy as np
import pytest
import zarr
from engine import resume_calls
from engine.resume_calls import KINDS, stored

import chunkflow as cf
import chunkflow.dask
from chunkflow.engine import passes, resume
from chunkflow.engine.block_runner import BlockRunner
from chunkflow.engine.passes import Passes
from chunkflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    OutputBusyError,
    OutputExistsError,
    ReadError,
    ResumeError,
    UnsupportedError,
    WriteError,
)
from chunkflow.stores.hdf5 import create
from chunkflow.stores.kvstore import fsspec as fsspec_objects
from chunkflow.stores.publication.claim import Claim

STEP = 16
CPU: dict[str, Any] = {"device": "cpu", "chunks": (STEP, -1, -1)}
X = resume_calls.array()


class StoppedError(Exception):
    """What ends a run early."""


class Stopping:
    """A function that fails at its call number `at`; with `factor` it gives other values."""

    def __init__(self, at: int = -1, factor: float = 1) -> None:
        self.calls, self.at, self.factor = 0, at, factor

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.calls += 1
        if self.calls == self.at:
            raise StoppedError
        return (block * self.factor).astype(block.dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path


def stopped(folder: Path, out: str = "o.npy", at: int = 30, **options: Any) -> Path:
    """The path of an output whose run has ended early."""
    options = {"resume": True, "name": "negative", **CPU, **options}
    with pytest.raises(StoppedError):
        cf.map(Stopping(at), folder / "x.npy", out=folder / out, **options)
    return folder / out


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("out", ["o.npy", "o.zarr", "group.zarr/o"])
def test_the_same_call_computes_what_is_lacking(folder: Path, out: str) -> None:
    stopped(folder, out)
    assert not (folder / out).exists()
    rest = Stopping()
    got = cf.map(rest, folder / "x.npy", out=folder / out, resume=True, name="negative", **CPU)
    np.testing.assert_array_equal(got[...], X)
    np.testing.assert_array_equal(stored(folder / out), X)
    assert rest.calls < 60 - 10  # what was in slots is computed again, and how much that is, threads decide
    assert names(folder) == sorted({Path(out).parts[0], "x.npy"})


def test_what_has_not_begun_leaves_nothing(folder: Path) -> None:
    stopped(folder, at=1)
    assert names(folder) == ["x.npy"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "other"}, "the function: negative then, other now"),
        ({"chunks": (2 * STEP, -1, -1)}, "the blocks"),
        ({"dtype": "f8"}, "output 0 .*float64|f8"),
    ],
    ids=["function", "blocks", "dtype"],
)
def test_another_call_is_refused_and_says_what_differs(folder: Path, change: dict[str, Any], said: str) -> None:
    stopped(folder)
    before = names(folder)
    with pytest.raises(ResumeError, match=said):
        cf.map(
            Stopping(), folder / "x.npy", out=folder / "o.npy", **{"resume": True, "name": "negative", **CPU, **change}
        )
    assert names(folder) == before


def test_a_changed_array_is_refused(folder: Path) -> None:
    stopped(folder)
    np.save(folder / "x.npy", X + 1)
    with pytest.raises(ResumeError, match=r"array 0 \(.*x\.npy\)"):
        cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", resume=True, name="negative", **CPU)


def test_what_differs_in_an_array_is_said_in_words(folder: Path) -> None:
    stopped(folder)
    os.truncate(folder / "x.npy", X.nbytes)
    np.save(folder / "x.npy", X[:-1])
    with pytest.raises(ResumeError, match=r"array 0 \(.*x\.npy\): \(960, 10, 8\), <f4 then, \(959, 10, 8\), <f4 now"):
        cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", resume=True, name="negative", **CPU)
    np.save(folder / "y.npy", X)
    os.replace(folder / "y.npy", folder / "x.npy")
    with pytest.raises(ResumeError, match=r"x\.npy is another file \(\d+, not \d+\)"):
        cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", resume=True, name="negative", **CPU)


def test_chunks_behind_links_are_looked_at(folder: Path) -> None:
    array = _chunked(folder)
    (folder / "elsewhere").mkdir()
    os.replace(folder / "x.zarr" / "c", folder / "elsewhere" / "c")
    (folder / "x.zarr" / "c").symlink_to(folder / "elsewhere" / "c")
    call: dict[str, Any] = {"out": folder / "o.npy", "resume": True, "name": "negative", **CPU}
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), folder / "x.zarr", **call)
    array[3 * STEP] = 7
    with pytest.raises(ReadError, match=r"was changed at .* since the run began"):
        cf.map(Stopping(), folder / "x.zarr", **call)


def test_a_virtual_dataset_is_known_by_the_files_that_hold_it(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = X
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[...] = h5py.VirtualSource("a.h5", "x", X.shape)
    with h5py.File(folder / "v.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    call: dict[str, Any] = {"out": folder / "o.npy", "resume": True, "name": "negative", **CPU}
    with h5py.File(folder / "v.h5") as file, pytest.raises(StoppedError):
        cf.map(Stopping(30), file["x"], **call)
    with h5py.File(folder / "a.h5", "r+") as file:
        file["x"][0] = 7
    with h5py.File(folder / "v.h5") as file, pytest.raises(ResumeError, match=r"a\.h5 was modified"):
        cf.map(Stopping(), file["x"], **call)


def test_a_name_stands_for_a_function_of_which_nothing_can_be_told(folder: Path) -> None:
    lock, call = threading.Lock(), {"out": folder / "o.npy", "resume": True, **CPU}

    def made(at: int) -> Any:
        stopping = Stopping(at)

        def fn(block: np.ndarray, gain: Any = None) -> np.ndarray:
            with lock:
                return stopping(block) * gain.value

        return fn

    with pytest.raises(ArgumentError, match=r"lock object .* give name="):
        cf.map(made(-1), folder / "x.npy", gain=Gain(2), **call)
    with pytest.raises(StoppedError):
        cf.map(made(30), folder / "x.npy", gain=Gain(2), name="it", **call)
    with pytest.raises(ResumeError, match="its arguments"):
        cf.map(made(-1), folder / "x.npy", gain=Gain(3), name="it", **call)
    np.testing.assert_array_equal(cf.map(made(-1), folder / "x.npy", gain=Gain(2), name="it", **call), X * 2)


class Gain:
    """A value that can be called, and has a part of which nothing can be told."""

    def __init__(self, value: int) -> None:
        self.value, self.lock = np.float32(value), threading.Lock()

    def __call__(self) -> None:
        raise NotImplementedError


def test_permissions_and_links_may_change(folder: Path) -> None:
    stopped(folder)
    (folder / "x.npy").chmod(0o600)
    os.link(folder / "x.npy", folder / "y.npy")
    cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", resume=True, name="negative", **CPU)
    np.testing.assert_array_equal(stored(folder / "o.npy"), X)


def _chunked(folder: Path) -> zarr.Array[Any]:
    array = zarr.create_array(folder / "x.zarr", shape=X.shape, chunks=(STEP, 10, 8), dtype="f4")
    array[...] = X
    return array


@pytest.mark.parametrize("early", [True, False], ids=["a chunk that was read", "a chunk that was not"])
def test_chunks_that_were_changed_since_the_first_run_are_refused(early: bool, folder: Path) -> None:
    array, call = _chunked(folder), {"out": folder / "o.npy", "resume": True, "name": "negative", **CPU}
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), folder / "x.zarr", **call)
    array[3 * STEP if early else -1] = 7
    for _ in range(2):
        with pytest.raises(ReadError, match=r"x\.zarr/c\S* was changed at .* since the run began.*chunkflow clean"):
            cf.map(Stopping(), folder / "x.zarr", **call)
    cf.clean(folder / "o.npy")
    cf.map(Stopping(), folder / "x.zarr", **call)
    np.testing.assert_array_equal(stored(folder / "o.npy"), array[...])


def test_chunks_that_were_removed_since_the_first_run_are_refused(folder: Path) -> None:
    _chunked(folder)
    call: dict[str, Any] = {"out": folder / "o.npy", "resume": True, "name": "negative", **CPU}
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), folder / "x.zarr", **call)
    (folder / "x.zarr" / "c" / "3" / "0" / "0").unlink()
    with pytest.raises(ReadError, match=r"x\.zarr/c/3/0 was changed at"):
        cf.map(Stopping(), folder / "x.zarr", **call)


def test_passes_refuse_chunks_that_were_changed_since_the_first_call(folder: Path) -> None:
    array, x = _chunked(folder), cf.open(folder / "x.zarr")
    expression = cf.map(np.negative, x) - cf.map(np.negative, x).mean()
    call: dict[str, Any] = {"device": "cpu", "budget": "48kB", "resume": True}
    with stopping(50), pytest.raises(StoppedError):
        cf.store(expression, folder / "o.npy", **call)
    array[-1] = 7
    with pytest.raises(ReadError, match=r"was changed at .* since the run began.*chunkflow clean"):
        cf.store(expression, folder / "o.npy", **call)


def test_arrays_of_which_nothing_is_known_are_refused(folder: Path) -> None:
    """A server that lists its objects without ETags and times."""
    zarr.create_array("memory://resume.zarr", data=X[:STEP])
    with (
        patch.object(fsspec_objects, "_TOLD", {"size": ("size",)}),
        pytest.raises(UnsupportedError, match=r"memory://resume\.zarr.*ETags"),
    ):
        cf.map(Stopping(), "memory://resume.zarr", out=folder / "o.npy", resume=True, device="cpu")
    assert names(folder) == ["x.npy"]


@pytest.mark.parametrize("out", ["o.npy", "o.zarr", "memory://resumed/o.zarr"])
def test_arrays_at_urls_are_known_by_their_objects(folder: Path, out: str) -> None:
    source = "memory://resumed/x.zarr"
    fsspec.filesystem("memory").store.clear()
    array = zarr.create_array(source, data=X, chunks=(STEP, *X.shape[1:]))
    target = out if "://" in out else folder / out
    call: dict[str, Any] = {"out": target, "resume": True, "name": "it", **CPU}
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), source, **call)
    array[-1] = 7  # a chunk that no call has read
    with pytest.raises(ResumeError, match="its elements are others"):
        cf.map(Stopping(), source, **call)
    cf.clean(target)
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), source, **call)
    rest = Stopping()
    cf.map(rest, source, **call)
    np.testing.assert_array_equal(cf.copy(target, device="cpu"), array[...])
    assert rest.calls < 60 - 10  # what was in slots is computed again, and how much that is, threads decide


def _unaligned(array: np.ndarray) -> np.ndarray:
    found = np.ndarray(array.shape, array.dtype, bytearray(array.nbytes + 1), 1)
    found[...] = array
    return found


MEMORY = [np.copy, np.asfortranarray, lambda x: x[::-1].copy()[::-1], lambda x: x.astype(">f4"), _unaligned]
"""Arrays in memory; the last two are read, as files are, since functions get native and aligned blocks."""


@pytest.mark.parametrize("laid_out", MEMORY)
def test_arrays_in_memory_are_known_by_their_elements(laid_out: Callable[[Any], np.ndarray], folder: Path) -> None:
    call: dict[str, Any] = {"out": folder / "o.npy", "resume": True, "name": "negative", **CPU}
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), laid_out(X), **call)
    with pytest.raises(ResumeError, match="array 0"):
        cf.map(Stopping(), laid_out(X + 1), **call)
    np.testing.assert_array_equal(cf.map(Stopping(), laid_out(X), **call), X)


@pytest.mark.parametrize(
    "filters", [{"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"fletcher32": True}]
)
def test_filters_of_a_dataset_are_those_of_its_copy(filters: dict[str, Any], folder: Path) -> None:
    with h5py.File(folder / "s.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=X.shape, **filters)
    cf.copy(folder / "s.h5:/x", folder / "o.h5:/y", resume=True, device="cpu").file.close()
    with h5py.File(folder / "o.h5") as file:
        np.testing.assert_array_equal(file["y"], X)
        assert {key: getattr(file["y"], key) for key in filters} == filters


def test_functions_are_known_by_their_code_and_what_it_uses(folder: Path) -> None:
    call: dict[str, Any] = {"out": folder / "o.npy", "resume": True, **CPU}
    stop, middle = folder / "stop", float(X[480, 0, 0])
    stop.touch()

    def scaled(factor: float) -> Any:
        def fn(block: np.ndarray) -> np.ndarray:
            if stop.exists() and block[0, 0, 0] == middle:
                raise StoppedError
            return block * np.float32(factor)

        return fn

    with pytest.raises(StoppedError):
        cf.map(scaled(2), folder / "x.npy", **call)
    stop.unlink()
    with pytest.raises(
        ResumeError, match=r"the function \(factor in fn: 2 then, 3 now\); where none was changed.*name="
    ):
        cf.map(scaled(3), folder / "x.npy", **call)
    np.testing.assert_array_equal(cf.map(scaled(2), folder / "x.npy", **call), X * 2)


def test_a_call_that_does_not_resume_loses_nothing(folder: Path) -> None:
    stopped(folder)
    before = names(folder)
    with pytest.raises(ResumeError, match="resume=True"):
        cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", **CPU)
    assert names(folder) == before
    (left,) = cf.leftovers(folder)
    assert left.resumes
    assert left.nbytes > X.nbytes / 4
    assert cf.recover(folder) == ()
    assert names(folder) == before
    cf.clean(folder)
    assert names(folder) == ["x.npy"]


def test_after_the_system_has_been_shut_down_it_begins_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(folder)
    monkeypatch.setattr(resume, "boot", lambda: "another one")
    whole = Stopping()
    cf.map(whole, folder / "x.npy", out=folder / "o.npy", resume=True, name="negative", **CPU)
    np.testing.assert_array_equal(stored(folder / "o.npy"), X)
    assert whole.calls >= 60


def test_what_replaces_an_array_keeps_it_until_it_is_complete(folder: Path) -> None:
    np.save(folder / "o.npy", np.arange(3))
    stopped(folder, overwrite=True)
    np.testing.assert_array_equal(stored(folder / "o.npy"), np.arange(3))
    cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", resume=True, name="negative", overwrite=True, **CPU)
    np.testing.assert_array_equal(stored(folder / "o.npy"), X)


def test_what_cannot_be_gone_on_with_is_refused_at_once(folder: Path) -> None:
    untouched = Stopping(1)
    for out in (None, np.empty_like(X)):
        with pytest.raises(UnsupportedError, match="resume="):
            cf.map(untouched, folder / "x.npy", out=out, resume=True, **CPU)
        with pytest.raises(UnsupportedError, match="resume="):
            cf.median(folder / "x.npy", out=out, resume=True, device="cpu")
    with pytest.raises(ArgumentTypeError, match="resume=1"):
        cf.map(untouched, folder / "x.npy", out=folder / "o.npy", resume=1, **CPU)
    x = cf.open(folder / "x.npy")
    with pytest.raises(UnsupportedError, match="resume="):
        cf.store([x - x.mean(), x.sum()], [folder / "o.npy", np.empty(())], resume=True, device="cpu")
    assert names(folder) == ["x.npy"]


@pytest.mark.parametrize(
    "call",
    [
        partial(cf.map, np.negative),
        partial(cf.map_overlap, np.negative, depth=1),
        lambda x, **options: cf.blockwise(np.negative, "ijk", x, "ijk", **options),
        cf.sum,
        cf.cumsum,
        cf.copy,
        cf.median,
        cf.histogram,
        cf.fft.fftn,
        partial(cf.rechunk, chunks=(1, 1, 1), out="o.zarr"),
        lambda x, **options: cf.store(cf.open(x) + 1, "o.npy", **options),
        lambda x, **options: cf.open(x).to_zarr("o.zarr", **options),
        lambda x, **options: cf.open(x).to_npy("o.npy", **options),
        lambda x, **options: chunkflow.dask.store(cf.open(x) + 1, "o.npy", **options),
    ],
)
@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"resume": "smooth"},
            ArgumentTypeError,
            "if it names the function, give resume=True, name='smooth'",
        ),
        ({"resume": 1}, ArgumentTypeError, "resume=1 must be True or False"),
        ({"name": "smooth"}, ArgumentError, "name='smooth' .* give both"),
        ({"resume": True, "name": 7}, ArgumentTypeError, "name=7 must be a text"),
        ({"resume": True, "name": ""}, ArgumentTypeError, "name='' must be a text"),
    ],
    ids=["a text", "a number", "a name alone", "a name that is none", "an empty name"],
)
def test_a_name_stands_for_the_function(
    call: Any, options: dict[str, Any], error: Any, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=said):
        call("x.npy", **options)
    assert names(folder) == ["x.npy"]


# -- HDF5 --------------------------------------------------------------------------------------------------------


def test_blocks_of_a_dataset_are_kept_beside_its_file(folder: Path) -> None:
    with h5py.File(folder / "o.h5", "w") as file:
        file["there"] = np.arange(9)
    before, call = (folder / "o.h5").read_bytes(), {"resume": True, "name": "negative", **CPU}
    stopped(folder, "o.h5:/run/u")
    assert (folder / "o.h5").read_bytes() == before
    for other in ({}, {"overwrite": True}):
        with pytest.raises(ResumeError, match=r"o\.h5:/run/u has ended early.*resume=True"):
            cf.map(Stopping(), folder / "x.npy", out=folder / "o.h5:/run/u", **CPU | other)
    (left,) = cf.leftovers(folder / "o.h5:/run/u")
    assert (left.resumes, left.nbytes >= X.nbytes) == (True, True)
    with patch.object(create, "_parts", side_effect=StoppedError), pytest.raises(StoppedError):
        cf.map(Stopping(), folder / "x.npy", out=folder / "o.h5:/run/u", **call)
    rest = Stopping()
    dataset = cf.map(rest, folder / "x.npy", out=folder / "o.h5:/run/u", **call)
    np.testing.assert_array_equal(dataset, X)
    assert rest.calls <= 1  # a trial
    dataset.file.close()
    assert stored(folder / "o.h5").keys() == {"there", "run/u"}
    assert names(folder) == ["o.h5", "x.npy"]


# -- Several passes ----------------------------------------------------------------------------------------------

QUANTILE: dict[str, Any] = {"q": 0.3, "chunks": (32, -1, -1), "device": "cpu"}  # 30 blocks in each of two passes


@contextmanager
def stopping(at: int = -1) -> Iterator[list[int]]:
    """The block number `at` of all passes fails, if any; gives a list that has one item for each block."""
    compute, made = BlockRunner._compute, list[int]()

    def stop(*args: Any) -> Any:
        made.append(len(made))
        if len(made) == at:
            raise StoppedError
        return compute(*args)

    with patch.object(BlockRunner, "_compute", stop):
        yield made


def half_a_quantile(folder: Path, **options: Any) -> dict[str, Any]:
    """A call that has ended early, in its second pass."""
    call = {"x": folder / "x.npy", "out": folder / "o.npy", "resume": True, **QUANTILE, **options}
    with stopping(45), pytest.raises(StoppedError):
        cf.quantile(**call)
    return call


def test_passes_that_are_done_are_not_made_again(folder: Path) -> None:
    call = half_a_quantile(folder)
    assert not (folder / "o.npy").exists()
    with stopping(-1) as made:
        cf.quantile(**call)
    assert 0 < len(made) <= 30
    assert stored(folder / "o.npy") == np.quantile(X, 0.3)
    assert names(folder) == ["o.npy", "x.npy"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": 0.4}, r"differs in the function and its arguments \(q=: 0.3 then, 0.4 now\)"),
        ({"chunks": (16, -1, -1)}, r"differs in the function and its arguments \(chunks=.*\)"),
        ({"budget": "8MB"}, "budget=: None then, 8MB now"),
        ({"x": X}, "array 0"),
    ],
    ids=["argument", "blocks", "budget", "array"],
)
def test_another_call_of_several_passes_is_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    call = half_a_quantile(folder)
    before = names(folder)
    with pytest.raises(ResumeError, match=said):
        cf.quantile(**call | change)
    assert names(folder) == before
    cf.quantile(**call)
    assert stored(folder / "o.npy") == np.quantile(X, 0.3)


def test_what_several_passes_left_is_not_lost_by_a_slip(folder: Path) -> None:
    call = half_a_quantile(folder)
    before = names(folder)
    for other in (call | {"resume": False}, call | {"resume": False, "overwrite": True}):
        with stopping(1), pytest.raises(ResumeError, match="resume=True"):
            cf.quantile(**other)
    for resumes in (False, True):
        with pytest.raises(ResumeError, match="resume=True"):
            cf.map(np.negative, folder / "x.npy", out=folder / "o.npy", resume=resumes, **CPU)
    assert names(folder) == before
    (left,) = cf.leftovers(folder)
    assert left.resumes
    assert cf.leftovers(folder / "o.npy") == (left,)
    assert cf.recover(folder) == ()
    assert names(folder) == before
    cf.clean(folder)
    assert names(folder) == ["x.npy"]


@pytest.mark.parametrize("out", ["o.npy", "g.zarr/o", "o.h5:/u"])
@pytest.mark.parametrize("resumes", [False, True])
def test_what_one_pass_left_is_refused_to_several_at_once(resumes: bool, out: str, folder: Path) -> None:
    stopped(folder, out)
    before, x = names(folder), cf.open(folder / "x.npy")
    for overwrite in (False, True):
        options: dict[str, Any] = {"resume": resumes, "overwrite": overwrite, "device": "cpu"}
        with stopping(1), pytest.raises(ResumeError, match="resume=True"):
            cf.median(folder / "x.npy", out=folder / out, **options)
        with stopping(1), pytest.raises(ResumeError, match="resume=True"):
            cf.store([x - x.mean(), x.sum()], [folder / out, folder / "s.npy"], **options)
    assert names(folder) == before
    cf.map(Stopping(), folder / "x.npy", out=folder / out, resume=True, name="negative", **CPU)


@pytest.mark.parametrize("call", ["one pass", "several", "an expression", "tasks of dask"])
def test_checksums_of_another_call_are_refused(call: str, folder: Path) -> None:
    x = cf.open(folder / "x.npy")
    calls: dict[str, Any] = {
        "one pass": lambda **how: cf.map(
            np.negative, folder / "x.npy", out=folder / "o.zarr", chunks=(16, -1, -1), **how
        ),
        "several": lambda **how: cf.quantile(**{**QUANTILE, "x": folder / "x.npy", "out": folder / "o.zarr", **how}),
        "an expression": lambda **how: cf.store(x * 2, folder / "o.zarr", chunks=(16, -1, -1), budget="48kB", **how),
        "tasks of dask": lambda **how: chunkflow.dask.store(
            x * 2, folder / "o.zarr", partition="32kB", chunks=(16, 10, 8), scheduler="sync", **how
        ),
    }
    with stopping({"several": 45, "tasks of dask": 4}.get(call, 30)), pytest.raises(StoppedError):
        calls[call](device="cpu", resume=True)
    with stopping(1), pytest.raises(ResumeError, match="checksum=: None then, False now"):
        calls[call](device="cpu", resume=True, checksum=False)
    calls[call](device="cpu", resume=True)
    assert cf.verify(folder / "o.zarr").checksums


def test_a_call_that_refuses_missing_chunks_does_not_go_on_with_one_that_filled_them(folder: Path) -> None:
    array = _chunked(folder)
    shutil.rmtree(folder / "x.zarr" / "c" / "1")
    call: dict[str, Any] = {"outs": folder / "o.npy", "resume": True, "budget": "48kB", "device": "cpu"}
    with stopping(30), pytest.raises(StoppedError):
        cf.store(cf.open(folder / "x.zarr") * 2, **call)
    with stopping(1), pytest.raises(ResumeError, match=r"x\.zarr\): missing chunks are filled then, error now"):
        cf.store(cf.open(folder / "x.zarr", missing="error") * 2, **call)
    assert array[STEP : 2 * STEP].sum() == 0


def test_passes_that_have_not_begun_leave_nothing(folder: Path) -> None:
    with stopping(1), pytest.raises(StoppedError):
        cf.median(folder / "x.npy", out=folder / "o.npy", resume=True, device="cpu")
    assert names(folder) == ["x.npy"]


def test_after_a_shutdown_all_passes_are_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = half_a_quantile(folder)
    monkeypatch.setattr(resume, "boot", lambda: "another one")
    with stopping(-1) as made:
        cf.quantile(**call)
    assert len(made) >= 60
    assert stored(folder / "o.npy") == np.quantile(X, 0.3)


def test_outputs_of_several_passes_wait_for_each_other(folder: Path) -> None:
    x = cf.open(folder / "x.npy")
    call: dict[str, Any] = {"outs": [folder / "sum.npy", folder / "o.npy"], "budget": "24kB", "resume": True}
    with stopping() as blocks:
        cf.store([x.sum(), x - x.mean()], [folder / "1.npy", folder / "2.npy"], device="cpu", budget="24kB")
    for path in (folder / "1.npy", folder / "2.npy"):
        path.unlink()
    with stopping(len(blocks) - 4), pytest.raises(StoppedError):
        cf.store([x.sum(), x - x.mean()], device="cpu", **call)
    assert not (folder / "sum.npy").exists()
    with pytest.raises(ResumeError, match="the function and its arguments"):
        cf.store([x.sum(), x + x.mean()], device="cpu", **call)
    x = cf.open(folder / "x.npy")
    with stopping() as again:
        total, rest = cf.store([x.sum(), x - x.mean()], device="cpu", **call)
    assert len(again) < 20 < len(blocks)
    np.testing.assert_array_equal(rest, X - np.float32(total / X.size))
    assert names(folder) == ["o.npy", "sum.npy", "x.npy"]


def leaving(claim: Claim, **how: Any) -> None:
    """In place of `Claim.end`: the process is killed."""
    claim.leave()


def test_marks_that_were_not_agreed_on_are_no_obstacle(folder: Path) -> None:
    say = Claim.say

    def failing(claim: Claim, line: dict[str, Any], **how: Any) -> None:
        if "commit" in line:
            raise OSError("the disk is gone")
        say(claim, line, **how)

    x = cf.open(folder / "x.npy")
    call: dict[str, Any] = {"outs": [folder / "sum.npy", folder / "o.npy"], "budget": "24kB", "resume": True}
    with (
        patch.object(Claim, "say", failing),
        patch.object(Claim, "end", leaving),
        pytest.raises(WriteError, match="the disk is gone"),
    ):
        cf.store([x.sum(), x - x.mean()], device="cpu", **call)
    total, rest = cf.store([x.sum(), x - x.mean()], device="cpu", **call)
    np.testing.assert_array_equal(rest, X - np.float32(total / X.size))
    assert names(folder) == ["o.npy", "sum.npy", "x.npy"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "outs",
    ["o.npy", "o.zarr", "g.zarr/o", "o.h5:/run/u", ("o.npy", "m.zarr"), ("o.h5:/a", "o.h5:/b"), ("o.h5", "m.npy")],
    ids=str,
)
def test_the_same_call_gives_what_one_had_published(outs: Any, overwrite: bool, folder: Path) -> None:
    several = isinstance(outs, tuple)
    out = tuple(folder / each for each in outs) if several else folder / outs
    call = {"resume": True, "name": "it", "overwrite": overwrite, "out": out, **CPU}

    def fn(block: np.ndarray) -> Any:
        return (block, -block) if several else block

    with patch.object(Claim, "end", leaving):
        close(cf.map(fn, folder / "x.npy", **call))
    made = {path.name: path.stat().st_ino for path in folder.iterdir() if not path.name.startswith(".")}
    with pytest.raises(OutputExistsError):
        cf.map(fn, folder / "x.npy", **call | {"resume": False, "name": None, "overwrite": False})
    if not overwrite:
        with pytest.raises(ResumeError, match="the function: it then, other now"):
            cf.map(fn, folder / "x.npy", **call | {"name": "other"})
        with pytest.raises(OutputExistsError):
            cf.median(folder / "x.npy", out=folder / (outs[0] if several else outs), resume=True, device="cpu")
    with stopping(1):
        found = cf.map(fn, folder / "x.npy", **call)
    for each, wanted in zip(found if several else [found], [X, -X], strict=False):
        np.testing.assert_array_equal(each[...], wanted)
    close(found)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == made


def close(found: Any) -> None:
    for each in found if isinstance(found, tuple) else (found,):
        if isinstance(each, h5py.Dataset) and each.id:
            each.file.close()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_call_that_had_only_to_clean_up_gives_what_it_made(folder: Path, overwrite: bool) -> None:
    call: dict[str, Any] = {"resume": True, "overwrite": overwrite, **QUANTILE}
    with patch.object(Passes, "end", lambda passes: passes._claim.leave()):
        cf.quantile(folder / "x.npy", out=folder / "o.npy", **call)
    inode = (folder / "o.npy").stat().st_ino
    with stopping(1):
        assert cf.quantile(folder / "x.npy", out=folder / "o.npy", **call) == np.quantile(X, 0.3)
    assert (folder / "o.npy").stat().st_ino == inode
    assert names(folder) == ["o.npy", "x.npy"]


def test_a_call_that_was_killed_while_it_removed_scratch_gives_what_it_made(folder: Path) -> None:
    call: dict[str, Any] = {"resume": True, "device": "cpu", "budget": "70kB"}
    source = resume_calls.rows(folder)
    with patch.object(Claim, "end", leaving), patch.object(passes, "remove", lambda path: None):
        cf.rechunk(source, (960, 4), folder / "o.zarr", **call)
    with stopping(1):
        found = cf.rechunk(source, (960, 4), folder / "o.zarr", **call)
    np.testing.assert_array_equal(found[...], resume_calls.array().reshape(960, 80))
    assert names(folder) == ["o.zarr", "rows.zarr", "x.npy"]


def test_blocks_of_a_pass_that_is_done_are_removed(folder: Path) -> None:
    x = cf.open(folder / "x.npy")
    call: dict[str, Any] = {"outs": [folder / "o.h5:/s", folder / "o.h5:/u"], "resume": True, "device": "cpu"}
    killed = patch.object(create.StagedSink, "end", lambda sink: sink._claim.leave())
    with killed, patch.object(Passes, "end", lambda passes: passes._claim.leave()):
        close(tuple(cf.store([x.sum(axis=0), x * 2], **call)))
    assert len(cf.leftovers(folder)) == 3
    with stopping(1):
        close(tuple(cf.store([x.sum(axis=0), x * 2], **call)))
    assert names(folder) == ["o.h5", "x.npy"]


def test_an_output_that_is_given_by_position_is_found_too(folder: Path) -> None:
    for _ in range(2):
        with patch.object(Passes, "end", Passes.stop):
            found = cf.rechunk(X, (960, 1, 1), folder / "o.zarr", resume=True, device="cpu")
    np.testing.assert_array_equal(found[...], X)
    cf.clean(folder)
    assert names(folder) == ["o.zarr", "x.npy"]


def test_members_of_two_groups_do_not_meet(folder: Path) -> None:
    one, other = (half_a_quantile(folder, out=folder / f"{name}.zarr" / "o") for name in "ab")
    for call in (other, one):
        cf.quantile(**call)
        assert stored(call["out"]) == np.quantile(X, 0.3)
    assert names(folder) == ["a.zarr", "b.zarr", "x.npy"]


def test_functions_of_ours_are_known_by_what_they_were_given(folder: Path) -> None:
    call: dict[str, Any] = {"out": folder / "h.npy", "chunks": (16, -1, -1), "resume": True, "device": "cpu"}
    with patch.multiple(resume, EVERY=0.0, SHARE=0), stopping(20), pytest.raises(StoppedError):
        cf.histogram(folder / "x.npy", [0, 0.5, 1], **call)
    with pytest.raises(ResumeError, match="the function"):
        cf.histogram(folder / "x.npy", [0, 0.1, 1], **call)
    found, _ = cf.histogram(folder / "x.npy", [0, 0.5, 1], **call)
    np.testing.assert_array_equal(found, np.histogram(X, [0, 0.5, 1])[0])


# -- Processes that are killed -----------------------------------------------------------------------------------


@pytest.fixture
def killed() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def call(kind: str, folder: Path) -> subprocess.Popen[str]:
    tests = Path(resume_calls.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), str(tests)])}
    command = [sys.executable, "-m", "engine.resume_calls", kind, str(folder)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def calls_of(folder: Path) -> int:
    path = folder / "calls"
    return path.stat().st_size if path.exists() else 0


def test_tasks_of_dask_that_are_done_are_not_made_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = cf.map(np.negative, cf.open(folder / "x.npy"))
    call: dict[str, Any] = {"partition": "16kB", "device": "cpu", "scheduler": "sync", "resume": True}
    outs = [folder / "o.npy", folder / "m.zarr"]
    with stopping(40), pytest.raises(StoppedError):
        chunkflow.dask.store([x * 2, x.mean(axis=0)], outs, **call)
    with pytest.raises(ResumeError, match="resume=True"):
        chunkflow.dask.store([x * 2, x.mean(axis=0)], outs, **call | {"resume": False})
    with pytest.raises(ResumeError, match=r"partition=.* then, .* now"):
        chunkflow.dask.store([x * 2, x.mean(axis=0)], outs, **call | {"partition": "32kB"})
    with stopping(-1) as made, chunkflow.dask.profile(progress=True) as seen:
        chunkflow.dask.store([x * 2, x.mean(axis=0)], outs, **call)
    assert f" {seen.report.runs}/{seen.report.runs} " in capsys.readouterr().err, "what is done is not counted"
    with stopping(-1) as whole:
        o, m = chunkflow.dask.store([x * 2, x.mean(axis=0)], [folder / "w.npy", folder / "n.zarr"], **call)
    assert len(made) == len(whole) - 39
    np.testing.assert_array_equal(stored(outs[0]), o)
    np.testing.assert_array_equal(stored(outs[1]), m)
    assert names(folder) == ["m.zarr", "n.zarr", "o.npy", "w.npy", "x.npy"]


def test_tasks_of_dask_refuse_chunks_that_were_changed_since_the_first_call(folder: Path) -> None:
    array, x = _chunked(folder), cf.open(folder / "x.zarr")
    call: dict[str, Any] = {"partition": "16kB", "device": "cpu", "scheduler": "sync", "resume": True}
    with stopping(10), pytest.raises(StoppedError):
        chunkflow.dask.store(x * 2, folder / "o.npy", **call)
    array[...] = X  # tasks come in no order that is known
    with pytest.raises(ReadError, match=r"was changed at .* since the run began.*chunkflow clean"):
        chunkflow.dask.store(x * 2, folder / "o.npy", **call)


def test_tasks_of_dask_are_refused_what_cannot_be_gone_on_with(folder: Path) -> None:
    x = cf.open(folder / "x.npy")
    with pytest.raises(UnsupportedError, match="resume="):
        chunkflow.dask.store(x + 1, folder / "o.h5", resume=True, device="cpu")
    with patch.object(Passes, "end", lambda passes: passes._claim.leave()):  # killed when there was only to clean up
        chunkflow.dask.store(x + 1, folder / "o.npy", resume=True, device="cpu", scheduler="sync")
    found = chunkflow.dask.store(x + 1, folder / "o.npy", resume=True, device="cpu", scheduler="sync")
    np.testing.assert_array_equal(found, X + 1)
    assert names(folder) == ["o.npy", "x.npy"]


@pytest.mark.parametrize(
    ("kind", "trials"),
    [("map to npy", 1), ("map to zarr", 1), ("map to hdf5", 1), ("sum of all", 1), ("several outputs", 2)],
)
def test_after_an_interrupt_no_block_is_computed_again(kind: str, trials: int, folder: Path) -> None:
    whole = folder / "whole"
    whole.mkdir()
    np.save(whole / "x.npy", np.load(folder / "x.npy"))
    close(KINDS[kind](whole))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    (folder / "interrupt.8").touch()
    command = [sys.executable, "-m", "engine.resume_calls", kind, str(folder)]
    child = subprocess.run(command, env=environment, check=False, timeout=60, capture_output=True, text=True)
    kept = r"(\d+) of (\d+) blocks(?: of this pass)? are kept, and the same call goes on with them"
    said = rf"KeyboardInterrupt\nchunkflow: {kept}$"
    found = re.search(said, child.stderr.rstrip())
    assert found is not None, child.stderr
    assert 1 <= int(found[1]) < int(found[2])
    done = (folder / "calls").stat().st_size
    assert 8 <= done < (whole / "calls").stat().st_size
    close(KINDS[kind](folder))
    assert (folder / "calls").stat().st_size == (whole / "calls").stat().st_size + trials
    for name in {path.name for path in whole.iterdir()} - {"calls"}:
        np.testing.assert_equal(stored(folder / name), stored(whole / name))


def test_a_second_run_is_refused_while_the_first_is_alive(folder: Path, killed: list[subprocess.Popen[str]]) -> None:
    process = call("map to npy", folder)
    killed.append(process)
    while process.poll() is None and calls_of(folder) < 5:
        time.sleep(0.001)
    with pytest.raises(OutputBusyError, match=str(process.pid)):
        KINDS["map to npy"](folder)


def _roll(x: Path, i: int, **o: Any) -> Any:
    return cf.roll(x, 1 + i, axis=0, **o)


def _flip(x: Path, i: int, **o: Any) -> Any:
    return cf.flip(x, axis=i, **o)


def _pad(x: Path, i: int, **o: Any) -> Any:
    return cf.pad(x, [(i, 1 - i), (0, 0), (0, 0)], **o)


def _memmap(x: Path, i: int, **o: Any) -> Any:
    return cf.copy(np.load(x, mmap_mode="r")[i : i + 700], **o)


def _variable(x: Path, i: int, **o: Any) -> Any:
    xarray, store = pytest.importorskip("xarray"), x.with_name("v.zarr")
    if not store.exists():
        zarr.create_group(store).create_array("v", data=X, chunks=(20, 10, 8), dimension_names=("z", "y", "x"))
    return cf.copy(xarray.open_zarr(store, chunks=None, consolidated=False)["v"][i : i + 700], **o)


def _boundary(x: Path, i: int, **o: Any) -> Any:
    return cf.map_overlap(np.positive, x, depth=1, boundary=["nearest", 0][i], **o)


def _number(x: Path, i: int, **o: Any) -> Any:
    return cf.map(np.add, x, 1.0 + i, **o)


def _stored(make: Any) -> Any:
    def run(x: Path, i: int, out: Any, **options: Any) -> Any:
        made = make(cf.open(x), i)
        return made.compute(device="cpu") if out is None else cf.store(made, out, **options)

    return run


OTHERS: dict[str, Any] = {
    "roll": _roll,
    "flip": _flip,
    "pad": _pad,
    "memmap": _memmap,
    "variable": _variable,
    "boundary": _boundary,
    "number": _number,
    "slice": _stored(lambda x, i: x[i : i + 700] * 2),
    "backwards": _stored(lambda x, i: x[:: 1 - 2 * i] + 1),
    "rolled": _stored(lambda x, i: np.roll(x, i, axis=0)[:700] * 2),
    "padded": _stored(lambda x, i: np.pad(x, [(i, 1 - i), (0, 0), (0, 0)])),
    "reshaped": _stored(lambda x, i: x.reshape(-1)[i : i + 60_000] * 2),
    "turned": _stored(lambda x, i: (x[:, :8, :8].transpose((0, 1 + i, 2 - i))) * 2),
    "places": _stored(lambda x, i: x[(np.arange(700) * 7 + i) % 701] * 2),
    "points": _stored(lambda x, i: x[(np.arange(9000) * 7 + i) % 701, np.arange(9000) % 9] * 2),
    "mapped": _stored(lambda x, i: cf.map(lambda b: b + 1, x[i : i + 700], dtype=x.dtype)),
}


@pytest.mark.parametrize("name", [None, "it"])
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_how_arrays_are_read_is_a_part_of_the_call(make: Any, name: str | None, folder: Path) -> None:
    budget = "175kB" if make is OTHERS["points"] else "30kB"  # the points count in it
    options = {"out": folder / "o.npy", "budget": budget, "device": "cpu", "resume": True, "name": name}
    before = names(folder)
    for _ in range(20):
        with stopping(8), pytest.raises(StoppedError):
            make(folder / "x.npy", 0, **options)
        if names(folder) != before:
            break  # else the first block was the slowest, and nothing is left
    with pytest.raises(ResumeError, match="of another call"):
        make(folder / "x.npy", 1, **options)
    got = make(folder / "x.npy", 0, **options)
    right = make(folder / "x.npy", 0, out=None, device="cpu")
    np.testing.assert_array_equal(got[...], right)


def test_names_of_axes_go_through_passes_that_are_gone_on_with(folder: Path) -> None:
    named = {"chunks": (STEP, 10, 8), "dimension_names": ("time", "y", "x")}
    zarr.create_array(folder / "x.zarr", data=X, **named)  # type: ignore[arg-type]

    def stored_so(**options: Any) -> Any:
        scaled = np.flip(cf.open(folder / "x.zarr") * 2, 1)
        moved = np.roll(scaled - scaled.mean(axis=(1, 2), keepdims=True), 3, axis=1) + 1
        return cf.store(np.sort(moved, axis=1), folder / "o.zarr", budget="300kB", device="cpu", resume=True, **options)

    with stopping() as blocks:
        whole = stored_so(overwrite=True)[...]
    for at in (len(blocks) // 3, len(blocks) // 2):
        with stopping(at), pytest.raises(StoppedError):
            stored_so(overwrite=True)
    with stopping() as left:
        stored_so(overwrite=True)
    assert 0 < len(left) < len(blocks)
    found = zarr.open_array(folder / "o.zarr")
    assert found.metadata.dimension_names == ("time", "dim_1", "x")  # type: ignore[union-attr]
    np.testing.assert_array_equal(found[...], whole)

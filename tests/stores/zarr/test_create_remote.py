"""Arrays that a run creates at a URL: what is there when, and what is left when something fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import zarr
from support.devices import MODES, checking
from support.urlsinks import UrlSinkContract, bucket
from zarr.storage import FsspecStore

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.protocol import Edge
from chunkflow.devices.race_detector import RaceError
from chunkflow.errors import ArgumentError, OutputBusyError, WriteError
from chunkflow.stores import open_target
from chunkflow.stores.kvstore import retries
from chunkflow.stores.zarr import remote_claim
from chunkflow.stores.zarr.remote_claim import MAKER
from chunkflow.testing import filled

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.002)
    yield
    fsspec.filesystem("memory").store.clear()


class TestUrlSink(UrlSinkContract):
    name = "result.zarr"


class TestGroupMemberUrlSink(UrlSinkContract):
    name = "result.zarr/run/speed"


X = filled((40, 50), "f4")
URL = "memory://some/y.zarr"


def run(out: Any = URL, x: np.ndarray = X, **options: Any) -> Any:
    return cf.map(np.negative, x, out=out, **{"chunks": (10, 50), "device": "cpu"} | options)


def there(url: str = URL) -> list[str]:
    return sorted(bucket(url).names())


def setting(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool], *, obeys: bool = False) -> None:
    """Let requests to store an object fail, which may be obeyed all the same."""
    real = FsspecStore.set

    async def answer(self: Any, key: str, *value: Any) -> None:
        failing = fails(key)
        if obeys or not failing:
            await real(self, key, *value)
        if failing:
            raise ConnectionResetError(f"{key}: reset")

    monkeypatch.setattr(FsspecStore, "set", answer)


def test_a_result_at_a_url() -> None:
    result = run()
    assert there() == ["c/0/0", "c/1/0", "c/2/0", "c/3/0", "zarr.json"]
    assert result.chunks == (10, 50)
    result[0, 0] = 5  # it is the user's, to write into
    assert zarr.open_array(URL, mode="r")[0, 0] == 5
    np.testing.assert_array_equal(zarr.open_array(URL, mode="r")[1:], -X[1:])


def test_results_of_other_operations(tmp_path: Path) -> None:
    total = cf.sum(X, out="memory://some/total.zarr", device="cpu")
    assert total.shape == ()
    assert float(total[()]) == pytest.approx(X.sum(dtype="f8"))
    (cf.open(X) + 1).to_zarr("memory://some/more.zarr", device="cpu")
    np.testing.assert_array_equal(zarr.open_array("memory://some/more.zarr")[...], X + 1)
    run(f"file://{tmp_path}/y.zarr")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "y.zarr")[...], -X)
    with pytest.raises(ArgumentError, match="same path twice"):
        cf.map(lambda x: (x, -x), X, out=(URL, f"{URL}/"), device="cpu")


def test_requests_that_fail_for_a_while_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}

    def fails(key: str) -> bool:
        seen[key] = seen.get(key, 0) + 1
        return seen[key] <= 2

    setting(monkeypatch, fails)
    np.testing.assert_array_equal(run()[...], -X)
    assert set(seen.values()) == {3}


@pytest.mark.parametrize("fails", ["c/2/0", "zarr.json"])
@pytest.mark.parametrize("obeys", [False, True])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("group", ["", "/speed"])
def test_a_run_that_fails_leaves_what_was_there(
    monkeypatch: pytest.MonkeyPatch, fails: str, obeys: bool, old: bool, group: str
) -> None:
    url = URL + group
    if old:
        run(url, -X)
    before, left = there(), [retries.ATTEMPTS] if obeys else [1000]
    with monkeypatch.context() as patch:

        def failing(key: str) -> bool:  # the server has recovered when the run cleans up
            wrong = fails in key and left[0] > 0 and (old or "speed" in key or not group)
            left[0] -= wrong
            return wrong

        if old and fails != "zarr.json":
            fails = "2.0"
        setting(patch, failing, obeys=obeys)
        with pytest.raises(WriteError, match="reset"):
            run(url, overwrite=True)
    assert there() == before
    if old:
        np.testing.assert_array_equal(zarr.open_array(url, mode="r")[...], X)


def test_many_objects_are_put_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real, busy = FsspecStore.set, [0, 0]

    async def slow(self: Any, *value: Any) -> None:
        busy[0] += 1
        busy[1] = max(busy)
        await asyncio.sleep(0.02)
        await real(self, *value)
        busy[0] -= 1

    monkeypatch.setattr(FsspecStore, "set", slow)
    zarr.create_array("memory://some/x.zarr", data=X, chunks=(5, 10))
    busy[1] = 0
    made = cf.map(np.negative, "memory://some/x.zarr", out=URL, device="cpu")
    np.testing.assert_array_equal(made[...], -X)
    assert len(there()) == 41, "chunks as the input has them"
    assert busy[1] >= 8


def between(x: np.ndarray, device: Any) -> Any:
    """A map from one URL to another, in blocks of a chunk."""
    zarr.create_array("memory://some/x.zarr", data=x, chunks=(4, 50), overwrite=True)
    options: dict[str, Any] = {"chunks": (4, 50), "dtype": "f4", "workspace": 4}
    return cf.map(lambda x: -x, "memory://some/x.zarr", out=URL, device=device, **options)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_it_has_no_race(mode: str, staged: bool) -> None:
    np.testing.assert_array_equal(between(X, checking(mode, staged=staged))[...], -X)
    blurred = cf.map_overlap(lambda x: x, URL, depth=1, boundary="reflect", device=checking(mode, staged=staged))
    np.testing.assert_array_equal(blurred, -X)


@pytest.mark.parametrize("edge", [Edge.UPLOADED, Edge.COMPUTED])
def test_lanes_of_their_own_are_ordered(edge: Edge) -> None:
    with pytest.raises(RaceError):
        between(X, checking("threaded", staged=False, drop=edge))
    assert not there()


def test_the_function_fails() -> None:
    def failing(x: np.ndarray) -> np.ndarray:
        if x[0, 0] == X[30, 0]:
            raise ZeroDivisionError("in the last block")
        return x

    with pytest.raises(ZeroDivisionError):
        cf.map(failing, X, out=URL, chunks=(10, 50), device="cpu", dtype="f4", workspace=4)
    assert not there()


@pytest.mark.parametrize("shape", [(40, 50), (40,), ()])
def test_replaced_again_and_again_with_nothing_left_behind(shape: tuple[int, ...]) -> None:
    x = filled(shape, "f4")
    for number in range(4):
        target = open_target(URL, overwrite=True)
        sink = target.open(target.describe(shape, x.dtype, None))
        sink.write(tuple(slice(0, n) for n in shape), x + number)
        if number:
            np.testing.assert_array_equal(zarr.open_array(URL, mode="r")[...], x + number - 1)
        np.testing.assert_array_equal(sink.commit()[...], x + number)
        assert len(there()) == 2, "a chunk and the metadata"


def test_an_array_of_format_2_is_replaced() -> None:
    zarr.create_array(URL, data=X, chunks=(10, 10), zarr_format=2)
    np.testing.assert_array_equal(run(overwrite=True)[...], -X)
    assert there() == ["c/0/0", "c/1/0", "c/2/0", "c/3/0", "zarr.json"]


@pytest.mark.filterwarnings("ignore::chunkflow.errors.LossWarning")
def test_arrays_of_format_2() -> None:
    url = "memory://some/old.zarr/late/u"
    new = cf.NewArray(url, zarr_format=2, chunks=(10, 25), dimension_names=("y", "x"), attributes={"unit": "K"})
    with pytest.raises(ZeroDivisionError):
        cf.map(lambda x: 1 // 0, X, out=new, device="cpu", dtype="f4", workspace=4)
    assert not there("memory://some")
    result = run(new)
    assert there(url) == [".zarray", ".zattrs", *(f"{i}.{j}" for i in range(4) for j in range(2))]
    found = zarr.open_array(url, mode="r")
    np.testing.assert_array_equal(found[...], -X)
    assert found.metadata.zarr_format == result.metadata.zarr_format == 2
    assert dict(found.attrs) == {"unit": "K", "_ARRAY_DIMENSIONS": ["y", "x"]}
    zarr.consolidate_metadata(zarr.open_group("memory://some/old.zarr", mode="r+").store, zarr_format=2)
    run("memory://some/old.zarr/v")  # of the group's format
    group = zarr.open_consolidated("memory://some/old.zarr", zarr_format=2)
    np.testing.assert_array_equal(group["late/u"][...], group["v"][...])
    assert dict(group["late/u"].attrs) == dict(found.attrs)
    run("memory://some/old.zarr/late/w")
    assert zarr.open_array("memory://some/old.zarr/late/w").attrs["_ARRAY_DIMENSIONS"] == ["w_0", "w_1"]
    for out in (url, new):
        with pytest.raises(ArgumentError, match="replaces nothing"):
            run(out, overwrite=True)
    with pytest.raises(ArgumentError, match="in a group of format 2"):
        run(cf.NewArray("memory://some/old.zarr/t", zarr_format=3))
    zarr.create_array(URL, data=X)
    with pytest.raises(ArgumentError, match="replaces nothing"):
        run(cf.NewArray(URL, zarr_format=2), overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(URL, mode="r")[...], X)


def test_in_place_by_way_of_new_chunks() -> None:
    run(x=-X)
    np.testing.assert_array_equal(cf.map(np.negative, URL, out=URL, overwrite=True, device="cpu")[...], -X)


def test_members_of_groups() -> None:
    run("memory://some/run.zarr/late/u")
    run("memory://some/run.zarr/late/v")
    group = zarr.open_group("memory://some/run.zarr", mode="r")
    assert sorted(name for name, _ in group.members(max_depth=None)) == ["late", "late/u", "late/v"]
    with pytest.raises(ArgumentError, match="zarr group"):
        run("memory://some/run.zarr/late", overwrite=True)
    with pytest.raises(ArgumentError, match="inside a zarr array"):
        run("memory://some/run.zarr/late/u/w")


def test_brackets_in_a_url_are_no_pattern() -> None:
    run("memory://some/run1/y.zarr")
    before = there("memory://some/run1")
    x = np.zeros_like(X)  # of which no chunk is kept
    run("memory://some/run[1]/y.zarr", x)
    run("memory://some/run[1]/y.zarr", overwrite=True)
    with pytest.raises(ZeroDivisionError):
        cf.map(lambda x: 1 // 0, X, out="memory://some/run[1]/z.zarr", device="cpu", dtype="f4", workspace=4)
    assert there("memory://some/run1") == before


def test_a_server_that_cannot_be_asked() -> None:
    with pytest.raises(ArgumentError, match="chunkflow-stream"):
        run("nothing://x/y.zarr")


def kept(block: np.ndarray, buffers: dict[tuple[int, int], np.ndarray]) -> np.ndarray:
    """A function that returns its own buffer each time."""
    buffer = buffers.setdefault((threading.get_ident(), len(block)), np.empty_like(block))
    np.negative(block, out=buffer)
    return buffer


MOVES: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray]]] = {
    "copy": (cf.copy, lambda x: x),
    "transpose": (cf.transpose, lambda x: x.T),
    "block": (partial(cf.map, lambda block: block), lambda x: x),
    "buffer": (lambda x, **options: cf.map(partial(kept, buffers={}), x, **options), np.negative),
}


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("where", ["from", "to", "both"])
@pytest.mark.parametrize("move", MOVES)
def test_what_is_stored_is_not_overwritten_by_the_next_block(move: str, where: str, lanes: int, tmp_path: Path) -> None:
    """Results may lie in their operand's block, or in a buffer of the function's, and are stored at their own time."""
    fn, expected = MOVES[move]
    x = np.random.default_rng(0).random((1000, 500))
    here, there = str(tmp_path / "x.npy"), "memory://moved/x.zarr"
    np.save(here, x)
    zarr.create_array(there, data=x, chunks=(20, 500), overwrite=True)
    out = str(tmp_path / "y.npy") if where == "from" else "memory://moved/y.zarr"
    for _ in range(2):
        fn(here if where == "to" else there, out=out, overwrite=True, device=NumpyDevice(lanes=lanes), budget="1MB")
        found = np.load(out) if where == "from" else zarr.open_array(out, mode="r")[...]
        np.testing.assert_array_equal(found, expected(x))


def test_of_two_runs_the_second_is_refused() -> None:
    def second(block: np.ndarray) -> np.ndarray:
        others: list[dict[str, Any]] = [{}, {"resume": True, "name": "it"}, {"overwrite": True}]
        for options in others if MAKER in there() else ():  # not in the trial call
            with pytest.raises(OutputBusyError, match=r"y\.zarr is being written by process"):
                run(**options)
        seen.extend([len(others)] * (MAKER in there()))
        return block

    seen: list[int] = []

    assert cf.map(second, X, out=URL, device="cpu")[0, 0] == X[0, 0]
    assert seen == [3]
    assert MAKER not in there()


def test_a_maker_is_put_only_where_there_is_none() -> None:
    objects = bucket(URL)
    assert objects.create(MAKER, b"{}")
    assert not objects.create(MAKER, b"other")
    with patch.object(type(objects._store.fs), "_pipe_file", without_conditions(objects._store.fs)):
        assert not objects.create(MAKER, b"other")
        assert objects.create("other", b"x")
    found = objects.get(MAKER)
    assert found is not None
    assert found.tobytes() == b"{}"


def without_conditions(files: Any) -> Any:
    real = type(files)._pipe_file

    async def put(self: Any, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        if mode == "create":
            raise NotImplementedError
        return await real(self, path, value, mode, **options)

    return put


def test_a_failed_run_is_not_alive() -> None:
    def failing(block: np.ndarray) -> np.ndarray:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        cf.map(failing, X, out=URL, device="cpu")
    assert there() == []
    run()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_what_a_killed_run_left_is_found_and_removed(old: bool, clean: bool) -> None:
    if old:
        run()
    before = there()
    target = open_target(URL, overwrite=True)
    sink = target.open(target.describe(X.shape, X.dtype, (7, 50)))
    sink.write((slice(0, 14), slice(0, 50)), X[:14])  # and then it is killed
    with patch.object(remote_claim, "_held", set[str]()):
        assert [left.output for left in cf.leftovers(URL)] == [URL]
        if clean:
            cf.clean(URL)
            assert there() == before
        else:
            run(x=2 * X, overwrite=True)
            assert len(there()) == 5
        assert cf.leftovers(URL) == ()
    if old or not clean:
        np.testing.assert_array_equal(zarr.open_array(URL, mode="r")[...], -X if clean else -2 * X)

"""What goes wrong says so, leaves nothing behind, and the next run works."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.compiled import BUILT, CompiledDevice
from support.devices import (
    CHECKING,
    CPU,
    CUDA,
    Place,
    at_work,
    checked,
    everywhere,
    machine,
    numpy_device,
    on_cpu_and_gpu,
    same,
)
from support.positions import at_positions

import chunkflow as cf
from chunkflow import errors
from chunkflow.core.memory import own_objects
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine.block_runner import BlockRunner
from chunkflow.engine.budget import NOT_LOADED_YET
from chunkflow.testing import CountingSource, FailingArray, filled

pytestmark = pytest.mark.combinations

ROWS = {"dtype": "f4", "workspace": 0, "chunks": (4, 500)}
"""Options of a run over `volume` in 20 blocks, without a trial call."""


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written through mappings, as on machines with more cores than the one at hand may have."""
    monkeypatch.setattr("chunkflow.stores.file.strided_sink.FEW_CORES", 0)


def volume() -> np.ndarray:
    return filled((80, 500), "f4")


def times(place: Place, fn: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    return cf.map(fn, *arrays, budget=place.budget(200_000), device=place.device(), **(ROWS | options))


def open_files(folder: Path) -> list[str]:
    """Files below a folder that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of the listing itself
            continue
        if name.startswith(str(folder)):
            found.append(name)
    return sorted(found)


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """No thread, open file, or file in `folder` that was not there before; and another run works."""
    before = at_work(), open_files(folder), sorted(os.listdir(folder))
    yield
    assert (at_work(), open_files(folder), sorted(os.listdir(folder))) == before
    same(times(CPU, np.negative, volume()), -volume())


# -- The function fails --------------------------------------------------------------------------------------


class OopsError(Exception):
    pass


def raising(error: BaseException, block: int) -> Callable[..., Any]:
    """A function that fails on one block."""

    def fn(x: Any, block_id: tuple[int, ...]) -> Any:
        if block_id[0] == block:
            raise error
        return x

    return fn


@everywhere
@pytest.mark.parametrize("sink", ["memory", "y.npy", "y.zarr"])
@pytest.mark.parametrize("block", [0, 9, 19])
def test_the_functions_own_exception_comes_out(place: Place, block: int, sink: str, tmp_path: Path) -> None:
    error = OopsError("bad block")
    with nothing_left(tmp_path), pytest.raises(OopsError) as caught:
        times(place, raising(error, block), volume(), out=None if sink == "memory" else tmp_path / sink)
    assert caught.value is error
    notes = [note for note in error.__notes__ if "chunkflow" in note]
    assert len(notes) == 1, "it is noted once"
    assert f"block ({block}, 0)" in notes[0]
    assert f"[{4 * block}:{4 * block + 4}, 0:500]" in notes[0]


@checked
@pytest.mark.parametrize("block", [0, 9, 19])
def test_a_failed_run_gives_a_shared_budget_all_back(place: Place, block: int, tmp_path: Path) -> None:
    """Lanes may still be at blocks that follow."""
    np.save(tmp_path / "x.npy", volume())
    device = place.device()

    def late(x: Any, block_id: tuple[int, ...]) -> Any:
        time.sleep(0.001)
        return raising(OopsError(), block)(x, block_id)

    with cf.Budget(200_000) as budget:
        free = budget.left(device, None)
        for _ in range(3):
            with pytest.raises(OopsError):
                cf.map(late, tmp_path / "x.npy", device=device, **ROWS)
            assert budget.left(device, None) == free
        for _ in cf.chunks(tmp_path / "x.npy", chunks=(4, 500), device=device):
            break
        assert budget.left(device, None) == free


@everywhere
def test_an_exception_in_the_trial_call_says_so(place: Place, tmp_path: Path) -> None:
    with nothing_left(tmp_path), pytest.raises(ZeroDivisionError) as caught:
        cf.map(lambda x: 1 / 0, volume(), budget=place.budget(200_000), device=place.device(), out=tmp_path / "y.npy")
    assert "trial call" in "".join(caught.value.__notes__)


@everywhere
@pytest.mark.parametrize(
    ("returns", "error", "base", "words"),
    [
        (lambda x: x[:2], errors.ResultError, ValueError, ["(2, 500)", "(4, 500)", "chunks="]),
        (lambda x: x.ravel(), errors.ResultError, ValueError, ["(2000,)", "(4, 500)", "drop_axis"]),
        (lambda x: x[None], errors.ResultError, ValueError, ["(1, 4, 500)", "new_axis"]),
        (lambda x: x.astype("c8"), errors.ResultTypeError, TypeError, ["complex64", "float32"]),
        (lambda x: x.astype("f4").tolist(), errors.ResultTypeError, TypeError, ["list", "ndarray"]),
        (lambda x: None, errors.ResultTypeError, TypeError, ["None", "ndarray"]),
        (lambda x: (x, x), errors.ResultError, ValueError, ["2", "1"]),
        (lambda x: 3.0, errors.ResultTypeError, TypeError, ["float", "ndarray"]),
    ],
)
def test_a_wrong_result_is_named_with_what_was_expected(
    place: Place, returns: Any, error: Any, base: Any, words: list[str], tmp_path: Path
) -> None:
    def fn(x: Any, block_id: tuple[int, ...]) -> Any:
        return returns(x) if block_id[0] == 5 else x

    with nothing_left(tmp_path), pytest.raises(error) as caught:
        times(place, fn, volume(), out=tmp_path / "y.npy")
    assert isinstance(caught.value, base)
    assert isinstance(caught.value, cf.ChunkflowError)
    for word in words:
        assert word in str(caught.value)
    assert "block (5, 0)" in "".join(caught.value.__notes__)


@everywhere
@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: x[::2], ["chunks="]),
        (lambda x: x.sum(axis=0), ["drop_axis"]),
        (lambda x: x[..., None], ["new_axis"]),
        (lambda x: [1, 2], ["list", "ndarray"]),
    ],
)
def test_a_wrong_result_of_the_trial_call_says_which_option_is_missing(place: Place, fn: Any, words: list[str]) -> None:
    with pytest.raises((errors.ResultError, errors.ResultTypeError)) as caught:
        cf.map(fn, volume(), budget=place.budget(200_000), device=place.device())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.gpu
def test_an_array_in_host_memory_is_a_wrong_result_on_a_gpu() -> None:
    with pytest.raises(errors.ResultTypeError, match=r"numpy\.ndarray.*; expected cupy\.ndarray"):
        times(CUDA[0].values[0], lambda x: np.zeros(x.shape, "f4"), volume())  # type: ignore[arg-type]


# -- Reading fails -------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("after", [0, 7, 19])
def test_a_failed_read_is_a_read_error_with_its_cause(place: Place, after: int, tmp_path: Path) -> None:
    cause = OSError(errno.EIO, "the disk is on fire")
    with nothing_left(tmp_path), pytest.raises(cf.ReadError) as caught:
        times(place, lambda x: x, FailingArray(volume(), after, cause), out=tmp_path / "y.npy")
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.EIO
    assert caught.value.__cause__ is cause
    assert "the disk is on fire" in str(caught.value)
    assert caught.value.region is not None


@everywhere
@pytest.mark.parametrize("kind", ["memmap", "npy"])
def test_a_file_that_shrinks_during_the_run_is_a_short_read(place: Place, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, volume())
    given: Any = path if kind == "npy" else np.load(path, mmap_mode="r")

    def shrink(x: Any) -> Any:
        os.truncate(path, 100_000)
        return x

    with nothing_left(tmp_path), pytest.raises(cf.ReadError, match="short read") as caught:
        times(place, shrink, given, out=tmp_path / "y.npy")
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    assert "100000 bytes" in str(caught.value)
    del given


@everywhere
def test_a_chunk_that_does_not_decode_is_named(place: Place, tmp_path: Path) -> None:
    x = zarr.create_array(tmp_path / "x.zarr", shape=(80, 500), dtype="f4", chunks=(4, 500))
    x[...] = volume()
    (tmp_path / "x.zarr/c/11/0").write_bytes(b"not what a codec wrote")
    with nothing_left(tmp_path), pytest.raises(cf.ReadError) as caught:
        times(place, lambda x: x, tmp_path / "x.zarr", out=tmp_path / "y.zarr")
    assert caught.value.path == str(tmp_path / "x.zarr")
    assert caught.value.region is not None
    assert caught.value.region[0] == slice(44, 48)
    assert "44:48" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_file_too_short_for_its_array_is_refused_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", volume())
    os.truncate(tmp_path / "x.npy", 1000)
    with nothing_left(tmp_path), pytest.raises(cf.ReadError, match="truncated") as caught:
        cf.map(np.sqrt, tmp_path / "x.npy", device="cpu")
    assert str(tmp_path / "x.npy") in str(caught.value)


# -- Writing fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [NumpyDevice, *([CompiledDevice] if BUILT else [])])
@pytest.mark.parametrize("failing", [1, 3])
def test_lanes_that_fail_as_they_end_fail_the_run(kind: type[NumpyDevice], failing: int) -> None:
    """Each transfer thread is told once that nothing follows, whatever happens to the others."""

    class Ending(kind):  # type: ignore[misc,valid-type]
        """Some of the lanes of whose threads fail when they are closed."""

        def lane(self, *, kernels: bool = False) -> Any:
            lane = super().lane(kernels=kernels)
            if threading.current_thread() is not threading.main_thread() and next(made) < failing:
                close = lane.close
                lane.close = lambda: (close(), 1 / 0)
            return lane

    made, options = iter(range(1000)), {"staged": True} if kind is NumpyDevice else {}
    x = filled((90, 700), "f4")
    with pytest.raises(ZeroDivisionError):
        cf.map(np.negative, x, device=Ending(machine=machine(staged=True, threads=3), **options), budget=100_000)


@everywhere
@pytest.mark.parametrize("after", [0, 7, 19])
def test_a_failed_write_is_a_write_error_with_its_cause(place: Place, after: int, tmp_path: Path) -> None:
    cause = OSError(errno.ENOSPC, "no space left on device")
    with nothing_left(tmp_path), pytest.raises(cf.WriteError) as caught:
        times(place, lambda x: x, volume(), out=FailingArray(np.zeros((80, 500), "f4"), after, cause))
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.__cause__ is cause
    assert "no space left" in str(caught.value)
    assert caught.value.region is not None


@everywhere
def test_a_disk_that_fills_up_leaves_nothing_under_the_final_name(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.pwritev, iter(range(9))

    def pwritev(*args: Any) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*args)

    with nothing_left(tmp_path):
        with monkeypatch.context() as patch:
            at_positions(patch)
            patch.setattr(
                "chunkflow.stores.file.strided_sink.FileSink.run", lambda *_: None
            )  # none is written beside `os`
            patch.setattr(os, "pwritev", pwritev)
            with pytest.raises(cf.WriteError) as caught:
                times(place, lambda x: x, volume(), out=tmp_path / "y.npy")
        assert caught.value.errno == errno.ENOSPC
        assert str(tmp_path / "y.npy") in str(caught.value)


@everywhere
@pytest.mark.parametrize("name", ["y.npy", "y.zarr"])
def test_a_file_larger_than_the_system_allows(place: Place, name: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).random((80, 50_000), "f4")  # chunks of it do not compress below the limit
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with nothing_left(tmp_path):
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            with pytest.raises(cf.WriteError) as caught:
                cf.map(
                    lambda x: x,
                    noise,
                    out=tmp_path / name,
                    budget=place.budget(30_000_000),
                    device=place.device(),
                    **(ROWS | {"chunks": (4, 25_000)}),
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.errno == errno.EFBIG
        assert str(tmp_path / name) in str(caught.value)


@everywhere
@pytest.mark.parametrize("name", ["y.npy", "y.zarr"])
def test_a_failed_run_keeps_what_it_was_to_overwrite(place: Place, name: str, tmp_path: Path) -> None:
    cf.map(np.negative, volume(), out=tmp_path / name, device="cpu")
    with nothing_left(tmp_path), pytest.raises(OopsError):
        times(place, raising(OopsError(), 9), volume(), out=tmp_path / name, overwrite=True)
    same(cf.map(lambda x: x, tmp_path / name, device="cpu"), -volume())


# -- Interrupts ----------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("block", [0, 9, 19])
def test_an_interrupt_inside_the_function(place: Place, block: int, tmp_path: Path) -> None:
    with nothing_left(tmp_path), pytest.raises(KeyboardInterrupt):
        times(place, raising(KeyboardInterrupt(), block), volume(), out=tmp_path / "y.npy")


@everywhere
def test_an_interrupt_inside_a_read(place: Place, tmp_path: Path) -> None:
    with nothing_left(tmp_path), pytest.raises(KeyboardInterrupt):
        times(place, lambda x: x, FailingArray(volume(), 7, KeyboardInterrupt()), out=tmp_path / "y.npy")


@everywhere
@pytest.mark.parametrize("block", [0, 1, 5, 17])
def test_ctrl_c(place: Place, block: int, tmp_path: Path) -> None:
    """The signal comes while the main thread waits for a block, or does what it does between two."""

    def press(x: Any, block_id: tuple[int, ...]) -> Any:
        if block_id[0] == block:
            os.kill(os.getpid(), signal.SIGINT)
        return x + 1

    x = np.repeat(volume(), 10, axis=0)
    with nothing_left(tmp_path), pytest.raises(KeyboardInterrupt):
        times(place, press, x, out=tmp_path / "y.npy")


@on_cpu_and_gpu
def test_ctrl_c_at_any_moment(place: Place, tmp_path: Path) -> None:
    """A thread presses at all sorts of moments, also while the run begins and cleans up."""
    x = np.repeat(volume(), 3, axis=0)
    interrupted = 0
    with nothing_left(tmp_path):
        for moment in range(60):
            timer = threading.Timer(0.0003 * moment, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                try:
                    times(place, lambda x: x + 1, x, out=tmp_path / f"{moment}.npy")
                finally:
                    timer.join()
                for _ in range(1000):  # the run was over first: the signal is taken here
                    time.sleep(0.001)
            except KeyboardInterrupt:
                interrupted += 1
            assert not at_work()
            assert not open_files(tmp_path) or (tmp_path / f"{moment}.npy").exists()
            (tmp_path / f"{moment}.npy").unlink(missing_ok=True)
            assert not os.listdir(tmp_path)
    assert interrupted == 60


# -- Arguments -----------------------------------------------------------------------------------------------


class Case:
    """A bad call: what it must raise, also as a built-in exception, and what the message must name."""

    def __init__(self, error: type, base: type, words: tuple[str, ...], /, *more: Any, **options: Any) -> None:
        self.error, self.base, self.words, self.more, self.options = error, base, words, more, options


TYPE, VALUE = errors.ArgumentTypeError, errors.ArgumentError
FREE = {"dtype": "f8", "workspace": 0}  # no trial call

CASES = {
    # dtypes
    "object dtype": Case(TYPE, TypeError, ("object",), np.array([None, 1], object)),
    "string dtype": Case(TYPE, TypeError, ("<U1", "only booleans"), np.array(["a", "b"])),
    "bytes dtype": Case(TYPE, TypeError, ("S1",), np.array([b"a", b"b"])),
    "datetime dtype": Case(TYPE, TypeError, ("datetime64",), np.zeros(2, "M8[s]")),
    "timedelta dtype": Case(TYPE, TypeError, ("timedelta64",), np.zeros(2, "m8[s]")),
    "structured dtype": Case(TYPE, TypeError, ("'a'",), np.zeros(2, [("a", "f4")])),
    "masked array": Case(TYPE, TypeError, ("mask", ".filled"), np.ma.zeros(2)),
    "a list": Case(TYPE, TypeError, ("list", "keyword"), [1, 2]),
    "result dtype": Case(TYPE, TypeError, ("<U3", "numeric"), dtype="U3"),
    "result dtype object": Case(TYPE, TypeError, ("object", "numeric"), dtype=object),
    "result dtype datetime": Case(TYPE, TypeError, ("datetime64", "numeric"), dtype="M8[s]"),
    "result dtype nonsense": Case(TYPE, TypeError, ("nonsense",), dtype="nonsense"),
    "result dtype of several": Case(VALUE, ValueError, ("out",), dtype=("f8", "f8"), workspace=0, out=np.zeros(6)),
    # budgets
    "budget negative": Case(VALUE, ValueError, ("-1", "positive"), budget=-1),
    "budget zero": Case(VALUE, ValueError, ("0", "positive"), budget=0),
    "budget negative text": Case(VALUE, ValueError, ("-4GB",), budget="-4GB"),
    "budget zero share": Case(VALUE, ValueError, ("0%", "percentage"), budget="0%"),
    "budget over 100%": Case(VALUE, ValueError, ("120%", "100%"), budget="120%"),
    "budget nan": Case(VALUE, ValueError, ("nan", "fraction"), budget=math.nan),
    "budget infinite": Case(VALUE, ValueError, ("inf", "fraction"), budget=math.inf),
    "budget 1.5": Case(VALUE, ValueError, ("1.5", "fraction", "'4GB'"), budget=1.5),
    "budget unit": Case(VALUE, ValueError, ("4XB", "GiB"), budget="4XB"),
    "budget words": Case(VALUE, ValueError, ("plenty",), budget="plenty"),
    "budget bool": Case(TYPE, TypeError, ("True",), budget=True),
    "budget list": Case(TYPE, TypeError, ("list",), budget=[1]),
    "workspace negative": Case(VALUE, ValueError, ("workspace=-1",), workspace=-1),
    "workspace nan": Case(VALUE, ValueError, ("workspace=nan",), workspace=math.nan),
    "workspace text": Case(VALUE, ValueError, ("workspace='1GB'",), workspace="1GB"),
    # shapes
    "no broadcast": Case(VALUE, ValueError, ("(6,)", "(5,)", "broadcast"), np.zeros(5)),
    "sink shape": Case(VALUE, ValueError, ("(5,)", "(6,)"), out=np.zeros(5)),
    "sink dtype": Case(TYPE, TypeError, ("int32", "float64", "dtype="), out=np.zeros(6, "i4"), **FREE),
    "sink dtype object": Case(TYPE, TypeError, ("object",), out=np.zeros(6, object)),
    "sink kind": Case(TYPE, TypeError, ("dict",), out={}),
    "sink list": Case(TYPE, TypeError, ("list",), out=[np.zeros(6)]),
    "sink overlaps itself": Case(
        VALUE, ValueError, ("overlaps itself",), out=np.lib.stride_tricks.as_strided(np.zeros(1), (6,), (0,))
    ),
    "out empty tuple": Case(VALUE, ValueError, ("empty tuple",), out=()),
    "out tuple for one": Case(VALUE, ValueError, ("one array",), out=(np.zeros(6),), **FREE),
    "out one for a tuple": Case(VALUE, ValueError, ("tuple of 2",), out=np.zeros(6), dtype=("f8", "f8"), workspace=0),
    "out three for two": Case(
        VALUE, ValueError, ("tuple of 2",), out=(None, None, None), dtype=("f8", "f8"), workspace=0
    ),
    # axes and blocks
    "chunks length": Case(VALUE, ValueError, ("(2, 2)", "2 entries", "1 dimension"), chunks=(2, 2)),
    "chunks zero": Case(VALUE, ValueError, ("chunks=0", "at least one"), chunks=0),
    "chunks negative": Case(VALUE, ValueError, ("-3",), chunks=(-3,)),
    "chunks text": Case(TYPE, TypeError, ("'big'",), chunks="big"),
    "chunks float": Case(TYPE, TypeError, ("2.5",), chunks=(2.5,)),
    "chunks float alone": Case(TYPE, TypeError, ("2.5",), chunks=2.5),
    "chunks irregular": Case(VALUE, ValueError, ("same",), chunks=((2, 3, 1),)),
    "chunks of another length": Case(VALUE, ValueError, ("(2, 2)", "6"), chunks=((2, 2),), dtype="f8", workspace=0),
    "drop_axis": Case(VALUE, ValueError, ("drop_axis=1", "1 dimension"), drop_axis=1),
    "drop_axis negative": Case(VALUE, ValueError, ("drop_axis=-2",), drop_axis=-2),
    "drop_axis twice": Case(VALUE, ValueError, ("drop_axis=(0, -1)", "twice"), drop_axis=(0, -1)),
    "drop_axis text": Case(TYPE, TypeError, ("drop_axis", "'x'"), drop_axis="x"),
    "drop_axis float": Case(TYPE, TypeError, ("drop_axis", "0.5"), drop_axis=0.5),
    "new_axis": Case(VALUE, ValueError, ("new_axis=2", "2 dimensions"), new_axis=2),
    "new_axis float": Case(TYPE, TypeError, ("new_axis", "0.5"), new_axis=0.5),
    # the rest
    "device": Case(errors.DeviceError, RuntimeError, ("toaster", "'cpu'"), device="toaster"),
    "device ordinal": Case(errors.DeviceError, RuntimeError, ("cuda:99",), device="cuda:99"),
    "device kind": Case(TYPE, TypeError, ("1.5", "'cpu'"), device=1.5),
    "missing input": Case(errors.SourceNotFoundError, FileNotFoundError, ("nowhere/x.npy",), "nowhere/x.npy"),
    "missing zarr": Case(errors.SourceNotFoundError, FileNotFoundError, ("nowhere.zarr/u",), "nowhere.zarr/u"),
    "input of another kind": Case(VALUE, ValueError, (__file__, ".npy"), __file__),
    "input URL": Case(VALUE, ValueError, ("none://host/x.zarr", "Protocol not known"), "none://host/x.zarr"),
    "output directory": Case(VALUE, ValueError, ("/nowhere",), out="/nowhere/y.npy"),
    "output format": Case(VALUE, ValueError, ("y.png", ".npy"), out="y.png"),
    "output twice": Case(VALUE, ValueError, ("y.npy", "twice"), out=("y.npy", "./y.npy")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_arguments_are_refused_before_the_first_read(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = CountingSource(np.arange(6.0))
    calls = []

    def fn(*blocks: Any) -> Any:
        calls.append(blocks)
        return blocks[0]

    with pytest.raises(case.error) as caught:
        cf.map(fn, x, *case.more, **({"device": "cpu"} | case.options))
    assert isinstance(caught.value, case.base)
    assert isinstance(caught.value, cf.ChunkflowError)
    for word in case.words:
        assert word in str(caught.value)
    assert x.bytes_read == 0
    assert not calls
    assert not os.listdir(tmp_path)


def test_what_is_no_function_is_refused() -> None:
    x = CountingSource(np.arange(6.0))
    with pytest.raises(errors.ArgumentTypeError, match="int"):
        cf.map(3, x, device="cpu")  # type: ignore[arg-type]
    assert x.bytes_read == 0


@pytest.mark.parametrize(
    ("fn", "out", "words"),
    [
        (lambda x: (x, x), np.zeros(6), "a tuple of 2 arrays, so out must be a tuple of 2, not a ndarray"),
        (lambda x: (x, x), (None,) * 3, "a tuple of 2 arrays, so out must be a tuple of 2, not a tuple"),
        (lambda x: x, (np.zeros(6),), "one array, so out must be one array or path, not a tuple"),
    ],
)
def test_an_output_that_does_not_suit_what_the_trial_shows_is_refused(fn: Any, out: Any, words: str) -> None:
    with pytest.raises(errors.ArgumentError, match=words):
        cf.map(fn, np.zeros(6), out=out, device="cpu")


def test_scalars_alone_are_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="at least one array"):
        cf.map(np.add, 1, 2.0, device="cpu")
    with pytest.raises(errors.ArgumentError, match="at least one array"):
        cf.map(np.add, device="cpu")


def test_numpys_integers_are_integers_too() -> None:
    x = filled((6, 7), "f8")
    two, one = np.int64(2), np.int64(1)
    same(cf.map(lambda x: x.sum(axis=1), x, drop_axis=one, chunks=(two,), device="cpu"), x.sum(axis=1))
    same(cf.map(lambda x: x, x, chunks=two, budget=np.int64(100_000), device="cpu"), x)


@pytest.mark.parametrize("name", ["y.npy", "y.zarr"])
def test_an_existing_output_is_kept_unless_it_may_be_overwritten(name: str, tmp_path: Path) -> None:
    cf.map(np.negative, volume(), out=tmp_path / name, device="cpu")
    x = CountingSource(volume())
    with pytest.raises(errors.OutputExistsError, match="overwrite=True") as caught:
        cf.map(np.sqrt, x, out=tmp_path / name, device="cpu")
    assert isinstance(caught.value, FileExistsError)
    assert str(tmp_path / name) in str(caught.value)
    assert x.bytes_read == 0
    same(cf.map(lambda x: x, tmp_path / name, device="cpu"), -volume())
    same(cf.map(np.sqrt, x, out=tmp_path / name, overwrite=True, device="cpu")[...], np.sqrt(volume()))


@pytest.mark.parametrize("name", ["x.npy", "x.zarr"])
def test_an_input_may_be_overwritten_under_its_own_name(name: str, tmp_path: Path) -> None:
    cf.map(lambda x: x, volume(), out=tmp_path / name, device="cpu")
    got = cf.map(np.negative, tmp_path / name, out=tmp_path / name, overwrite=True, device="cpu", budget="1MB")
    same(got[...], -volume())
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("kind", ["memory", "read-only memmap", "read-only zarr"])
def test_a_read_only_output_is_refused(kind: str, tmp_path: Path) -> None:
    out: Any = np.zeros(6)
    if kind == "memory":
        out.flags.writeable = False
    elif kind == "read-only memmap":
        np.save(tmp_path / "y.npy", out)
        out = np.load(tmp_path / "y.npy", mmap_mode="r")
    else:
        zarr.create_array(tmp_path / "y.zarr", shape=(6,), dtype="f8", chunks=(6,))
        out = zarr.open_array(tmp_path / "y.zarr", mode="r")
    x = CountingSource(np.arange(6.0))
    with pytest.raises(errors.ArgumentError, match="read-only"):
        cf.map(np.sqrt, x, out=out, device="cpu")
    assert x.bytes_read == 0


@pytest.mark.parametrize(
    ("into", "of"),
    [
        (np.s_[1:], np.s_[:-1]),
        (np.s_[:-1], np.s_[1:]),
        (np.s_[::-1], np.s_[:]),
        (np.s_[:, ::-1], np.s_[:]),
        (np.s_[:30, :30], np.s_[10:40, 10:40]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["memory", "memmap", "memmap and its array", "two memmaps"])
def test_a_shifted_overlap_is_refused(kind: str, into: Any, of: Any, tmp_path: Path) -> None:
    x: Any = filled((40, 40), "f8")
    y = x
    if kind != "memory":
        np.save(tmp_path / "x.npy", x)
        x = y = np.load(tmp_path / "x.npy", mmap_mode="r+")
        if kind == "memmap and its array":
            x = np.asarray(y)
        elif kind == "two memmaps":
            x = np.load(tmp_path / "x.npy", mmap_mode="r")
    calls = []
    with pytest.raises(errors.ArgumentError, match="overlaps the input"):
        cf.map(lambda x: calls.append(x) or x, x[of], out=y[into], device="cpu", dtype="f8", workspace=0)
    assert not calls
    same(y, filled((40, 40), "f8"))


def test_a_transposed_or_broadcast_input_cannot_be_overwritten_in_place() -> None:
    x = filled((9, 9), "f8")
    for given, out in ((x.T, x), (x[:1], x), (x[:, 0], x)):
        with pytest.raises(errors.ArgumentError, match="overlaps the input"):
            cf.map(np.add, given, np.zeros((9, 9)), out=out, device="cpu")
    same(x, filled((9, 9), "f8"))


def test_outputs_that_overlap_each_other_are_refused() -> None:
    y = np.zeros((10, 10))
    with pytest.raises(errors.ArgumentError, match="overlap"):
        cf.map(lambda x: (x, x), filled((6, 10), "f8"), out=(y[:6], y[4:]), device="cpu")


def test_a_zarr_array_may_not_be_its_own_shifted_input(tmp_path: Path) -> None:
    """Only equal shapes can be given, so nothing is shifted; blocks that cut chunks are the danger."""
    x = zarr.create_array(tmp_path / "x.zarr", shape=(80, 500), dtype="f4", chunks=(5, 500))
    x[...] = volume()
    with pytest.raises(errors.ArgumentError, match="multiple of 5"):
        times(CPU, np.negative, x, out=x)
    same(x[...], volume())


def test_a_host_array_that_cannot_fit_is_refused_with_advice() -> None:
    zeros = np.broadcast_to(np.zeros(1, "f4"), (1 << 20, 1 << 12, 1 << 12))
    with pytest.raises(errors.HostMemoryError, match=r"out='result.npy'") as caught:
        cf.map(lambda x: x, zeros, budget="1MB", device="cpu", dtype="f4", workspace=0)
    assert isinstance(caught.value, MemoryError)
    assert str(zeros.shape) in str(caught.value)


# -- Memory runs out -----------------------------------------------------------------------------------------


def greedy(place: Place, most: int, fn: Callable[[Any], Any] = lambda x: x + 1) -> Callable[[Any], Any]:
    """A function that runs out of memory on blocks of more than `most` elements."""

    def run(x: Any) -> Any:
        if x.size > most:
            raise place.out_of_memory(f"{x.size} elements are too many")
        return fn(x)

    return run


@everywhere
@pytest.mark.parametrize("most", [1999, 999, 100, 1])
def test_a_block_on_which_memory_runs_out_is_halved(place: Place, most: int) -> None:
    x = filled((12, 50), "f4") if most == 1 else volume()
    chunks = (4, 2) if most == 1 else (4, 500)  # -1 would promise that the axis stays whole
    with cf.Profile() as profile:
        same(times(place, greedy(place, most), x, chunks=chunks), x + 1)
    assert any("halves" in note for note in profile.report.notes)


def test_blocks_are_halved_along_their_first_axis_and_later_ones_from_the_start() -> None:
    x, seen = filled((8, 50), "f4"), list[tuple[int, ...]]()

    def fn(block: Any) -> Any:
        seen.append(block.shape)
        if block.size > 60:
            raise MemoryError("full")
        return block + 1

    device = numpy_device("eager", staged=False, lanes=1)
    with cf.Profile() as profile:
        same(cf.map(fn, x, chunks=(4, 50), dtype="f4", workspace=0, device=device), x + 1)
    quarters = [(1, 50)] * 4
    assert seen == [(4, 50), (2, 50), *quarters, *quarters], "halves have no gaps"
    assert profile.report.notes == tuple(
        f"fn ran out of memory on block (0, 0) [0:{n}, 0:50]: computed in halves (full)" for n in (4, 2)
    )


def test_a_halo_that_no_budget_holds_is_named() -> None:
    x = np.broadcast_to(1.0, (512, 512, 512))
    with pytest.raises(cf.BudgetError, match=r"a block of \(1, 1, 1\) with its halo takes 515.85 MB") as caught:
        cf.map_overlap(np.negative, x, depth=200, budget="1MB", device="cpu")
    assert caught.value.limit == 1_000_000
    assert caught.value.needed == pytest.approx(401**3 * 8 + own_objects(1 << 30), rel=1e-4)


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), cf.BudgetError("mine", limit=7)], ids=repr)
def test_what_the_end_of_a_fold_raises_is_kept(error: Exception) -> None:
    x = np.arange(600.0)

    def last(value: Any, axis: Any, keepdims: bool) -> Any:
        if value.sum() == x.sum():  # of the trial's block it is less
            raise error
        return value

    how: dict[str, Any] = {"budget": 20_000, "device": "cpu", "dtype": "f8"}
    with pytest.raises(type(error), match=r"^mine") as caught:
        cf.reduction(x, np.sum, lambda value, axis, keepdims: last(value, axis, keepdims).sum(axis=axis), **how)
    assert caught.value is error


@pytest.mark.parametrize("place", [place for place in CHECKING if place.staged and place.lanes == 1] + CUDA, ids=str)
def test_where_memory_does_not_suffice_beside_waiting_results_fewer_wait(place: Place) -> None:
    x, made, failed = filled((400, 50), "f4"), list[weakref.ref[Any]](), []

    def fn(block: Any) -> Any:
        if any(result() is not None for result in made):
            failed.append(len(made))
            raise place.out_of_memory("another result takes it")
        result = block + 1
        made.append(weakref.ref(result))
        return result

    with cf.Profile() as profile:
        got = cf.map(
            fn, x, chunks=(4, 50), budget=place.budget(1 << 20), device=place.device(), dtype="f4", workspace=8
        )
    same(got, x + 1)
    assert len(made) == 100
    assert 0 < len(failed) <= 2  # with three slots two results wait
    assert any("fewer results wait" in note for note in profile.report.notes)


@everywhere
def test_halves_of_several_arrays_and_results(place: Place) -> None:
    x, row, column = volume(), filled((500,), "f4"), filled((80, 1), "f4")

    def fn(x: Any, row: Any, column: Any) -> Any:
        if x.size > 300:
            raise place.out_of_memory("too many")
        return x + row, x * column > 5

    got = times(place, fn, x, row, column, dtype=("f4", "?"), chunks=(4, 500))
    for one, expected in zip(got, (x + row, x * column > 5), strict=True):
        same(one, expected)


@everywhere
def test_halves_leave_whole_axes_whole_and_resized_ones_even(place: Place) -> None:
    x = filled((32, 20), "i4")
    same(times(place, greedy(place, 60, lambda x: x.sum(axis=1)), x, chunks=(8,), drop_axis=1, dtype="i8"), x.sum(1))
    thin = greedy(place, 90, lambda x: x[::2])
    same(cf.map(thin, x, chunks=(8, -1), budget=place.budget(100_000), device=place.device()), x[::2])


@everywhere
def test_the_trial_call_may_run_out_of_memory_too(place: Place) -> None:
    got = cf.map(greedy(place, 500), volume(), budget=place.budget(1 << 20), device=place.device())
    same(got, volume() + 1)


@everywhere
@pytest.mark.parametrize("trial", [True, False])
def test_a_function_that_never_has_enough_memory_is_a_budget_error(place: Place, trial: bool, tmp_path: Path) -> None:
    options = {} if trial else ROWS
    with nothing_left(tmp_path), pytest.raises(cf.BudgetError, match="budget=") as caught:
        cf.map(
            greedy(place, 0),
            volume(),
            out=tmp_path / "y.npy",
            budget=place.budget(200_000),
            device=place.device(),
            **options,
        )
    assert isinstance(caught.value, MemoryError)
    assert caught.value.limit == place.budget(200_000)


@everywhere
@pytest.mark.parametrize("shape", [(80, 500), (1_000_000,), (7, 7, 7, 7)])
def test_the_smallest_budget_that_an_error_names_will_do(place: Place, shape: tuple[int, ...], tmp_path: Path) -> None:
    x = CountingSource(filled(shape, "f4"))
    options = {"dtype": "f4", "workspace": 40}
    with nothing_left(tmp_path), pytest.raises(cf.BudgetError) as caught:
        cf.map(lambda x: x + 1, x, budget=place.reserve + 1, device=place.device(), out=tmp_path / "y.npy", **options)
    error = caught.value
    assert x.bytes_read == 0
    assert error.limit is not None
    assert error.limit <= place.reserve + 1
    assert error.smallest is not None
    assert error.smallest == error.needed
    assert str(error.smallest) in str(error)
    assert "budget=" in str(error)
    too_small = max(1, error.smallest - 1 - (NOT_LOADED_YET if place.reserve else 0))
    with pytest.raises(cf.BudgetError):
        cf.explain(lambda x: x + 1, x, budget=too_small, device=place.device(), **options)
    if math.prod(shape) < 10_000:
        got = cf.map(lambda x: x + 1, x, budget=error.smallest, device=place.device(), **options)
        same(got, np.asarray(x[...]) + 1)
    else:
        plan = cf.explain(lambda x: x + 1, x, budget=error.smallest, device=place.device(), **options)
        assert plan.memory.total <= error.smallest


@everywhere
def test_the_smallest_budget_is_right_where_a_trial_call_measured_it(place: Place) -> None:
    def wide(x: Any) -> Any:
        return np.stack([x] * 20).sum(axis=0)

    for _ in range(5):
        with pytest.raises(cf.BudgetError) as caught:
            cf.explain(wide, volume(), budget=place.reserve + 100, device=place.device(), chunks=(4, -1))
        assert caught.value.smallest is not None
        plan = cf.explain(wide, volume(), budget=caught.value.smallest, device=place.device(), chunks=(4, -1))
        assert plan.memory.total <= caught.value.smallest


def test_memory_that_runs_out_after_the_last_block_was_added_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy, that travels, finds no room: to compute the block again would add it again."""
    x, made = filled((400, 600), "f8"), iter(range(1000))
    empty = BlockRunner._empty

    def scarce(self: BlockRunner, *args: Any) -> Any:
        if next(made) == 1:  # while the first result is on its way
            raise MemoryError("no room")
        return empty(self, *args)

    monkeypatch.setattr(BlockRunner, "_empty", scarce)

    def add(block: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
        return block.sum(axis=axis, keepdims=keepdims)

    def give(block: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
        return add(block, axis, keepdims)[:]

    with pytest.raises(cf.BudgetError, match=r"partial results .* raise budget="):
        cf.reduction(x, add, give, axis=1, dtype="f8", device=numpy_device("lazy", staged=True), budget=60_000)
    assert next(made) == 2

"""Runs that end early, and later calls that go on with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from engine import resume_calls
from engine.resume_calls import KINDS

import chunkflow as cf
from chunkflow.engine import resume
from chunkflow.errors import OutputBusyError, OutputExistsError, ResumeError, UnsupportedError

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
    options = {"resume": "negative", **CPU, **options}
    with pytest.raises(StoppedError):
        cf.map(Stopping(at), folder / "x.npy", out=folder / out, **options)
    return folder / out


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def stored(path: Path) -> np.ndarray:
    return np.load(path) if path.suffix == ".npy" else np.asarray(zarr.open_array(path, mode="r")[...])


@pytest.mark.parametrize("out", ["o.npy", "o.zarr", "group.zarr/o"])
def test_the_same_call_computes_what_is_lacking(folder: Path, out: str) -> None:
    stopped(folder, out)
    assert not (folder / out).exists()
    rest = Stopping()
    got = cf.map(rest, folder / "x.npy", out=folder / out, resume="negative", **CPU)
    np.testing.assert_array_equal(got[...], X)
    np.testing.assert_array_equal(stored(folder / out), X)
    assert rest.calls < 60 - 20
    assert names(folder) == sorted({Path(out).parts[0], "x.npy"})


def test_what_has_not_begun_leaves_nothing(folder: Path) -> None:
    stopped(folder, at=1)
    assert names(folder) == ["x.npy"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resume": "other"}, "the function: negative then, other now"),
        ({"chunks": (2 * STEP, -1, -1)}, "the blocks"),
        ({"dtype": "f8"}, "output 0 .*float64|f8"),
    ],
    ids=["function", "blocks", "dtype"],
)
def test_another_call_is_refused_and_says_what_differs(folder: Path, change: dict[str, Any], said: str) -> None:
    stopped(folder)
    before = names(folder)
    with pytest.raises(ResumeError, match=said):
        cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", **{"resume": "negative", **CPU, **change})
    assert names(folder) == before


def test_a_changed_array_is_refused(folder: Path) -> None:
    stopped(folder)
    np.save(folder / "x.npy", X + 1)
    with pytest.raises(ResumeError, match=r"array 0 \(.*x\.npy\)"):
        cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", resume="negative", **CPU)


def test_a_changed_chunk_is_refused(folder: Path) -> None:
    source = zarr.create_array(folder / "x.zarr", data=X, chunks=(STEP, 10, 8))
    call: dict[str, Any] = {"out": folder / "o.npy", "resume": "negative", **CPU}
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), folder / "x.zarr", **call)
    source[0, 0, 0] += 1
    with pytest.raises(ResumeError, match=r"array 0 \(.*x\.zarr\)"):
        cf.map(Stopping(), folder / "x.zarr", **call)


def test_arrays_of_which_nothing_is_known_are_refused(folder: Path) -> None:
    zarr.create_array("memory://resume.zarr", data=X[:STEP])
    with pytest.raises(UnsupportedError, match=r"memory://resume\.zarr"):
        cf.map(Stopping(), "memory://resume.zarr", out=folder / "o.npy", resume=True, device="cpu")
    assert names(folder) == ["x.npy"]


def test_arrays_in_memory_are_known_by_their_elements(folder: Path) -> None:
    call: dict[str, Any] = {"out": folder / "o.npy", "resume": "negative", **CPU}
    with pytest.raises(StoppedError):
        cf.map(Stopping(30), X.copy(), **call)
    with pytest.raises(ResumeError, match="array 0"):
        cf.map(Stopping(), X + 1, **call)
    np.testing.assert_array_equal(cf.map(Stopping(), X.copy(), **call), X)


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
    with pytest.raises(ResumeError, match="the function"):
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
    monkeypatch.setattr(resume, "_boot", lambda: "another one")
    whole = Stopping()
    cf.map(whole, folder / "x.npy", out=folder / "o.npy", resume="negative", **CPU)
    np.testing.assert_array_equal(stored(folder / "o.npy"), X)
    assert whole.calls >= 60


def test_what_replaces_an_array_keeps_it_until_it_is_complete(folder: Path) -> None:
    np.save(folder / "o.npy", np.arange(3))
    stopped(folder, overwrite=True)
    np.testing.assert_array_equal(stored(folder / "o.npy"), np.arange(3))
    cf.map(Stopping(), folder / "x.npy", out=folder / "o.npy", resume="negative", overwrite=True, **CPU)
    np.testing.assert_array_equal(stored(folder / "o.npy"), X)


def test_what_cannot_be_gone_on_with_is_refused_at_once(folder: Path) -> None:
    untouched = Stopping(1)
    for out in (None, np.empty_like(X), folder / "o.h5:/d"):
        with pytest.raises(UnsupportedError, match="resume="):
            cf.map(untouched, folder / "x.npy", out=out, resume=True, **CPU)
    with pytest.raises(cf.errors.ArgumentTypeError, match="resume=1"):
        cf.map(untouched, folder / "x.npy", out=folder / "o.npy", resume=1, **CPU)
    with pytest.raises(UnsupportedError, match="several passes"):
        cf.median(folder / "x.npy", axis=0, out=folder / "o.npy", resume=True, device="cpu")
    x = cf.open(folder / "x.npy")
    with pytest.raises(UnsupportedError, match="more than one pass"):
        cf.store(x - x.mean(), folder / "o.npy", resume=True, device="cpu")
    assert names(folder) == ["x.npy"]


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_is_gone_on_with_to_the_same_bits(
    kind: str, tmp_path: Path, killed: list[subprocess.Popen[str]]
) -> None:
    folder, other = tmp_path / "killed", tmp_path / "whole"
    for each in (folder, other):
        each.mkdir()
        np.save(each / "x.npy", X)
    KINDS[kind](other)
    whole, kills = calls_of(other), 0
    while True:
        process, before = call(kind, folder), calls_of(folder)
        killed.append(process)
        while process.poll() is None and (kills == 3 or calls_of(folder) < before + whole // 4):
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, said = process.communicate()
        if process.returncode == 0 or OutputExistsError.__name__ in said:  # killed when it had published
            break
        assert process.returncode == -signal.SIGKILL, said
    assert kills
    outputs = sorted(path for path in other.iterdir() if path.name not in ("x.npy", "calls"))
    for path in outputs:
        found, wanted = stored(folder / path.name), stored(path)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    assert names(folder) == names(other)
    in_flight = 2 + 3 * len(os.sched_getaffinity(0))  # and a trial in each process
    assert calls_of(folder) <= whole + kills * in_flight


def test_a_second_run_is_refused_while_the_first_is_alive(folder: Path, killed: list[subprocess.Popen[str]]) -> None:
    process = call("map to npy", folder)
    killed.append(process)
    while process.poll() is None and calls_of(folder) < 5:
        time.sleep(0.001)
    with pytest.raises(OutputBusyError, match=str(process.pid)):
        KINDS["map to npy"](folder)

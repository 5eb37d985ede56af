"""Progress: what is counted, who is told, and when nothing is shown."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
import chunkflow.fft
from chunkflow.engine.observe.progress import make
from chunkflow.engine.options import Options, ProgressLike
from chunkflow.engine.trace import Trace
from chunkflow.errors import ArgumentTypeError


def run(progress: ProgressLike, bytes_in: int = 200, bytes_out: int = 100, partials: int = 0) -> None:
    observer = make(progress)
    assert observer is not None
    memory = SimpleNamespace(partials=partials)
    observer.started(SimpleNamespace(bytes_given=bytes_in, bytes_out=bytes_out, memory=memory))
    for _ in range(4):
        observer.landed(bytes_in // 4, bytes_out // 4)
    observer.finished(None, 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(progress: ProgressLike, stream: io.StringIO) -> str:
    with contextlib.redirect_stderr(stream):
        run(progress)
    return stream.getvalue()


@pytest.mark.parametrize("progress", [False, None])
def test_none_asked_for(progress: ProgressLike) -> None:
    assert make(progress) is None


def test_nobody_is_told_unless_he_asks() -> None:
    told = []
    for owner in (cf, cf.Array, cf.fft, Options):
        for name in {"Options"} if owner is Options else {n for n in dir(owner) if not n.startswith("_")}:
            call = owner if owner is Options else getattr(owner, name)
            with contextlib.suppress(TypeError, ValueError):  # no function
                told += [(name, p.default) for p in inspect.signature(call).parameters.values() if p.name == "progress"]
    assert {"Options", "compute", "store", "map", "map_overlap", "label_statistics"} <= {name for name, _ in told}
    assert {default for _, default in told} == {None}
    assert cf.config.get("progress") is False


def test_quiet_off_a_terminal() -> None:
    assert shown(True, io.StringIO()) == ""


@pytest.mark.parametrize(("progress", "stream"), [("always", io.StringIO()), (True, Terminal())])
def test_a_bar_shows_the_share_the_bytes_and_the_rate(progress: ProgressLike, stream: io.StringIO) -> None:
    text = shown(progress, stream)
    assert "chunkflow: 100%" in text
    assert "100/100" in text
    assert "B/s" in text


def test_a_bar_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    shown(True, Terminal())
    assert set(threading.enumerate()) <= before


def test_function_gets_the_bytes_stored() -> None:
    calls: list[tuple[int, int]] = []
    run(lambda done, total: calls.append((done, total)))
    assert calls == [(0, 100), (25, 100), (50, 100), (75, 100), (100, 100)]


def test_bytes_read_where_nothing_is_stored() -> None:
    calls: list[tuple[int, int]] = []
    run(lambda done, total: calls.append((done, total)), bytes_out=0)
    assert calls[-1] == (200, 200)


def test_bytes_read_where_the_result_is_stored_at_the_end(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    run(lambda done, total: calls.append((done, total)), bytes_out=4, partials=8)
    assert calls == [(0, 200), (50, 200), (100, 200), (150, 200), (200, 200)]
    calls.clear()
    x = np.ones((64, 1000))
    cf.copy(x, cf.NewArray(tmp_path / "x.zarr", chunks=(4, 1000)), device="cpu")
    told = lambda done, total: calls.append((done, total))  # noqa: E731
    cf.mean(tmp_path / "x.zarr", axis=0, budget="500kB", device="cpu", progress=told)
    assert len(calls) > 3
    assert (calls[0], calls[-1]) == ((0, x.nbytes), (x.nbytes, x.nbytes))


def test_chunks_that_are_read_again_count_once(tmp_path: Path) -> None:
    """Blocks are parts of them, in a small budget, and those of shards are not kept for the next block."""
    x = np.ones((64, 64, 64))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(64, 32, 64), shards=(64, 32, 64))
    calls: list[tuple[int, int]] = []
    options: Any = {"axis": 0, "budget": "3MB", "device": "cpu"}
    assert cf.explain(cf.mean, tmp_path / "x.zarr", **options).bytes_in > x.nbytes
    cf.mean(tmp_path / "x.zarr", progress=lambda done, total: calls.append((done, total)), **options)
    assert (calls[0], calls[-1]) == ((0, x.nbytes), (x.nbytes, x.nbytes))


def test_an_observer_starts_anew_with_each_run() -> None:
    calls: list[tuple[int, int]] = []
    observer = make(lambda done, total: calls.append((done, total)))
    for _ in range(2):
        assert observer is not None
        observer.started(SimpleNamespace(bytes_given=8, bytes_out=8, memory=SimpleNamespace(partials=0)))
        observer.landed(8, 8)
    assert calls == [(0, 8), (8, 8)] * 2


def test_a_function_that_raises_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def fail(done: int, total: int) -> None:
        calls.append(done)
        raise ZeroDivisionError

    observer = make(fail)
    assert observer is not None
    trace = Trace([observer])
    with caplog.at_level(logging.ERROR, logger="chunkflow"):
        trace.started(SimpleNamespace(bytes_given=8, bytes_out=8, memory=SimpleNamespace(partials=0)))
        trace.landed(8, 8)
    assert calls == [0]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("progress", ["sometimes", 1, 0, [], 2.5])
def test_anything_else_is_refused(progress: object) -> None:
    with pytest.raises(ArgumentTypeError, match="progress must be"):
        make(progress)  # type: ignore[arg-type]

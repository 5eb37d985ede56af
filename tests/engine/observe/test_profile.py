"""Profile: busy time as a union of spans, and the report made of it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.cluster.reports import joined
from chunkflow.core.units import format_bytes
from chunkflow.engine import trace
from chunkflow.engine.observe import profile as profile_module
from chunkflow.engine.observe.busy import Busy
from chunkflow.engine.observe.profile import Profile
from chunkflow.engine.observe.report import Report, StageReport
from chunkflow.errors import ChunkflowError

# Whole numbers, so that sums are exact and any order of adding gives the same seconds.
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda s: (min(s), max(s))))


def length(spans: list[tuple[int, int]], since: float = -math.inf) -> int:
    """Oracle: count the unit cells that any span covers, from `since` on."""
    return len({t for start, stop in spans for t in range(start, stop) if t >= since})


def run(observer: trace.Observer | trace.Trace, *spans: tuple[trace.Stage, float, float, int], peak: int = 0) -> None:
    observer.started(None)
    for span in spans:
        observer.span(*span)
    observer.finished(None, peak)


@given(SPANS)
def test_busy_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    busy = Busy()
    for start, stop in spans:
        busy.add(start, stop)
    assert busy.seconds == length(spans)


@given(SPANS, st.integers(1, 8))
def test_spans_in_order_are_counted_exactly_however_few_are_kept(spans: list[tuple[int, int]], keep: int) -> None:
    busy = Busy(keep)
    for start, stop in sorted(spans):
        busy.add(start, stop)
    assert busy.seconds == length(spans)


@given(SPANS, st.integers(1, 8))
def test_late_spans_lose_only_what_lies_before_the_watermark(spans: list[tuple[int, int]], keep: int) -> None:
    busy = Busy(keep)
    for start, stop in spans:
        busy.add(start, stop)
        assert len(busy._spans) <= keep
    assert length(spans, since=busy._watermark) <= busy.seconds <= length(spans)


def test_late_spans_are_not_counted_twice() -> None:
    busy = Busy(keep=8)
    for start in [*range(40), *range(40)]:
        busy.add(2.0 * start, 2.0 * start + 1)
    assert busy.seconds == 40


def test_memory_is_bounded_for_a_long_run() -> None:
    busy = Busy(64)
    for i in range(10_000):  # all disjoint: nothing can be merged
        busy.add(2 * i, 2 * i + 1)
        assert len(busy._spans) <= 64
    assert busy.seconds == 10_000


def test_spans_of_many_threads() -> None:
    profile = Profile()
    profile.started(None)

    def work(thread: int) -> None:
        for i in range(2000):
            profile.span("read", i, i + 0.5, 1)
            profile.span("write", 10 * i + thread, 10 * i + thread + 1, 2)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    profile.finished(None, 0)
    read, write = profile.report.stages
    assert (read.nbytes, write.nbytes) == (16_000, 32_000)
    assert read.seconds <= 1000
    assert write.seconds <= 16_000


def test_report_of_a_run() -> None:
    profile = Profile()
    with profile:
        (observer,) = trace.active()
        assert observer is profile
        run(profile, ("write", 0.0, 0.25, 100), ("read", 0.0, 1.0, 50), ("read", 0.5, 1.5, 50), peak=7)
    assert trace.active() == ()
    report = profile.report
    assert report.stages == (StageReport("read", 1.5, 100), StageReport("write", 0.25, 100))
    assert report.stages[1].rate == 400
    assert (report.runs, report.peak, report.bound_by) == (1, 7, "read")
    assert report.efficiency == pytest.approx(1.5 / report.seconds)


def test_a_stencil_of_an_array_in_memory_shows_what_its_blocks_take() -> None:
    """They reach beyond the edges, so they are copies: time to make them, and memory, which the report has."""
    x = np.ones((32, 16, 16), "f4")
    with cf.Profile() as profile:
        cf.map_overlap(lambda b: b + 0, x, depth=1, boundary="nearest", chunks=(4, -1, -1), device="cpu")
    read = next(stage for stage in profile.report.stages if stage.name == "read")
    assert read.nbytes == x.nbytes, "a block takes over what the one before has"
    assert profile.report.peak >= 6 * 18 * 18 * 4
    with cf.Profile() as profile:
        cf.map_overlap(lambda b: b + 0, x, depth=1, boundary="none", chunks=(4, -1, -1), device="cpu")
    assert "read" not in {stage.name for stage in profile.report.stages}, "these are views"
    with cf.Profile() as profile:
        cf.map_overlap(lambda b: b + 0, x, depth=(1, 0, 0), boundary="nearest", chunks=(4, -1, -1), device="cpu")
    read = next(stage for stage in profile.report.stages if stage.name == "read")
    assert read.nbytes < x.nbytes / 2, "all but the first and the last one are views"


def test_entered_again_it_adds_up() -> None:
    profile = Profile()
    for peak in (5, 3):
        with profile:
            run(profile, ("compute", peak, peak + 1, 10), peak=peak)
    report = profile.report
    assert (report.runs, report.peak, report.stages) == (2, 5, (StageReport("compute", 2.0, 20),))


def test_entered_twice_it_refuses() -> None:
    profile = Profile()
    with profile:
        with pytest.raises(ChunkflowError, match="watching already"):
            profile.__enter__()
        assert trace.active() == (profile,)
    assert trace.active() == ()


def test_a_run_inside_a_run_counts_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 14.0, 15.0, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    profile = Profile()
    profile.started(None)  # at 10
    run(profile)
    profile.finished(None, 0)  # at 15
    assert (profile.report.seconds, profile.report.runs) == (5.0, 2)
    profile.started(None)  # at 20
    assert profile.report.seconds == 6.0, "the report of a run under way counts up to now"


def test_notes_are_kept_once_and_not_without_end() -> None:
    profile = Profile()
    for i in (1, 1, *range(1000)):
        profile.noted(f"note {i}")
    assert profile.report.notes[:2] == ("note 1", "note 0")
    assert len(profile.report.notes) < 100


def test_report_of_nothing() -> None:
    report = Profile().report
    assert (report.stages, report.seconds, report.runs) == ((), 0.0, 0)
    assert (report.bound_by, report.efficiency) == (None, 0.0)
    assert str(report) == "0 runs in 0.000 s, peak 0 B"


def test_report_reads_as_a_table() -> None:
    report = Report(
        stages=(
            StageReport("read", 1.9, 8_000_000_000),
            StageReport("compute", 0.5, 0),
            StageReport("write", 0.0, 0),
        ),
        seconds=2.0,
        runs=1,
        peak=3_900_000_000,
        notes=("block halved",),
    )
    assert str(report).splitlines() == [
        "1 run in 2.000 s, peak 3.90 GB",
        "  stage       busy s  of run       bytes     GB/s",
        "  read         1.900     95%     8.00 GB     4.21",
        "  compute      0.500     25%         0 B     0.00",
        "  write        0.000      0%         0 B     0.00",
        "bound by read; overlap efficiency 95%",
        "note: block halved",
    ]


def test_what_the_plan_takes_of_the_budget_is_beside_the_peak() -> None:
    with cf.Profile() as profile:
        cf.sum(np.ones(10), budget="1MB", device="cpu")
        plan = cf.explain(np.sqrt, np.ones((64, 64), ">f8"), budget="2MB", device="cpu")
        cf.map(np.sqrt, np.ones((64, 64), ">f8"), budget="2MB", device="cpu")
    report = profile.report
    assert (report.planned, report.budget) == (plan.memory.total, 2_000_000)
    assert report.peak < report.planned
    assert str(report).splitlines()[0].endswith(f", planned {format_bytes(report.planned)} of 2.00 MB")
    assert (joined([report, report]).planned, joined([]).planned) == (report.planned, 0)


def test_a_failing_observer_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Profile):
        calls = 0

        def span(self, *_: Any) -> None:
            self.calls += 1
            raise RuntimeError("broken observer")

    broken, sound = Broken(), Profile()
    with caplog.at_level(logging.ERROR, logger="chunkflow"):
        run(trace.Trace([broken, sound]), ("read", 0, 1, 5), ("read", 1, 2, 5))
    assert broken.calls == 1
    assert sound.report.stages == (StageReport("read", 2.0, 10),)
    assert "broken observer" in caplog.text


def _gradient(x: np.ndarray) -> np.ndarray:
    return np.gradient(x, axis=1)


def test_elements_and_chunks_that_are_read_again_are_noted_apart(tmp_path: Path) -> None:
    """The table has the elements that blocks are given, a note has the bytes of the chunks that this takes."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.random.default_rng(0).random((2, 96, 96, 96), "f4")
        x = np.array(file["x"])
        file.create_dataset("y", data=x, chunks=(1, 48, 96, 96), compression="gzip", compression_opts=1)
    path = f"{tmp_path}/x.h5:/y"
    with cf.Profile() as profile:
        found = cf.map_overlap(_gradient, path, depth=(0, 1, 0, 0), budget="6MB", device="cpu")
    np.testing.assert_allclose(found, _gradient(x), rtol=1e-6)
    (run,), report = profile.report.seen, profile.report
    read = next(stage.nbytes for stage in report.stages if stage.name == "read")
    assert read == run.plan.traffic.given < run.plan.bytes_in
    assert run.plan.overlap == read / x.nbytes < 1.5 < 2 < run.plan.rereads
    overlap, chunks = report.notes[:2]
    assert overlap == f"blocks overlap: they are given {read / x.nbytes:.2f} times the arrays' bytes"
    assert f"chunks are read {run.plan.rereads:.3g} times: " in chunks
    assert f"; {format_bytes(run.plan.bytes_in)} for the {format_bytes(read)} that blocks are given" in chunks
    assert run.plan.whole is not None
    larger = cf.explain(cf.map_overlap, _gradient, path, depth=(0, 1, 0, 0), budget=run.plan.whole, device="cpu")
    assert larger.bytes_in < run.plan.bytes_in


def test_spans_of_many_threads_are_all_counted_in_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "WAITING", 64)  # then threads add up one another's
    profile, number, each = cf.Profile(), 6, 500
    profile.started(None)
    together = threading.Barrier(number)

    def report() -> None:
        together.wait()  # else the identifier of one that has ended may be the next one's
        for i in range(each):
            profile.span("read", float(i), i + 0.5, 10)
        together.wait()

    threads = [threading.Thread(target=report) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (stage,) = profile.report.stages
    assert (stage.nbytes, stage.seconds) == (number * each * 10, each / 2)
    assert len(profile.timeline.rows) == number
    assert Counter(span.row for span in profile.timeline) == dict.fromkeys(range(number), each)


def test_what_is_under_way_can_be_seen() -> None:
    profile = cf.Profile()
    profile.started(None)
    profile.span("read", 1.0, 3.0, 10)
    assert [stage.nbytes for stage in profile.report.stages] == [10]
    profile.span("read", 3.0, 4.0, 5)
    assert len(profile.timeline) == 2
    assert [stage.seconds for stage in profile.report.stages] == [3.0]

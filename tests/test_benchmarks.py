"""The benchmarks' one command: its cases and figures, the page of results, and that it notices what gets worse."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.case import OURS, Bench, Case, Goal
from benchmarks.cases import ROWS, STANDARD
from benchmarks.cases.operations import lines
from benchmarks.cases.remote import REQUESTS
from benchmarks.harness import Found, measure
from benchmarks.timing import core_seconds
from chunkflow.planner.codec_threads import FETCHERS

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("--device", "cpu", "--gib", "0.001", "--repeats", "1")


@dataclass
class Done:
    """How the command has ended."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """The command in this process: to load all its libraries takes longer than most cases."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with patch.object(sys, "argv", ["benchmarks", *SMALL, *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
            err.write(str(end.code))
    return Done(code, out.getvalue(), err.getvalue())


def run_apart(*arguments: str) -> Done:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", *SMALL, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def test_figures_are_kept_and_compared(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    done = run("sum", "products", "--no-memory", "--json", str(kept), "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "| a loop over blocks |" in done.stdout
    figures = json.loads(kept.read_text())
    assert set(figures["cases"]) == {"sum", "product, float32", "product, float64"}
    found = figures["cases"]["sum"]
    assert found["ratios"]["of the limit"] == found["rates"]["chunkflow"] / found["limit_rate"]
    assert list(tmp_path.iterdir()) == [kept]

    for ratio in found["ratios"]:  # far lower than any that this machine may have now: time does not decide
        found["ratios"][ratio] /= 1000
    kept.write_text(json.dumps(figures))
    assert run("sum", "--no-memory", "--against", str(kept), "--tolerance", "0.9").returncode == 0
    found["ratios"]["of the limit"] *= 1000_000
    kept.write_text(json.dumps(figures))
    worse = run("sum", "--no-memory", "--against", str(kept), "--tolerance", "0.9")
    assert worse.returncode == 1
    assert "sum: of the limit" in worse.stderr


def test_an_unknown_case_is_refused() -> None:
    done = run("summ")
    assert done.returncode == 2
    assert "no such case: summ; there are sum, " in done.stderr


def test_an_unknown_case_is_refused_before_another_runs() -> None:
    done = run("heat", "heet")
    assert done.returncode != 0
    assert "no such case: heet; there are" in done.stderr
    assert "###" not in done.stdout


APART = ("cluster", "gpus")
"""Cases that start processes, which begin as this one did."""


SLOW = (
    *("cluster", "gpus", "growth", "indexing", "made", "operations", "order", "remote", "storage", "windows", "zarr"),
    *("block_sizes", "frameworks"),
)
"""Cases that take long; others start processes, write files, and compare with peers, by the same code."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.thorough] * (n in SLOW)) for n in ROWS])
def test_every_case_runs_or_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    few = ["--no-memory", "--set", "workers=1", "plane=128", "gpus=1"]
    done = (run_apart if name in APART else run)(name, "--directory", str(tmp_path), *few)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"### {name}\n\nNo figures: needs " in done.stdout or "\n|---|" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_peaks_of_memory_are_those_of_processes(tmp_path: Path) -> None:
    done = run("rechunk", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert " | peak RSS, MB | anonymous, MB |" in done.stdout


def test_cases_are_listed_with_what_bounds_them() -> None:
    done = run("--list")
    assert done.returncode == 0, done.stderr
    for name, row in ROWS.items():
        assert f"| {name} | {row.what} | {row.bound} |" in done.stdout
    assert STANDARD == ["sum", "reductions", "map", "stencil", "file", "cold", "zarr", "products"]
    files = {path.stem for path in (ROOT / "benchmarks" / "cases").glob("*.py")} - {"__init__"}
    assert files == set(ROWS)


def test_two_checkouts_take_turns(tmp_path: Path) -> None:
    done = run("sum", "--code", str(ROOT), "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "| case | contender | before, s | now, s | now | before / now |" in done.stdout
    assert "\n| sum | chunkflow | " in done.stdout
    assert run("sum", "--code", str(tmp_path)).returncode == 2


def found(name: str, rate: float) -> Found:
    seconds = {"chunkflow": [1 / rate], "dask": [2 / rate]}
    rates = {"chunkflow": rate, "dask": rate / 2}
    return Found(
        *(name, "what", "GB/s", "link", 10.0, "0.90 of the limit", rate >= 9, seconds, rates, None, None),
        ours="chunkflow",
        columns={},
    )


def test_the_page_is_what_is_kept() -> None:
    page = report.page()
    assert report.PAGE.read_text() == page
    assert page.count("\n") < 380


def test_a_report_replaces_its_own_rows_only(tmp_path: Path) -> None:
    kept, page = tmp_path / "results", tmp_path / "page.md"
    first, second = ({"machine": f"2026-01-0{i}; a machine", "commit": "abc", "command": f"run {i}"} for i in (1, 2))
    report.write("A device", [found("sum", 9.5), found("map", 8.0)], first, kept, page)
    report.write("Another", [found("sum", 7.0)], first, kept, page)
    other = (kept / "another.json").read_text()
    report.write("A device", [found("map", 9.1)], second, kept, page)
    assert (kept / "another.json").read_text() == other
    text = page.read_text()
    assert "| sum | 9.5 GB/s | link, 10 | 0.95 | 0.90 of the limit | dask: 2.00 | a |" in text
    assert "| map | 9.1 GB/s | link, 10 | 0.91 | 0.90 of the limit | dask: 2.00 | b |" in text
    assert "| sum | 7 GB/s | link, 10 | 0.70 | **0.90 of the limit** | dask: 2.00 | a |" in text
    assert "a machine: a: 2026-01-01, `run 1`, commit abc; b: 2026-01-02, `run 2`, commit abc." in text
    report.write("A device", [found("sum", 9.6)], second, kept, page)
    assert "run 1" not in json.dumps(json.loads((kept / "a-device.json").read_text()))


def test_the_slow_server_s_limit_is_what_chunkflow_asks_for_at_a_time() -> None:
    assert REQUESTS == FETCHERS


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((8, 64), "f4"), 2048),
        (np.zeros((8, 64), "f4", order="F"), 2048),
        (np.zeros((8, 64), "f4")[::-1, ::2], 2048),  # every other column: whole lines all the same
        (np.zeros((8, 64), "f4")[:, :20], 8 * 128),
        (np.zeros((8, 64), "f4")[:, :4], 8 * 64),
        (np.zeros((8, 64), "f4")[:, ::32], 16 * 64),
        (np.zeros((8, 64), "f4")[:, None, :], 2048),
    ],
)
def test_the_limit_of_memory_counts_whole_lines(array: np.ndarray, expected: int) -> None:
    assert lines(array) == expected


def test_work_of_all_cores_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 2.0, 5.0, 6.0, 7.0, 10.0])
    monkeypatch.setattr("time.process_time", lambda: next(times))
    assert core_seconds(lambda: None, 3) == 1.0


def test_the_page_says_why_a_goal_is_missed(tmp_path: Path) -> None:
    kept, page = tmp_path / "results", tmp_path / "page.md"
    ran = {"machine": "2026-01-01; a machine", "commit": "abc", "command": "run"}
    short = replace(found("sum", 7.0), reason="half of the time goes elsewhere")
    report.write("A device", [short, found("map", 9.1)], ran, kept, page)
    reasons = (
        "What keeps rows from their goals, by profiles:\n\n- sum: half of the time goes elsewhere\n\na machine: a:"
    )
    assert reasons in page.read_text()
    report.write("A device", [found("sum", 9.5)], ran, kept, page)
    assert "What keeps" not in page.read_text()


@pytest.mark.parametrize(("share", "reason"), [(2.0, "why"), (0.0, "")])
def test_a_reason_is_kept_of_a_case_below_its_goal(tmp_path: Path, share: float, reason: str) -> None:
    bench = Bench(tmp_path, "cpu", 0.001, repeats=1)
    case = Case("a", "b", 1.0, {OURS: lambda: None}, lambda *_: None, (OURS, None), Goal(share), reason="why")
    assert measure(case, bench, stages=False, memory=False, file="").reason == reason

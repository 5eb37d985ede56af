"""Measures cases: contenders in turns, medians, peak memory; and compares what was found with what was kept."""

from __future__ import annotations

import importlib
import statistics
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chunkflow as cf
from benchmarks.case import Bench, Case, Group, Listing
from benchmarks.cases import made
from benchmarks.probe import peak_memory
from benchmarks.timing import Contender, in_turns

SMALL_GIB = 0.001  # of the run before one whose memory is watched: what is imported at first use is nobody's peak
DASK = ("dask, threads", "dask")


@dataclass(frozen=True)
class Found:
    """What a case gave: for each contender its seconds, and rates in `unit`."""

    name: str
    what: str
    unit: str
    limit: str
    limit_rate: float | None
    goal: str
    met: bool | None
    seconds: dict[str, list[float]]
    rates: dict[str, float]
    overlap: float | None  # of more runs of chunkflow, with their stages' times taken: the busiest one's share
    modelled: float | None  # seconds that they took for each one predicted
    ours: str
    columns: dict[str, dict[str, str]]
    reason: str = ""  # of a case that is below its goal, on whatever device

    @property
    def rate(self) -> float:
        """chunkflow's."""
        return self.rates[self.ours]

    @property
    def share(self) -> float | None:
        """Of the limit, by chunkflow."""
        return None if self.limit_rate is None else self.rate / self.limit_rate

    @property
    def peers(self) -> dict[str, float]:
        """The others' time over chunkflow's."""
        return {name: self.rate / rate for name, rate in self.rates.items() if name != self.ours}

    @property
    def ratios(self) -> dict[str, float]:
        """What a later run can be held to: shares do not depend on the machine as rates do."""
        share = {} if self.share is None else {"of the limit": self.share}
        return share | {f"times {name}": ratio for name, ratio in self.peers.items()}


def measure(case: Case, bench: Bench, *, stages: bool, memory: bool, file: str) -> Found:
    """Run a case, which is from `file`.

    `stages` asks for more runs, with the times of their stages, and `memory` for peaks in processes of their own.
    """
    columns = {head: dict(cells) for head, cells in case.columns.items()}
    watch = case.watch
    if case.groups and bench.is_gpu:
        peaks = columns.setdefault("device GB", {})

        def watch(name: str, run: Contender) -> None:
            peaks[name] = f"{bench.accelerator.peak(run):.2f}"

    seconds: dict[str, list[float]] = {}
    analyses = []
    for group in case.groups or (Group(tuple(case.runs), bench.budget),):
        if case.groups:
            bench.accelerator.free()
        runs = {name: case.runs[name] for name in group.names}
        with nullcontext() if group.budget is None else cf.Budget(group.budget):
            seconds |= in_turns(runs, bench.repeats, case.check, watch, peers=DASK)
            if stages and case.ours in group.names:
                analyses = [_analysis(case) for _ in range(bench.repeats)]
    columns |= {head: dict(cells) for head, cells in case.columns.items() if cells}
    if case.apart and memory:
        _memory(case, bench, file, columns)
    rates = {name: case.amount / statistics.median(times) for name, times in seconds.items()}
    limit, rate = case.limit or ("", None)
    rate = rates[limit] if case.limit and rate is None else rate
    if case.bound is not None and rate is not None and rates[case.bound] < rate:
        limit, rate = case.bound, rates[case.bound]
    ours = rates[case.ours]
    goal, met = "", None
    if bench.is_gpu and case.goal is not None and rate is not None:
        goal, met = str(case.goal), case.goal.met(ours, rate)
    elif beside := [rates[name] for name in DASK if name in rates]:
        goal, met = "dask", ours >= beside[0]
    short = case.goal is not None and rate is not None and not case.goal.met(ours, rate)
    return Found(
        *(case.name, case.what, case.unit, limit, rate, goal, met, seconds, rates),
        *(statistics.median(a.report.efficiency for a in analyses) if analyses else None,),
        *(_modelled(analyses) if analyses else None, case.ours, columns, case.reason if short else ""),
    )


def _modelled(analyses: list[Any]) -> float:
    return statistics.median(sum(r.seconds for r in a.runs) / sum(r.predicted for r in a.runs) for a in analyses)


def _analysis(case: Case) -> Any:
    """One more run of chunkflow, whose result is checked like the others."""
    analyzed = importlib.import_module("chunkflow.engine.observe.analysis").analyzed
    results: list[Any] = []
    analysis = analyzed(lambda: results.append(case.runs[case.ours]()))
    case.check(case.ours, results.pop())
    return analysis


def _memory(case: Case, bench: Bench, file: str, columns: dict[str, dict[str, str]]) -> None:
    """Peaks of each contender, in a process of its own."""
    options = ["--gib", repr(bench.gib), "--budget", bench.budget, "--device", bench.device]
    for name in case.runs:
        command = [sys.executable, "-m", "benchmarks", file, *options, "--measure", case.name, name, bench.directory]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}, in a process of its own: {done.stderr.strip()[-300:]}")
        resident, anonymous = done.stdout.split()[-2:]
        columns.setdefault("peak RSS, MB", {})[name] = resident
        columns.setdefault("anonymous, MB", {})[name] = anonymous


def measure_apart(file: str, case: str, contender: str, bench: Bench) -> str:
    """Peaks of resident and of anonymous memory in MB of a run in this process, on data that are there."""
    small = bench.directory / "small"
    small.mkdir(exist_ok=True)
    for each in (Bench(small, bench.device, SMALL_GIB, bench.budget), bench):
        with closing(made(file, each)) as found:  # type: ignore[type-var]
            one = next(one for one in found if one.name == case)
            assert isinstance(one, Case)
            if each is bench:
                peak = peak_memory(one.runs[contender])
                return f"{peak.resident:.0f} {peak.anonymous:.0f}"
            one.runs[contender]()
    raise AssertionError(case)


def run_file(file: str, bench: Bench, *, stages: bool, memory: bool) -> Any:
    """Of the cases of a file that are wanted: a case and what was found, or a `Listing`."""
    with closing(made(file, bench)) as found:  # type: ignore[type-var]
        for one in found:
            if not bench.wanted(one.name):
                continue
            if isinstance(one, Listing):
                yield one
            else:
                yield one, measure(one, bench, stages=stages, memory=memory, file=file)


def lower(all_found: list[Found], kept: Mapping[str, Any], tolerance: float) -> list[str]:
    """What has become worse than it was."""
    found = []
    for now in all_found:
        before = kept["cases"].get(now.name, {}).get("ratios", {})
        for name, ratio in now.ratios.items():
            if name in before and ratio < (1 - tolerance) * before[name]:
                found.append(f"{now.name}: {name} {ratio:.2f}, and it was {before[name]:.2f}")
    return found


def commit() -> str:
    """The commit of the code that is measured."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"

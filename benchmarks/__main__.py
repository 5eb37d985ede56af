"""Every case beside its peers and its limit, in one run.

``python -m benchmarks [CASE ...] [--device cuda] [--gib 16] [--repeats 3] [--budget 4GB] [--directory DIR]`` prints a
table for each case and one of all, with the goals. ``--json FILE`` keeps the figures, ``--against FILE`` compares
ratios with kept ones and exits with 1 if one is lower by more than ``--tolerance``, ``--plots DIR`` draws what was
found (needs matplotlib), and ``--growth`` shows costs as sizes, numbers of chunks and budgets grow, not the cases.

Contenders take turns in one process; results are checked after each run, outputs poisoned or removed before. Runs of
chunkflow in a case share a `cf.Budget`. Goals are for a GPU; on the CPU chunkflow is to be no slower than dask.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import chunkflow as cf
from benchmarks import growth
from benchmarks.cases import CASES, OURS, Bench, Case
from benchmarks.harness import has_gpu, machine, table, timed
from chunkflow.engine.observe.analysis import Analysis, analyzed


@dataclass(frozen=True)
class Found:
    """What a case gave: for each contender its seconds, and rates in `unit`."""

    name: str
    what: str
    unit: str
    limit: str
    limit_rate: float
    goal: str
    met: bool | None
    seconds: dict[str, list[float]]
    rates: dict[str, float]
    overlap: float  # of more runs of chunkflow, with their stages' times taken: the busiest one's share
    modelled: float  # seconds that they took for each one predicted

    @property
    def share(self) -> float:
        """Of the limit, by chunkflow."""
        return self.rates[OURS] / self.limit_rate

    @property
    def ratios(self) -> dict[str, float]:
        """What a later run can be held to: shares do not depend on the machine as rates do."""
        return {"of the limit": self.share} | {
            f"times {name}": self.rates[OURS] / rate for name, rate in self.rates.items() if name != OURS
        }


def measure(case: Case, bench: Bench, repeats: int) -> Found:
    """Run a case."""
    with cf.Budget(bench.budget):
        seconds = timed(case.runs, repeats, case.check)
        analyses = [_analysis(case) for _ in range(repeats)]
    modelled = statistics.median([sum(r.seconds for r in a.runs) / sum(r.predicted for r in a.runs) for a in analyses])
    rates = {name: case.amount / statistics.median(times) for name, times in seconds.items()}
    limit, rate = case.limit[0], case.limit[1] or rates[case.limit[0]]
    goal, met = "", None
    if bench.accelerator.is_gpu and case.goal is not None:
        goal, met = str(case.goal), case.goal.met(rates[OURS], rate)
    elif "dask, threads" in rates:
        goal, met = "dask", rates[OURS] >= rates["dask, threads"]
    overlap = statistics.median([a.report.efficiency for a in analyses])
    return Found(case.name, case.what, case.unit, limit, rate, goal, met, seconds, rates, overlap, modelled)


def _analysis(case: Case) -> Analysis:
    """One more run of chunkflow, whose result is checked like the others."""
    results: list[Any] = []
    analysis = analyzed(lambda: results.append(case.runs[OURS]()))
    case.check(OURS, results.pop())
    return analysis


def described(found: Found, missing: tuple[str, ...]) -> str:
    """Table of one case."""
    rows = []
    for name, times in found.seconds.items():
        rate = found.rates[name]
        spread = f"{min(times):.3g}-{max(times):.3g}"
        ours = "-" if name == OURS else f"{found.rates[OURS] / rate:.2f}"
        rows.append(
            (name, f"{statistics.median(times):.3g}", spread, f"{rate:.3g}", f"{rate / found.limit_rate:.2f}", ours)
        )
    title = f"{found.name}: {found.what}; limit: {found.limit}, {found.limit_rate:.3g} {found.unit}"
    head = ["contender", "seconds", "range", found.unit, "of the limit", "chunkflow / this"]
    absent = f"Not installed: {', '.join(missing)}.\n" if missing else ""
    return table(title, rows, head) + (f"\n{absent}" if absent else "")


def summary(all_found: list[Found]) -> str:
    """Table of all cases."""
    words = {True: "yes", False: "no", None: ""}
    rows = [
        (
            f.name,
            f"{f.rates[OURS]:.3g} {f.unit}",
            f"{f.limit}, {f.limit_rate:.3g}",
            f"{f.share:.2f}",
            f.goal,
            words[f.met],
            f"{f.overlap:.2f}",
            f"{f.modelled:.2f}",
        )
        for f in all_found
    ]
    head = ["case", "chunkflow", "limit", "of the limit", "goal", "met", "busiest stage", "took / predicted"]
    return table("all cases", rows, head)


def lower(all_found: list[Found], kept: dict[str, Any], tolerance: float) -> list[str]:
    """What has become worse than it was."""
    found = []
    for now in all_found:
        before = kept["cases"].get(now.name, {}).get("ratios", {})
        for name, ratio in now.ratios.items():
            if name in before and ratio < (1 - tolerance) * before[name]:
                found.append(f"{now.name}: {name} {ratio:.2f}, and it was {before[name]:.2f}")
    return found


def drawn(all_found: list[Found], directory: Path) -> Path:
    """Picture of every contender's share of its case's limit."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(name for f in all_found for name in f.rates))
    figure, axes = plt.subplots(figsize=(9, 1 + 0.35 * sum(len(f.rates) for f in all_found)))
    place, ticks, labels = 0.0, [], []
    colours = plt.get_cmap("tab10")
    seen: set[str] = set()
    for f in reversed(all_found):
        middle = place + (len(f.rates) - 1) / 2
        for name, rate in reversed(f.rates.items()):
            label = None if name in seen else name
            seen.add(name)
            axes.barh(place, rate / f.limit_rate, color=colours(names.index(name) % 10), label=label)
            place += 1
        ticks.append(middle)
        labels.append(f.name)
        place += 0.7
    axes.set_yticks(ticks, labels)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("share of the limit measured in the same run")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize="small", frameon=False)
    figure.tight_layout()
    path = directory / "benchmarks.svg"
    figure.savefig(path)
    plt.close(figure)
    return path


def cases(names: list[str], bench: Bench) -> Iterator[tuple[str, Iterator[Case]]]:
    """The cases asked for, which are made when their turn comes."""
    for name in names or CASES:
        yield name, CASES[name](bench)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gib", type=float, default=16, help="size of the volume")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", default="4GB")
    parser.add_argument("--directory", default=None, help="where the files lie for a while")
    parser.add_argument("--json", type=Path, default=None, help="file to keep the figures in")
    parser.add_argument("--against", type=Path, default=None, help="file of kept figures")
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--plots", type=Path, default=None, help="directory for pictures")
    parser.add_argument("--growth", action="store_true", help="costs as the work grows, instead of the cases")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if options.plots and importlib.util.find_spec("matplotlib") is None:
        parser.error('--plots needs matplotlib: pip install "chunkflow-stream[plot]"')
    kept = json.loads(options.against.read_text()) if options.against else None
    device = options.device
    if device == "auto":
        device = "cuda" if has_gpu() else "cpu"
    print(machine(), flush=True)
    found: list[Found] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        bench = Bench(Path(directory), device, options.gib, options.budget)
        if options.growth:
            for name, grown in growth.found(bench, options.repeats):
                print(grown, flush=True)
                if options.plots:
                    options.plots.mkdir(parents=True, exist_ok=True)
                    grown.draw(options.plots / f"growth-{name}.svg")
            return
        for name, made in cases(options.cases, bench):
            try:
                for case in made:
                    found.append(measure(case, bench, options.repeats))
                    print(f"\n{described(found[-1], case.missing)}", flush=True)
            except KeyboardInterrupt:
                failed.append(f"{name}: interrupted, and what follows")
                break
            except Exception as error:
                traceback.print_exc()
                failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    print(f"\n{summary(found)}", flush=True)
    if options.json:
        kept_now = {"machine": machine(), "cases": {f.name: asdict(f) | {"ratios": f.ratios} for f in found}}
        options.json.write_text(json.dumps(kept_now, indent=1))
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
        print(f"drawn: {drawn(found, options.plots)}")
    worse = lower(found, kept, options.tolerance) if kept else []
    if failed or worse:
        sys.exit("\n".join([*(f"no figures of {f}" for f in failed), *worse]))


if __name__ == "__main__":
    main()

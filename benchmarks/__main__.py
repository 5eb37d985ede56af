"""Every case beside its peers and its limit, in one run.

``python -m benchmarks [CASE ...] [--device cuda] [--gib 16] [--repeats 3] [--budget 4GB] [--directory DIR]`` prints a
table for each case and one of all, with the goals; without a CASE it runs the standard ones. ``--list`` says what there
is and what bounds it. ``--set NAME=VALUE`` changes a setting of a case (``--list`` has them). ``--json FILE`` keeps the
figures, ``--against FILE`` compares ratios with kept ones and exits with 1 if one is lower by more than
``--tolerance``, ``--plots DIR`` draws what was found (needs matplotlib), and ``--growth`` is short for the case of this
name. ``--report`` brings ``benchmarks/RESULTS.md`` up to date with what was found on this device. ``--code PATH`` times
the chunkflow of another checkout in turns with this one, in processes of their own, each with data of its own.

Contenders take turns in one process; results are checked after each run, outputs poisoned or removed before. Runs of
chunkflow in a case share a `cf.Budget`, unless the case says otherwise. Goals are for a GPU; on the CPU chunkflow is to
be no slower than dask.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks import checkouts, report
from benchmarks.case import Bench, Listing, MissingError
from benchmarks.cases import ROWS, STANDARD, Row
from benchmarks.harness import Found, commit, lower, measure_apart, run_file
from benchmarks.probe import device_name, gpus, machine


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(ROWS)}; by default {STANDARD}")
    parser.add_argument("--list", action="store_true", help="the cases, and what bounds each")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART", help="leave out what has none in its name")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gib", type=float, default=None, help="size of the volume; by default the case's own")
    parser.add_argument("--repeats", type=int, default=None, help="3, or 5 where runs are short")
    parser.add_argument("--budget", default="4GB")
    parser.add_argument("--directory", default=None, help="where the files lie for a while")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of cases")
    parser.add_argument("--json", type=Path, default=None, help="file to keep the figures in")
    parser.add_argument("--against", type=Path, default=None, help="file of kept figures")
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--plots", type=Path, default=None, help="directory for pictures")
    parser.add_argument("--growth", action="store_true", help="costs as the work grows, instead of the cases")
    parser.add_argument("--no-memory", action="store_true", help="leave out peaks that take a process a contender")
    parser.add_argument("--profile", action="store_true", help="plans and profiles of the cases that have them")
    parser.add_argument("--report", action="store_true", help="write benchmarks/RESULTS.md")
    parser.add_argument("--code", type=Path, default=None, help="another checkout, to be timed in turns with this one")
    parser.add_argument("--measure", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.cases = ["growth"] if options.growth else options.cases or STANDARD
    if unknown := set(options.cases) - set(ROWS):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    if options.plots and importlib.util.find_spec("matplotlib") is None:
        parser.error('--plots needs matplotlib: pip install "chunkflow-stream[plot]"')
    if options.code and not (options.code / "chunkflow" / "__init__.py").exists():
        parser.error(f"{options.code} is no checkout: it has no chunkflow/")
    known = {name for row in ROWS.values() for name in row.settings}
    pairs = [pair.partition("=")[::2] for pair in options.set]
    if strange := {name for name, _ in pairs} - known:
        parser.error(f"no such setting: {', '.join(sorted(strange))}; there are {', '.join(sorted(known))}")
    options.set = {name: float(value) for name, value in pairs}
    if options.device == "auto":
        options.device = "cuda" if gpus() else "cpu"
    return options


class Runner:
    """Runs cases by name, and keeps what they gave."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.options, self.directory = options, directory
        self.found: list[Found] = []
        self.failed: list[str] = []
        self._shared: dict[str, Bench] = {}

    def arguments(self, row: Row) -> dict[str, Any]:
        """What a `Bench` for a case is told, but its directory."""
        given, settings = self.options, dict(row.settings)
        settings |= {name: value for name, value in given.set.items() if name in settings}
        gib = row.gib if given.gib is None else given.gib
        return {"device": row.device or given.device, "gib": gib, "budget": given.budget, "settings": settings}

    @cached_property
    def what_ran(self) -> dict[str, str]:
        """The run, as a page of results names it."""
        command = f"python -m benchmarks {shlex.join(a for a in sys.argv[1:] if a != '--report')}".strip()
        return {"machine": machine(), "commit": commit(), "command": command}

    def repeats(self, row: Row) -> int:
        return int(self.options.repeats or row.repeats)

    @contextmanager
    def bench(self, name: str) -> Iterator[Bench]:
        """What a case is told: standard cases share their arrays, the others have folders of their own."""
        row = ROWS[name]
        arguments = {**self.arguments(row), "repeats": self.repeats(row), "only": self.options.only}
        if row.standard:
            if "standard" not in self._shared:
                self._shared["standard"] = Bench(self.directory, **arguments)
            yield self._shared["standard"]
            return
        with tempfile.TemporaryDirectory(dir=self.directory) as folder:
            yield Bench(Path(folder), **arguments)

    def run(self, name: str) -> None:
        """Run the cases of a file and print their tables."""
        with self.bench(name) as bench:
            stages, memory = ROWS[name].standard or ROWS[name].staged, not self.options.no_memory
            for one in run_file(name, bench, stages=stages, memory=memory):
                if isinstance(one, Listing):
                    print(f"\n{report.listed(one)}", flush=True)
                    if self.options.plots and one.curves:
                        report.draw_curves(one, self.options.plots / f"{one.name}.svg")
                    continue
                case, found = one
                self.found.append(found)
                print(f"\n{report.described(found, case.missing)}", flush=True)
                if self.options.report:  # at once: what follows may be cut off
                    report.write(device_name(self.options.device), [found], self.what_ran)
                if self.options.profile and case.explain:
                    print(case.explain(), flush=True)

    def compare(self, name: str) -> None:
        """Print how long another checkout takes beside this one."""
        row = ROWS[name]
        with tempfile.TemporaryDirectory(dir=self.directory) as folder:
            arguments = {"file": name, **self.arguments(row)}
            found = checkouts.compare(self.options.code, Path(folder), self.repeats(row), arguments)
            rows = list(found)
        head = ["case", "contender", "before, s", "now, s", "now", "before / now"]
        print("\n" + report.table(f"{name}: {self.options.code} and this checkout, in turns", rows, head), flush=True)

    def all(self) -> None:
        """Run what was asked for, and go on where something fails."""
        for name in self.options.cases:
            try:
                self.compare(name) if self.options.code else self.run(name)
            except KeyboardInterrupt:
                self.failed.append(f"{name}: interrupted, and what follows")
                break
            except MissingError as missing:
                print(f"\n### {name}\n\nNo figures: needs {missing}.\n", flush=True)
            except Exception as error:
                traceback.print_exc()
                self.failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")


def available() -> str:
    """Table of the cases that there are."""
    rows = [
        (name, row.what, row.bound, row.goal, row.peers, f"{row.gib:.3g}", settings(row.settings), row.device or "any")
        for name, row in ROWS.items()
    ]
    head = ["case", "what", "bound by", "goal", "peers", "GiB", "settings", "device"]
    return report.table(f"cases; standard are {', '.join(STANDARD)}", rows, head)


def settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in values.items())


def main() -> None:
    """Run what is asked for."""
    options = parsed()
    if options.list:
        print(available())
        return
    if options.measure:
        case, contender, directory = options.measure
        bench = Bench(Path(directory), options.device, options.gib, options.budget)
        print(measure_apart(options.cases[0], case, contender, bench))
        return
    kept = json.loads(options.against.read_text()) if options.against else None
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    if options.code:
        print(checkouts.helpers(options.code), flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        runner = Runner(options, Path(directory))
        runner.all()
    found = runner.found
    if found:
        print(f"\n{report.summary(found)}", flush=True)
    if options.json:
        kept_now = {"machine": machine(), "cases": {f.name: asdict(f) | {"ratios": f.ratios} for f in found}}
        options.json.write_text(json.dumps(kept_now, indent=1))
    if options.plots and any(f.limit_rate is not None for f in found):
        print(f"drawn: {report.draw(found, options.plots)}")
    worse = lower(found, kept, options.tolerance) if kept else []
    if runner.failed or worse:
        sys.exit("\n".join([*(f"no figures of {f}" for f in runner.failed), *worse]))


if __name__ == "__main__":
    main()

"""Which tests run a line, and how long they take: learnt by one run of all tests under coverage."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MOST_SECONDS = 240.0  # of tests that are tried on one mutant


@dataclass
class Reach:
    """Seconds of each test that passes, and by module and line the tests that run it."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]

    def nearest(self, path: str, line: int) -> list[str]:
        """The tests that run a line, those nearest to its module first; of one run at import, those of its module."""
        names, lines = list(self.seconds), self.lines.get(path, {})
        found = [names[i] for i in lines.get(str(line)) or {i for of_line in lines.values() for i in of_line}]
        found.sort(key=lambda name: (-_closeness(path, name), self.seconds[name]))
        chosen, total = [], 0.0
        for name in found:
            total += self.seconds[name]
            if total > MOST_SECONDS and chosen:
                break
            chosen.append(name)
        return chosen


def _closeness(path: str, test: str) -> int:
    """Folders that a module and a test file have in common, and the name of the file."""
    module, file = Path(path).parts[1:], Path(test.partition("::")[0]).parts[1:]
    same = 0
    for one, other in zip(module, file, strict=False):
        if one != other.removeprefix("test_"):
            break
        same += 1
    return same + (Path(path).stem == Path(file[-1]).stem.removeprefix("test_"))


def learnt(root: Path, work: Path) -> Reach:
    """Run all tests once."""
    from coverage import CoverageData  # among what ``make mutants`` installs

    record, data = work / "tests.json", work / "coverage"
    environment = os.environ | {"MUTANTS_RECORD": str(record), "COVERAGE_FILE": str(data), "COVERAGE_CORE": "ctrace"}
    how = "-n auto --dist loadfile -q --tb=line -p no:cacheprovider -p mutants.record"
    cover = "--cov=chunkflow --cov-context=test --cov-report="
    subprocess.run(
        [sys.executable, "-m", "pytest", *how.split(), *cover.split()], cwd=root, env=environment, check=False
    )
    seconds: dict[str, float] = json.loads(record.read_text())
    number = {name: i for i, name in enumerate(seconds)}
    coverage = CoverageData(str(data))
    coverage.read()
    lines = {
        str(Path(path).relative_to(root)): {
            str(line): sorted({number[n] for c in contexts if (n := _function(c)) in number})
            for line, contexts in coverage.contexts_by_lineno(path).items()
        }
        for path in coverage.measured_files()
    }
    return Reach(seconds, lines)


def _function(context: str) -> str:
    """The function of a test, from what pytest-cov calls its run."""
    return context.partition("|")[0].partition("[")[0]


def save(reach: Reach, path: Path) -> None:
    """Keep it for another run."""
    with gzip.open(path, "wt") as file:
        json.dump([reach.seconds, reach.lines], file)


def load(path: Path) -> Reach:
    """What was kept."""
    with gzip.open(path, "rt") as file:
        return Reach(*json.load(file))

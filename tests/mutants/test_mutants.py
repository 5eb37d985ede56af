"""The tool itself, as far as it goes without what makes the mutants."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.equal import EQUAL
from mutants.reach import MOST_SECONDS, Reach, load, save

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("path", "was", "now"), EQUAL, ids=lambda part: part[:60])
def test_what_is_equal_in_effect_is_still_there(path: str, was: str, now: str) -> None:
    lines = [line.strip() for line in (ROOT / path).read_text().splitlines()]
    assert was in lines
    assert now not in lines
    assert EQUAL[path, was, now]


@pytest.fixture
def reach() -> Reach:
    seconds = {
        "tests/stores/file/test_npy.py::test_slow": 3.0,
        "tests/stores/file/test_npy.py::test_quick": 1.0,
        "tests/stores/file/test_strided.py::test_other": 0.5,
        "tests/engine/test_budget.py::test_far": 0.1,
        "tests/engine/test_budget.py::test_long": MOST_SECONDS,
        "tests/graph/test_evaluate.py::test_elsewhere": 0.1,
    }
    lines = {
        "chunkflow/stores/file/npy.py": {"7": [0, 1, 2, 3, 4], "9": [4]},
        "chunkflow/graph/evaluate.py": {"1": [5]},
    }
    return Reach(seconds, lines)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (7, ["test_quick", "test_slow", "test_other", "test_far"]),  # the nearest first, as many as there is time for
        (9, ["test_long"]),  # one at the least, however long it takes
        (3, ["test_quick", "test_slow", "test_other", "test_far"]),  # run at import: those of its module
    ],
)
def test_tests_near_a_line_come_first(reach: Reach, line: int, expected: list[str]) -> None:
    found = reach.nearest("chunkflow/stores/file/npy.py", line)
    assert [name.partition("::")[2] for name in found] == expected


def test_a_module_that_no_test_runs_has_none(reach: Reach) -> None:
    assert reach.nearest("chunkflow/nowhere.py", 7) == []


def test_what_was_learnt_is_kept(reach: Reach, tmp_path: Path) -> None:
    save(reach, tmp_path / "reach.gz")
    assert load(tmp_path / "reach.gz") == reach

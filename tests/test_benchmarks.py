"""The benchmarks' one command: its figures, and that it notices when they get worse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--device", "cpu", "--gib", "0.001", "--repeats", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_figures_are_kept_and_compared(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    done = run("sum", "products", "--json", str(kept), "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "| a loop over blocks |" in done.stdout
    figures = json.loads(kept.read_text())
    assert set(figures["cases"]) == {"sum", "product, float32", "product, float64"}
    found = figures["cases"]["sum"]
    assert found["ratios"]["of the limit"] == found["rates"]["chunkflow"] / found["limit_rate"]
    assert list(tmp_path.iterdir()) == [kept]

    found["ratios"]["of the limit"] /= 1000
    kept.write_text(json.dumps(figures))
    assert run("sum", "--against", str(kept), "--tolerance", "0.9").returncode == 0
    found["ratios"]["of the limit"] *= 1000_000
    kept.write_text(json.dumps(figures))
    worse = run("sum", "--against", str(kept), "--tolerance", "0.9")
    assert worse.returncode == 1
    assert "sum: of the limit" in worse.stderr


def test_an_unknown_case_is_refused() -> None:
    done = run("summ")
    assert done.returncode == 2
    assert "no such case: summ; there are sum, " in done.stderr


def test_a_section_that_is_not_there_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_passes", "--device", "cpu", "--only", "heat", "heet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no section is called heet: there are" in done.stderr
    assert "###" not in done.stdout

"""A sample of what `make torture` tries: what was there before a run, or its outputs, whole, and nothing else."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torture.faults import compiled

TESTS = Path(__file__).resolve().parents[1]
WORKS = "import ctypes, os; print(ctypes.CDLL(os.environ['LD_PRELOAD']).faults_count(0))"


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)} | more
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_every_scenario_ends_well_without_a_fault(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    pytest.importorskip("dask")
    scenarios = importlib.import_module("torture.scenarios")
    for number, scenario in enumerate(scenarios.SCENARIOS):
        folder = tmp_path / str(number)
        folder.mkdir()
        scenarios.prepare(folder, scenario)
        before = {name: scenarios.found(folder, name) for name in scenario.outputs}
        scenario.run(folder)
        after = {name: scenarios.found(folder, name) for name in scenario.outputs}
        assert (before, after) == (scenario.before, scenario.after), scenario.name


@pytest.mark.parametrize(
    "sample",
    [
        "torture --scenarios 2 --number 6 --seconds 1",
        "torture.full --scenarios 1 --number 2 --seconds 1",
        "torture.power --scenarios 1 --number 2 --seconds 1",
        "torture.many --number 1 --only zarr",
        "torture.kills --kinds 2 --number 1 --apart 1 --seed 0",
        pytest.param("torture.kills --points --only distinct", marks=pytest.mark.thorough),
    ],
)
def test_a_sample(tmp_path: Path, sample: str) -> None:
    library = compiled(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    tried = run(tmp_path, "-c", WORKS, LD_PRELOAD=str(library))
    if tried.stdout != "0\n":
        pytest.skip(f"LD_PRELOAD does not work: {tried.stderr}")
    done = run(tmp_path, "-m", *sample.split())
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.removeprefix("skipped: ").strip())
    assert done.returncode == 0, done.stdout + done.stderr

"""A sample of the faults that `make torture` injects: what was there before a run, or its outputs, whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torture.faults import compiled

TESTS = Path(__file__).resolve().parents[1]
WORKS = "import ctypes, os; print(ctypes.CDLL(os.environ['LD_PRELOAD']).faults_count(0))"


def test_a_sample_of_faults(tmp_path: Path) -> None:
    library = compiled(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    preloaded = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    tried = subprocess.run([sys.executable, "-c", WORKS], env=preloaded, capture_output=True, text=True, check=False)
    if tried.stdout != "0\n":
        pytest.skip(f"LD_PRELOAD does not work: {tried.stderr}")
    command = [sys.executable, "-m", "torture", "--number", "200", "--seconds", "40"]
    done = subprocess.run(command, env=preloaded, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""A sample of the runs that `make torture` measures: none takes more than its budget, refused ones neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs the kernel's figures of Linux"
)


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(["--rows", "6", "--number", "1", "--most", "6000000", "--seed", "1"], id="known and drawn"),
        pytest.param(
            ["--device", "cuda", "--first", "51", "--number", "8", "--most", "160000000", "--seed", "1"],
            id="products on a GPU",  # each loads a library
            marks=pytest.mark.gpu,
        ),
    ],
)
def test_no_run_takes_more_than_its_budget(which: list[str], tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "torture.budgets", *which],
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

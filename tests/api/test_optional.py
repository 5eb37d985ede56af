"""What needs a package that is not installed says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEEDS = {
    "cf.open(np.ones(3)).to_dask()": ("dask", "chunkflow-stream[dask]"),
    "import chunkflow.dask": ("dask", "chunkflow-stream[dask]"),
    "import chunkflow.xarray": ("xarray", "chunkflow-stream[xarray]"),
    "cf.torch(np.negative)": ("torch", "pip install torch"),
    "cf.jax(np.negative)": ("jax", "pip install jax"),
}


@pytest.mark.parametrize("line", NEEDS)
def test_the_command_that_installs_it_is_named(line: str) -> None:
    package, command = NEEDS[line]
    program = f"import sys, numpy as np, chunkflow as cf; sys.modules[{package!r}] = None; {line}"  # as if it were not
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ModuleNotFoundError")
    assert f"needs {package}, which is not installed" in error
    assert command in error

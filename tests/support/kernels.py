"""Kernels' texts made into functions by a C++ compiler, in the place of CUDA's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkflow.kernels.fusion.codegen import CTYPES

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
CTYPE_OF = {np.dtype(char).name: name for char, name in CTYPES.items()}


def built(folder: Path, code: str, *options: str) -> Any:
    """The function `run` of a text, which a new library in a folder has."""
    source = folder / f"{len(list(folder.iterdir()))}.cpp"
    source.write_text(code)
    command = ["g++", "-O1", *options, "-shared", "-fPIC", str(source), "-o", f"{source}.so"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(f"{source}.so").run

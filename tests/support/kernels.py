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


PRELUDE = "#include <algorithm>\n#include <cmath>\nusing namespace std;\n"
"""What stands before each text. Compiled once for a folder: it takes longer than the texts."""


def built(folder: Path, code: str, *options: str) -> Any:
    """The function `run` of a text, which a new library in a folder has. There the `options` are the same each time."""
    source, prelude = folder / f"{len(list(folder.iterdir()))}.cpp", folder / "prelude.hpp"
    source.write_text(code)
    command = ["g++", "-O1", *options, "-fPIC"]
    if not prelude.exists():
        prelude.write_text(PRELUDE)
        subprocess.run([*command, "-x", "c++-header", str(prelude), "-o", f"{prelude}.gch"], check=True)
    subprocess.run([*command, "-include", str(prelude), "-shared", str(source), "-o", f"{source}.so"], check=True)
    return ctypes.CDLL(f"{source}.so").run

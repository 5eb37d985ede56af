"""Other programs, by which stores are tested: what a sink wrote they read, and what they wrote a source reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class ForeignReader(NamedTuple):
    """Another program that reads what a sink wrote.

    `read` gives the elements of the array with a path or URL. `lacks` names dtypes that the program does not have.
    """

    name: str
    read: Callable[[str], np.ndarray]
    lacks: tuple[str, ...] = ()


class ForeignWriter(NamedTuple):
    """Another program that writes what a source reads.

    `write` stores an array below a directory, and returns what `open_source` is to open: a path, as a rule. `lacks`
    names dtypes that the program does not have.
    """

    name: str
    write: Callable[[np.ndarray, Path], Any]
    lacks: tuple[str, ...] = ()


def has(program: ForeignReader | ForeignWriter, dtype: np.dtype) -> bool:
    """Whether a program has arrays of a dtype, in either byte order."""
    return dtype.newbyteorder("=") not in [np.dtype(name) for name in program.lacks]

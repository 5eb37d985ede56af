"""Programs of a few lines, which chunkflow and NumPy both run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

PRELUDE = """\
import tempfile
import warnings
from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import xarray as xr
import zarr
from numpy import inf, nan
from numpy.fft import fft, fft2, fftn, ifft, ifftn, irfft, irfftn, rfft, rfftn

import chunkflow as cf
import chunkflow.dask
from tests.fuzz.oracles import *

folder = Path(tempfile.mkdtemp())
warnings.simplefilter("ignore")
np.seterr(all="ignore")
"""


@dataclass
class Value:
    """An array of a program: what NumPy says it is, and the lines that make it on both sides.

    `exact` says whether every digit must be NumPy's, `signed` whether the signs of zeros too. An error may otherwise be
    as large as rounding of `scale`, the largest number that it was computed from, in real numbers of `real` bytes.
    """

    number: int
    array: np.ndarray
    operation: str
    numpy: list[str]
    ours: list[str]
    needs: tuple[Value, ...] = ()
    exact: bool = True
    signed: bool = True
    scale: float = 0.0
    real: int = 8
    check: str = ""
    """What holds the result to be compared, if that is not what other lines go on with."""
    labels: tuple[str, ...] = ()
    """What is counted of it, as ``"source: npy"``."""
    lazy: bool = False
    labelled: bool = False
    """Whether it is made of an array of xarray's, whose dimensions have names."""
    moved: bool = False
    """Whether these names may stand in another order, or for fewer dimensions."""
    must_raise: bool = False
    ended: bool = False
    """Whether no further statement follows."""

    @property
    def wanted(self) -> str:
        """Its name on NumPy's side."""
        return f"a{self.number}"

    @property
    def name(self) -> str:
        """Its name on ours."""
        return f"x{self.number}"


@dataclass
class Program:
    """Values, the lines that compute the results of lazy ones, and how they are run."""

    values: list[Value]
    results: list[Value]
    form: str
    ending: list[str]
    labels: list[str] = field(default_factory=list)

    @property
    def used(self) -> list[Value]:
        """Values that results depend on, in order."""
        found: dict[int, Value] = {}

        def add(values: Iterable[Value]) -> None:
            for value in values:
                if value.number not in found:
                    found[value.number] = value
                    add(value.needs)

        add(self.results)
        return [found[number] for number in sorted(found)]

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of its operations, each once."""
        return tuple(sorted({value.operation for value in self.used if value.operation}))

    @property
    def counted(self) -> list[str]:
        """Everything that the statistics count of it."""
        named = [f"operation: {name}" for name in self.operations]
        return [*named, *(label for value in self.used for label in value.labels), *self.labels]

    @property
    def checks(self) -> list[str]:
        """A line for each result that compares it."""
        return [comparison(value) for value in self.results]

    def script(self) -> str:
        """The program as a script that says what differs."""
        lines = [line for value in self.used for line in (*value.numpy, *value.ours)]
        return PRELUDE + "\n".join([*lines, *self.ending, *self.checks]) + "\n"

    def short(self) -> str:
        """The lines of the script that are its own."""
        return self.script().removeprefix(PRELUDE)


def comparison(value: Value) -> str:
    """The line that compares a result with NumPy's."""
    if value.must_raise:
        return f"refused({value.wanted}, {value.check or value.name})"
    how = (
        ""
        if value.exact and value.signed
        else ", signed=False"
        if value.exact
        else f", scale={value.scale:.3g}, real={value.real}"
    )
    return f"same({value.check or value.name}, {value.wanted}{how})"


def largest(*arrays: np.ndarray) -> float:
    """The greatest absolute value of all finite elements."""
    most = 0.0
    for array in arrays:
        if array.size and array.dtype.kind in "iufc":
            wide = np.abs(array.astype("c16" if array.dtype.kind == "c" else "f8"))
            most = max(most, float(np.max(wide, where=np.isfinite(wide), initial=0)))
    return most


def names(template: str, operands: Sequence[str], **more: str) -> str:
    """A template with operands in the places ``<0>``, ``<1>``, and others by name."""
    for place, operand in enumerate(operands):
        template = template.replace(f"<{place}>", operand)
    for name, text in more.items():
        template = template.replace(f"<{name}>", text)
    return template

"""Runs programs, and says whether chunkflow gave what NumPy gives, or refused what it may refuse."""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import fsspec
import h5py
import numpy as np
import xarray as xr
import zarr

import chunkflow as cf
import chunkflow.dask
from chunkflow import errors
from tests.fuzz.drawn import NUMPY
from tests.fuzz.oracles import StillRefusedError
from tests.fuzz.program import Program

ALLOWED = (
    (errors.UnsupportedError, ""),
    (errors.ArgumentError, "an expression is given twice"),
    (errors.ArgumentError, "and a later pass reads"),
    (errors.ArgumentError, "would cut the output's chunks .* leave the choice to the planner"),
)
"""What may be refused that NumPy does: the error, and what its message says."""

SPACE: dict[str, Any] = {
    **NUMPY, "cf": cf, "chunkflow": chunkflow, "da": da, "dask": dask, "h5py": h5py, "xr": xr, "zarr": zarr,
}  # fmt: skip


class WrongError(AssertionError):
    """A program that fails, or gives something else than NumPy. `kind` is equal for failures that are alike."""

    def __init__(self, program: Program, where: str, line: str, error: Exception | None) -> None:
        what = "a mask was lost" if error is None else f"{type(error).__name__}: {error}"
        super().__init__(f"{what}\nin {where}: {line}\n\n{program.script()}")
        self.kind = (where, type(error).__name__, re.sub(r"[^a-z ]", "", what)[:40])


@dataclass
class Tally:
    """What has been tried, and what became of it."""

    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    programs: int = 0

    def __str__(self) -> str:
        lines = [f"{self.programs} programs"]
        for title, counter in (("tried", self.tried), ("refused", self.refused)):
            lines += [f"{title}:", *(f"{number:8} {name}" for name, number in sorted(counter.items()))]
        return "\n".join(lines)


def run(program: Program, tally: Tally | None = None) -> str:
    """Run a program; the refusal's kind if it was refused.

    Raises
    ------
    WrongError
        It gave something else than NumPy, or raised what it may not.
    """
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    tally = Tally() if tally is None else tally
    tally.programs += 1
    tally.tried.update(program.counted)
    space: dict[str, Any] = {**SPACE, "folder": folder, **{v.wanted: v.array for v in program.used}}
    masked = any(value.must_raise for value in program.used)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for where, block in _blocks(program):
                try:
                    exec(block, space)
                except Exception as error:
                    refusal = _refusal(error, masked, through_dask="dask" in block)
                    if refusal is None:
                        raise WrongError(program, where, block, error) from error
                    tally.refused[f"{where}: {refusal}"] += 1
                    return refusal
            if any(value.must_raise for value in program.results):
                raise WrongError(program, program.results[-1].operation or "source", "", None)
    finally:
        for value in space.values():
            if isinstance(value, h5py.Dataset) and value:
                value.file.close()
        shutil.rmtree(folder, ignore_errors=True)
        fsspec.filesystem("memory").store.clear()
    return ""


def _blocks(program: Program) -> list[tuple[str, str]]:
    """What is executed at a time, with the operation that it belongs to."""
    found = [(value.operation or "source", "\n".join(value.ours)) for value in program.used]
    last = program.results[-1].operation or "source"
    return [
        *found,
        (last, "\n".join(program.ending)),
        *((last, check) for check in program.checks if "refused" not in check),
    ]


def _refusal(error: Exception, masked: bool, *, through_dask: bool) -> str | None:
    """The kind of an error that is a refusal; None if it is a fault."""
    kind = type(error).__name__
    if isinstance(error, StillRefusedError):  # through dask a task names what it needs, and others may need more
        return "BudgetError: its smallest budget does not do" if through_dask else None
    if not isinstance(error, errors.ChunkflowError):
        return None
    said = re.sub(r"\d+", "N", str(error))
    if masked and re.search("mask", said):
        return f"{kind}: a mask"
    allowed = any(isinstance(error, sort) and re.search(text, said) for sort, text in ALLOWED)
    return f"{kind}: {said[:90]}" if allowed else None

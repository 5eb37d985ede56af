"""The fuzzer notices what is wrong: of each fault that is planted it finds a program of a few lines."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkflow.api.lazy import numpy_dispatch
from chunkflow.cluster import tasks
from chunkflow.core import halo
from chunkflow.graph import indexing
from chunkflow.kernels.reductions.aggregation import Reduction
from chunkflow.kernels.scan import Scan
from chunkflow.stores.file import npy
from chunkflow.stores.foreign import generic
from tests.fuzz.__main__ import Fuzzer
from tests.fuzz.drawing import Drawing
from tests.fuzz.drawn import FORMS, program_of
from tests.fuzz.operations import FAMILIES
from tests.fuzz.program import PRELUDE

Patch = pytest.MonkeyPatch


def wrong_edges(patch: Patch) -> None:
    """Blocks are mirrored with the outermost element, or without it, the other way round."""
    other = {"reflect": "mirror", "mirror": "reflect"}

    def fill(block: Any, region: Any, extents: Any, boundary: Any) -> None:
        halo.assign(block, region, extents, [other.get(kind, kind) for kind in boundary])

    for module in ("engine.transfer", "engine.trial", "kernels.fusion.program", "kernels.stencil.iterate"):
        patch.setattr(f"chunkflow.{module}.fill", fill)


def lost_block(patch: Patch) -> None:
    """A reduction leaves out the last of several blocks."""
    fold = Reduction.fold

    def fewer(self: Any, value: Any, blocks: Any, nest: Any, grid: Any, index: Any, box: Any) -> Any:
        last = value is not None and all(i == n - 1 for i, n in zip(index, grid.counts, strict=True))
        return value if last else fold(self, value, blocks, nest, grid, index, box)

    patch.setattr(Reduction, "fold", fewer)


def lost_mask(patch: Patch) -> None:
    """What objects give is taken without its mask."""
    for module in (generic, tasks):
        patch.setattr(module, "faithful", lambda got, region, spec: np.asarray(got))


def wrong_byte_order(patch: Patch) -> None:
    """A .npy file is read in the machine's byte order, whatever it says."""
    described = npy.described

    def native(path: str) -> Any:
        found = described(path)
        return replace(found, dtype=found.dtype.newbyteorder("="))

    patch.setattr(npy, "described", native)


def wrong_places(patch: Patch) -> None:
    """Arguments that are given by position are our functions', not NumPy's."""
    patch.setattr(numpy_dispatch, "bound", lambda fn, name, args, kwargs: (list(args), dict(kwargs)))
    patch.setattr(numpy_dispatch, "check_taken", lambda *given: None)


def lost_carry(patch: Patch) -> None:
    """A scan begins anew in each block."""
    advance = Scan.advance
    patch.setattr(Scan, "advance", lambda self, carry, *given: advance(self, None, *given))


def wrong_ends(patch: Patch) -> None:
    """A slice with a negative step begins one element late."""
    indexed = indexing.indexed

    def late(node: Any, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        backwards = [isinstance(p, slice) and (p.step or 1) < 0 and (p.start or 0) > 1 for p in parts]
        moved = [slice(p.start - 1, p.stop, p.step) if b else p for p, b in zip(parts, backwards, strict=True)]
        return indexed(node, tuple(moved))

    patch.setattr("chunkflow.api.lazy.array.indexed", late)


FAULTS: dict[Callable[[Patch], None], tuple[str, ...]] = {
    wrong_edges: ("operation=map_overlap",),
    lost_block: ("operation=reductions", "budget=smallest"),
    lost_mask: ("source=dask, masked",),
    wrong_byte_order: ("source=npy",),
    wrong_places: ("operation=reductions", "form=lazy"),
    lost_carry: ("operation=scans", "budget=smallest"),
    wrong_ends: ("operation=index", "form=lazy"),
}
"""Faults to plant, and the kinds of programs that are drawn, so that few will do."""

MOST_PROGRAMS, MOST_LINES = 150, 16


OFTEN = (lost_mask, wrong_places, lost_carry)
"""Those that CI plants."""


@pytest.mark.parametrize(
    "plant",
    [pytest.param(f, marks=() if f in OFTEN else pytest.mark.thorough) for f in FAULTS],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fuzzer = Fuzzer(among=frozenset(FAULTS[plant]), say=lambda text: None, patience=3)
    with monkeypatch.context() as patch:
        plant(patch)
        number = 0
        while not fuzzer.failures and number < MOST_PROGRAMS:
            fuzzer.program(number)
            number += 1
    assert fuzzer.failures, fuzzer.tally
    (found,) = fuzzer.failures.values()
    script = found[found.index("np.seterr") :].splitlines()[1:]
    assert len(script) <= MOST_LINES, found
    for seed in range(number):  # without the fault there is nothing to find
        fuzzer.program(seed)
    assert len(fuzzer.failures) == 1, fuzzer.failures


@pytest.mark.parametrize("family", FAMILIES)
def test_every_operation_is_drawn(family: str) -> None:
    for operation in FAMILIES[family]:
        among = frozenset({f"operation={operation.name}"})
        programs = (program_of(Drawing(randomly=random.Random(seed), among=among)) for seed in range(300))
        assert any(operation.name in program.operations for program in programs), operation.name


def test_programs_are_scripts(tmp_path: Path) -> None:
    found = [PRELUDE]
    for form in FORMS:
        among = frozenset({f"form={form}", "source=npy", "operation=sum"})
        program = program_of(Drawing(randomly=random.Random(1), among=among))
        assert program.script() == PRELUDE + program.short()
        found += ["folder = Path(tempfile.mkdtemp())\n", program.short()]
    script = tmp_path / "script.py"
    script.write_text("".join(found))
    done = subprocess.run([sys.executable, script], env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True)
    assert done.returncode == 0, script.read_text() + done.stderr.decode()

"""What blocks with halos have from the block before counts as reading where the host computes, in plans as in runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.engine.transfer import Loaded
from chunkflow.planner.cost import estimate
from chunkflow.planner.plan import Plan


def _stored(folder: Path) -> str:
    np.save(folder / "x.npy", np.arange(64 * 32 * 32, dtype="f4").reshape(64, 32, 32))
    return str(folder / "x.npy")


def _planned(source: Any) -> Plan:
    return cf.explain(cf.map_overlap, np.negative, source, depth=4, chunks=(8, -1, -1), device="cpu")


def test_what_is_carried_from_block_to_block_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, carried = _stored(tmp_path), []
    take_over = Loaded.take_over

    def counted(self: Loaded, known: Any, before: Loaded) -> None:
        carried.append(np.prod([side.stop - side.start for side in known]) * 4)
        take_over(self, known, before)

    monkeypatch.setattr(Loaded, "take_over", counted)
    cf.map_overlap(np.negative, source, depth=4, chunks=(8, -1, -1), device="cpu")
    assert _planned(source).traffic.carried == sum(carried) == 7 * 8 * 32 * 32 * 4


def test_blocks_that_are_views_carry_nothing() -> None:
    assert _planned(np.zeros((64, 32, 32), "f4")).traffic.carried == 0


def test_carrying_takes_as_long_as_reading(tmp_path: Path) -> None:
    plan = _planned(_stored(tmp_path))
    given: Sequence[Any] = (plan.machine, plan.traffic, len(plan.grid), plan.depth)
    reading = plan.traffic.read / (plan.machine.load or plan.machine.read) + plan.traffic.carried / plan.machine.read
    assert estimate(*given).stages["read"] == pytest.approx(reading)


def test_filling_halos_is_seen_as_reading(tmp_path: Path) -> None:
    source = _stored(tmp_path)
    spans: list[tuple[str, int]] = []

    class Spans(cf.Observer):
        wants_spans = True

        def span(self, stage: Any, start: float, stop: float, nbytes: int, *of: Any) -> None:
            spans.append((stage, nbytes))

    with cf.observing(Spans()):
        cf.map_overlap(np.negative, source, depth=4, chunks=(8, -1, -1), device="cpu")
    read = [nbytes for stage, nbytes in spans if stage == "read"]
    assert len([nbytes for nbytes in read if not nbytes]) == 8 + 7  # beyond the edges, and from the block before
    assert sum(read) == 64 * 32 * 32 * 4  # nothing is read twice

"""What blocks with halos have from the block before counts as reading where the host computes, in plans as in runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.core.machine import Machine
from chunkflow.engine.transfer import Loaded
from chunkflow.planner.cost import Traffic, estimate
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


STAGED = Machine(read=1e9, upload=1e12, compute=1e12, download=1e12, write=1e12, overhead=1e-3, threads=4, decode=4e9)


def test_a_block_with_a_halo_is_handed_out_as_two() -> None:
    traffic = Traffic(8_000_000, 8_000_000, 8_000_000, 8_000_000, 8_000_000)
    bare, halo = (estimate(STAGED, traffic, 8, 3, halo=halo) for halo in (False, True))
    assert (bare.handed, halo.handed) == (8e-3, 16e-3)
    assert halo.seconds - bare.seconds == pytest.approx(8e-3)


@pytest.mark.parametrize(("chunks", "rounds"), [(1, 1), (4, 1), (5, 2), (9, 3)])
def test_threads_decode_chunks_in_rounds(chunks: int, rounds: int) -> None:
    each = 4_000_000
    traffic = Traffic(0, 0, 0, 0, 0, decode=chunks * each)
    share = min(chunks, STAGED.threads) / STAGED.threads
    found = estimate(STAGED, traffic, 1, 3, decoders=share, chunks=chunks)
    a_thread = STAGED.decode / STAGED.threads
    assert found.stages["read"] == pytest.approx(rounds * each / a_thread)

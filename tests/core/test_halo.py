"""Regions with halos, against counting element by element."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chunkflow.core.grid import touched
from chunkflow.core.halo import kept, length, parts, reach, rest

small = st.integers(1, 12)
halos = st.tuples(st.integers(0, 9), st.integers(0, 9))


def blocks(extent: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, extent)) for start in range(0, extent, size)]


@given(st.integers(1, 40), small, halos, st.sampled_from(["none", "nearest", "periodic"]))
def test_lengths_are_the_sums_of_what_is_read(extent: int, size: int, halo: tuple[int, int], kind: str) -> None:
    if kind == "periodic":
        halo = min(halo[0], extent), min(halo[1], extent)
    sides = [reach(block, halo, extent, kind) for block in blocks(extent, size)]

    def read(side: slice) -> int:
        return sum(s.stop - s.start for (s,), _ in parts((side,), (extent,), (kind,)))

    assert length(extent, size, halo, kind, reused=False) == sum(map(read, sides))
    total, before = 0, None
    for side in sides:
        known = kept((side,), before)
        total += read(rest((side,), known)[0])
        before = (side,)
    assert length(extent, size, halo, kind, reused=True) == total


@given(st.integers(1, 120), small, halos, small, st.booleans())
def test_touched_counts_whole_chunks(extent: int, size: int, halo: tuple[int, int], chunk: int, reused: bool) -> None:
    total = known = 0
    for block in blocks(extent, size):
        side = reach(block, halo, extent, "none")
        start = max(side.start, known) if reused else side.start
        total += sum(
            min((c + 1) * chunk, extent) - c * chunk
            for c in range(-(-extent // chunk))
            if max(c * chunk, start) < min((c + 1) * chunk, side.stop)
        )
        known = side.stop
    assert touched(extent, size, chunk, halo, reused=reused) == total


@given(st.integers(1, 40), small, halos, small)
def test_blocks_that_read_ahead_end_at_a_chunk_or_at_the_edge(
    extent: int, size: int, halo: tuple[int, int], unit: int
) -> None:
    for block in blocks(extent, size):
        side = reach(block, halo, extent, "nearest", unit)
        assert side.stop >= block.stop + halo[1]
        assert side.stop % unit == 0 or side.stop >= extent

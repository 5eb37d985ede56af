"""Cutting regions, against NumPy and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.core import grid, pieces
from chunkflow.core.grid import Grid, Shape

shapes = st.lists(st.integers(1, 9), max_size=4).map(tuple)


@st.composite
def ordered(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """A shape and a memory order."""
    shape = draw(shapes)
    return shape, tuple(draw(st.permutations(range(len(shape)))))


@st.composite
def cuttings(draw: st.DrawFn) -> tuple[Shape, Shape, int, Shape, Shape]:
    """Shape, order, limit, units and phase of a block."""
    shape, order = draw(ordered())
    units = tuple(draw(st.integers(1, n + 2)) for n in shape)
    phase = tuple(draw(st.integers(0, u - 1)) for u in units)
    return shape, order, draw(st.integers(1, 200)), units, phase


@given(st.data())
def test_a_grid_covers_its_space_once(data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple))
    block = tuple(data.draw(st.integers(1, n + 2)) for n in extents)
    heads = tuple(
        tuple(data.draw(st.lists(st.integers(1, b), max_size=2).filter(lambda sides, n=n: sum(sides) <= n)))
        for n, b in zip(extents, block, strict=True)
    )
    boxes = Grid(extents, block, data.draw(st.sampled_from([(), heads])))
    times = np.zeros(extents, int)
    for index in boxes.walk(range(len(extents))):
        region = boxes.region(index)
        times[region] += 1
        assert all(0 < side.stop - side.start <= most for side, most in zip(region, block, strict=True))
    assert (times == 1).all()
    for axis, number in enumerate(boxes.counts):
        assert sum(boxes.sides(axis).values()) == number
        assert sum(side * times for side, times in boxes.sides(axis).items()) == extents[axis]


@given(cuttings())
def test_pieces_tile_a_block(cutting: tuple[Shape, Shape, int, Shape, Shape]) -> None:
    shape, order, limit, units, phase = cutting
    times = np.zeros(shape, int)
    for piece in pieces.pieces(shape, order, limit, units, phase):
        times[piece.region] += 1
        assert piece.shape == grid.permuted(grid.shape_of(piece.region), order)
        assert piece.size == math.prod(piece.shape) >= 1
    assert (times == 1).all()


@given(cuttings())
def test_pieces_cut_along_units_only(cutting: tuple[Shape, Shape, int, Shape, Shape]) -> None:
    shape, order, limit, units, phase = cutting
    for piece in pieces.pieces(shape, order, limit, units, phase):
        for side, unit, offset, n in zip(piece.region, units, phase, shape, strict=True):
            assert side.start == 0 or (side.start + offset) % unit == 0
            assert side.stop == n or (side.stop + offset) % unit == 0


@given(cuttings())
def test_pieces_are_within_the_limit_or_a_single_unit(
    cutting: tuple[Shape, Shape, int, Shape, Shape],
) -> None:
    shape, order, limit, units, phase = cutting
    for piece in pieces.pieces(shape, order, limit, units, phase):
        # A block that starts within a unit cuts it into two parts of one piece at most.
        single = all(
            (side.stop + offset - 1) // unit - (side.start + offset) // unit <= 1
            for side, unit, offset in zip(piece.region, units, phase, strict=True)
        )
        assert piece.size <= limit or single


@given(ordered(), st.integers(1, 200))
def test_pieces_without_units_are_within_the_limit(shaped: tuple[Shape, Shape], limit: int) -> None:
    assert all(piece.size <= limit for piece in pieces.pieces(*shaped, limit))


@given(cuttings())
def test_offsets_are_places_in_memory(cutting: tuple[Shape, Shape, int, Shape, Shape]) -> None:
    shape, order, limit, units, phase = cutting
    memory = np.arange(math.prod(shape))
    block = memory.reshape(grid.permuted(shape, order)).transpose(np.argsort(order).astype(int))
    assert block.shape == shape
    for piece in pieces.pieces(shape, order, limit, units, phase):
        found = block[(*piece.region, ...)].transpose(order).ravel()
        one_run = (np.diff(found) == 1).all()
        assert (piece.offset is not None) == one_run
        if piece.offset is not None:
            assert found[0] == piece.offset


def test_pieces_of_nothing_hold_nothing() -> None:
    assert sum(piece.size for piece in pieces.pieces((0, 3), (0, 1), 4)) == 0


def test_a_scalar_is_one_piece() -> None:
    [piece] = pieces.pieces((), (), 1)
    assert (piece.region, piece.size, piece.offset) == ((), 1, 0)


@given(cuttings())
def test_fit_keeps_units_and_target(cutting: tuple[Shape, Shape, int, Shape, Shape]) -> None:
    extents, order, target, units, _ = cutting
    box = grid.fit(extents, units, order, target)
    least = tuple(min(u, n) for u, n in zip(units, extents, strict=True))
    for side, unit, n in zip(box, units, extents, strict=True):
        assert 1 <= side <= n
        assert side == n or side % unit == 0
    assert math.prod(box) <= target or box == least


@given(cuttings())
def test_fit_grows_the_fastest_axis_first(cutting: tuple[Shape, Shape, int, Shape, Shape]) -> None:
    extents, order, target, units, _ = cutting
    box = grid.fit(extents, units, order, target)
    cut = [axis for axis in order if box[axis] < extents[axis]]
    if cut:
        fastest = cut[-1]
        for axis in order[: order.index(fastest)]:  # slower axes stay at one unit
            assert box[axis] == min(units[axis], extents[axis])
        # and the one that is cut could not take one more unit
        longer = min(box[fastest] + units[fastest], extents[fastest])
        assert math.prod(box) // box[fastest] * longer > target


@given(cuttings())
def test_fit_grows_with_its_target(cutting: tuple[Shape, Shape, int, Shape, Shape]) -> None:
    extents, order, target, units, _ = cutting
    smaller, larger = (math.prod(grid.fit(extents, units, order, t)) for t in (target, target + 1))
    assert smaller <= larger


@given(ordered(), st.data())
def test_contiguous_as_numpy_says(shaped: tuple[Shape, Shape], data: st.DataObject) -> None:
    shape, order = shaped
    box = tuple(data.draw(st.integers(1, n)) for n in shape)
    block = np.zeros(grid.permuted(shape, order)).transpose(np.argsort(order).astype(int))
    part = block[tuple(slice(n) for n in box)].transpose(order) if shape else block
    assert pieces.contiguous(box, shape, order) == part.flags.c_contiguous


@given(st.integers(0, 60), st.integers(1, 70), st.integers(1, 20))
def test_touched_counts_whole_units(extent: int, size: int, unit: int) -> None:
    total = 0
    for start in range(0, extent, size):
        touched = {i // unit for i in range(start, min(start + size, extent))}
        total += sum(min((u + 1) * unit, extent) - u * unit for u in touched)
    assert grid.touched(extent, size, unit) == total


@given(st.integers(0, 50), st.integers(1, 60))
def test_count(extent: int, size: int) -> None:
    assert grid.count(extent, size) == len(range(0, extent, size))


@given(ordered(), st.data())
def test_a_grid_covers_once_and_in_order(shaped: tuple[Shape, Shape], data: st.DataObject) -> None:
    shape, order = shaped
    blocks = Grid(shape, tuple(data.draw(st.integers(1, n + 1)) for n in shape))
    times = np.zeros(shape, int)
    indices = list(blocks.walk(order))
    assert len(indices) == len(blocks) == math.prod(blocks.counts)
    for index in indices:
        region = blocks.region(index)
        times[region] += 1
        assert all(0 < side <= b for side, b in zip(grid.shape_of(region), blocks.block, strict=True))
    assert (times == 1).all()
    assert [grid.permuted(index, order) for index in indices] == sorted(
        itertools.product(*(range(blocks.counts[axis]) for axis in order))
    )


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_a_grid_of_nothing_has_no_blocks(shape: Shape) -> None:
    blocks = Grid(shape, tuple(max(n, 1) for n in shape))
    assert len(blocks) == 0
    assert list(blocks.walk(tuple(range(len(shape))))) == []


def test_a_scalar_is_one_block() -> None:
    blocks = Grid((), ())
    assert len(blocks) == 1
    assert [blocks.region(index) for index in blocks.walk(())] == [()]


def test_regions() -> None:
    region = grid.whole((3, 4))
    assert grid.shift(region, (10, 20)) == (slice(10, 13), slice(20, 24))
    assert grid.shape_of(grid.shift(region, (10, 20))) == (3, 4)
    assert grid.describe(()) == "[]"


@given(data=st.data())
def test_a_piece_is_where_its_offset_or_its_rows_say(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    limit = data.draw(st.integers(1, 40))
    memory = np.arange(math.prod(shape))
    block = memory.reshape([shape[a] for a in order]).transpose(np.argsort(order))
    for piece in pieces.pieces(shape, order, limit):
        expected = block[piece.region].transpose(order).ravel()
        if piece.offset is not None:
            assert piece.rows is None
            found = memory[piece.offset : piece.offset + piece.size]
        elif piece.rows is not None:
            runs = [s + i * piece.rows.pitch for s in piece.rows.starts for i in range(piece.rows.height)]
            found = np.concatenate([memory[r : r + piece.rows.width] for r in runs])
        else:
            continue
        np.testing.assert_array_equal(found, expected)

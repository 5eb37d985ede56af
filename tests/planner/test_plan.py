"""Plans, against brute force: what is read when, what it takes, and that the budget is kept and used."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import assume, given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow import stores
from chunkflow.core.grid import Grid, Region, Shape, shape_of
from chunkflow.core.halo import Boundary
from chunkflow.core.machine import Machine
from chunkflow.core.memory import Projection, Ring, rounded, temporaries
from chunkflow.core.nest import Along, LoopNest, Operand, Output, nest
from chunkflow.core.pieces import Piece, placed
from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.mover import tabled
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError
from chunkflow.planner import candidate, search
from chunkflow.planner.candidate import plan_of
from chunkflow.planner.cost import CROWD, Traffic, estimate
from chunkflow.planner.plan import Plan
from chunkflow.planner.problem import PlanProblem
from chunkflow.planner.search import NEAR_TIE, _chosen, make_plan
from chunkflow.planner.step import Step
from chunkflow.planner.transfer_cut import Cut, parts

GPU = Machine(read=30e9, upload=50e9, compute=800e9, download=50e9, write=30e9, overhead=300e-6, page=2 << 20)
SMALL = replace(GPU, overhead=1e-9, page=512, piece=256, host_limit=4096, threads=4)
MACHINES = (
    SMALL,
    replace(SMALL, depths=(1,)),
    replace(SMALL, depths=(2, 1), overhead=1e-3),
    replace(SMALL, staged=False, lanes=2, depths=(4, 2, 1), cache=2000, spill=0.5),
)
IN_MEMORY = Storage(in_memory=True)
RATIOS = (Fraction(1), Fraction(1, 2), Fraction(2), Fraction(2, 3), Fraction(3, 2))


def spec(shape: Shape, dtype: str = "f4", **options: Any) -> ArraySpec:
    return ArraySpec("x", shape, np.dtype(dtype), **options)


def elementwise(*shapes: Shape) -> LoopNest:
    op = nest(shapes)
    return replace(op, outputs=(Output(tuple(Along(a) for a in range(len(op.extents)))),))


@st.composite
def problems(draw: st.DrawFn, *, chunked: bool = True) -> dict[str, Any]:
    """Arguments of `make_plan`, less the budget."""
    extents = tuple(draw(st.lists(st.integers(1, 14), min_size=1, max_size=3)))
    axes = range(len(extents))
    uncut = frozenset(draw(st.sets(st.sampled_from(axes), max_size=1)))

    def chunks(shape: Shape) -> Shape | None:
        if not chunked or not draw(st.booleans()):
            return None
        return tuple(draw(st.integers(1, n + 3)) for n in shape)

    def array(shape: Shape) -> ArraySpec:
        dtype = draw(st.sampled_from(["i1", "f4", "c16"]))
        order = tuple(draw(st.permutations(range(len(shape)))))
        return spec(shape, dtype, chunks=chunks(shape), order=order, storage=Storage(in_memory=draw(st.booleans())))

    operands = []
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, len(extents)))
        operands.append(Operand(tuple(a if draw(st.integers(0, 3)) else None for a in axes[first:])))
    outputs = []
    for _ in range(draw(st.integers(1, 2))):
        followed = [a for a in axes if a not in uncut or draw(st.booleans())]
        dims: list[Along | int] = [Along(a, draw(st.sampled_from(RATIOS))) for a in followed]
        if draw(st.booleans()):
            dims.insert(draw(st.integers(0, len(dims))), draw(st.integers(1, 3)))
        outputs.append(Output(tuple(dims)))
    return {
        "op": LoopNest(extents, tuple(operands), tuple(outputs), uncut),
        "operands": [array(o.shape(extents)) for o in operands],
        "outputs": [array(o.shape(extents)) for o in outputs],
        "machine": draw(st.sampled_from(MACHINES)),
        "workspace": draw(st.sampled_from([0.0, 0.5, 8.0])),
        "reserve": draw(st.sampled_from([0, 1000])),
        "tiles": draw(st.booleans()),
    }


budgets = st.integers(500, 60_000)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    try:
        return make_plan(**draw(problems()), budget=draw(budgets))
    except BudgetError:
        assume(False)
        raise


def touched(region: Region, chunks: Shape | None, shape: Shape) -> int:
    """Elements of the chunks that a region touches."""
    total = 1
    for side, chunk, n in zip(region, chunks or (1,) * len(shape), shape, strict=True):
        total *= sum(min((c + 1) * chunk, n) - c * chunk for c in {i // chunk for i in range(side.start, side.stop)})
    return total


# Steps


def stores_of(step: Step) -> tuple[Region, ...]:
    return tuple(region for _, region in step.stores)


@given(plans())
def test_steps_tile_the_nest_once(plan: Plan) -> None:
    times = np.zeros(plan.op.extents, int)
    numbers = []
    for step in plan.steps():
        times[step.box] += 1
        numbers.append(step.number)
        assert step.box == plan.grid.region(step.index)
        assert step.sources == tuple(o.region(step.box) for o in plan.op.operands)
        assert step.stores == tuple(enumerate(o.region(step.box) for o in plan.op.outputs))
    assert (times == 1).all()
    assert numbers == list(range(len(plan.grid)))


@given(plans())
def test_stores_tile_the_outputs_once(plan: Plan) -> None:
    for i, output in enumerate(plan.outputs):
        times = np.zeros(output.shape, int)
        for step in plan.steps():
            times[dict(step.stores)[i]] += 1
        assert (times == 1).all()


@given(plans())
def test_a_load_is_fresh_when_the_block_changes(plan: Plan) -> None:
    before: list[Region | None] = [None] * len(plan.operands)
    number = [-1] * len(plan.operands)
    for step in plan.steps():
        for i, region in enumerate(step.sources):
            assert step.fresh[i] == (region != before[i])
            number[i] += step.fresh[i]
            before[i] = region
        assert step.loads == tuple(number)
    assert [n + 1 for n in number] == [plan.loads(i) for i in range(len(plan.operands))]


@given(plans())
def test_a_slot_is_not_filled_while_it_is_used(plan: Plan) -> None:
    steps = list(plan.steps())
    for i in range(len(plan.operands)):
        last_use = {step.loads[i]: step.number for step in steps}
        for step in steps:
            earlier = step.loads[i] - plan.depth
            if step.fresh[i] and earlier >= 0:
                # The load is asked for when the step comes `depth` steps ahead of the one to be computed next.
                assert last_use[earlier] <= step.number - plan.depth


@given(plans())
def test_bytes_are_those_of_all_loads_in_whole_chunks(plan: Plan) -> None:
    read = upload = 0
    for step in plan.steps():
        for array, region, fresh in zip(plan.operands, step.sources, step.fresh, strict=True):
            if fresh:
                read += touched(region, array.chunks, array.shape) * array.dtype.itemsize
                upload += math.prod(shape_of(region)) * array.dtype.itemsize
    assert plan.bytes_in == read
    assert plan.traffic.upload == upload
    assert plan.bytes_out == plan.traffic.download == sum(array.nbytes for array in plan.outputs)


@given(plans())
def test_the_loop_order_loads_the_fewest_bytes(plan: Plan) -> None:
    def loaded(walk: Shape) -> int:
        total = 0
        last: list[Region | None] = [None] * len(plan.operands)
        for index in plan.grid.walk(walk):
            box = plan.grid.region(index)
            for i, (array, operand) in enumerate(zip(plan.operands, plan.op.operands, strict=True)):
                region = operand.region(box)
                if region != last[i]:
                    last[i] = region
                    total += math.prod(shape_of(region)) * array.dtype.itemsize
        return total

    assert loaded(plan.walk) == min(map(loaded, itertools.permutations(range(len(plan.op.extents)))))


# Blocks


@given(plans())
def test_blocks_share_no_chunk_of_an_output(plan: Plan) -> None:
    for i, output in enumerate(plan.outputs):
        for step in plan.steps():
            for side, chunk, n in zip(
                dict(step.stores)[i], output.chunks or (1,) * len(output.shape), output.shape, strict=True
            ):
                assert side.start % chunk == 0
                assert side.stop % chunk == 0 or side.stop == n


@given(plans())
def test_whole_axes_are_not_cut(plan: Plan) -> None:
    assert all(plan.grid.counts[axis] == 1 for axis in plan.op.whole)


def parts_through(cut: Cut, piece: Piece, region: Region) -> tuple[tuple[Piece, Piece], ...]:
    """What goes through a slot of a piece at once."""
    return parts(piece, shape_of(region), cut.order, cut.through) if cut.through else ((piece, piece),)


@given(plans())
def test_pieces_tile_every_block(plan: Plan) -> None:
    arrays = (*plan.operands, *plan.outputs)
    cuts = (*plan.cuts_in, *plan.cuts_out)
    rings = [plan.ring_in] * len(plan.operands) + [plan.ring_out] * len(plan.outputs)
    for step in plan.steps():
        for array, cut, ring, region in zip(arrays, cuts, rings, (*step.sources, *stores_of(step)), strict=True):
            sizes = [piece.size for piece in cut.pieces(region)]
            assert sum(sizes) == math.prod(shape_of(region))
            assert (ring is not None) == plan.machine.staged
            if ring is not None:
                parted = [place.size for p in cut.pieces(region) for _, place in parts_through(cut, p, region)]
                assert sum(parted) == math.prod(shape_of(region))
                assert max(parted, default=0) * array.dtype.itemsize <= ring.slot_bytes
                if len(parted) > len(sizes):
                    assert max(sizes) * array.dtype.itemsize <= ring.room


@given(plans())
def test_scattered_pieces_have_room_to_land(plan: Plan) -> None:
    for ring, arrays, cuts, outward in (
        (plan.ring_in, plan.operands, plan.cuts_in, False),
        (plan.ring_out, plan.outputs, plan.cuts_out, True),
    ):
        for step in plan.steps() if ring is not None else ():
            for array, cut, region in zip(arrays, cuts, stores_of(step) if outward else step.sources, strict=True):
                for whole in cut.pieces(region):
                    for _, piece in parts_through(cut, whole, region):
                        if piece.offset is None:
                            assert piece.size * array.dtype.itemsize <= ring.scratch


def test_a_fixed_block_is_kept() -> None:
    x = spec((100, 100))
    plan = make_plan(elementwise(x.shape), [x], [x], SMALL, 1_000_000, block=(7, 50))
    assert plan.block == (7, 50)
    assert plan.grid.counts == (15, 2)
    with pytest.raises(BudgetError) as caught:
        make_plan(elementwise(x.shape), [x], [x], SMALL, 2000, block=(7, 50))
    assert caught.value.smallest is not None
    make_plan(elementwise(x.shape), [x], [x], SMALL, caught.value.smallest, block=(7, 50))


def test_a_fixed_block_may_be_larger_than_the_array() -> None:
    x = spec((10, 10), chunks=(4, 4))
    plan = make_plan(elementwise(x.shape), [x], [x], SMALL, 1_000_000, block=(64, 64))
    assert len(plan.grid) == 1


def test_a_fixed_block_does_not_split_chunks_of_an_output() -> None:
    x, y = spec((100, 100)), spec((100, 100), chunks=(10, 25))
    with pytest.raises(ArgumentError, match="multiple of 10"):
        make_plan(elementwise(x.shape), [x], [y], SMALL, 1_000_000, block=(7, 50))


@given(problems(), budgets)
def test_sources_need_no_alignment(arguments: dict[str, Any], budget: int) -> None:
    """What fits without source chunks fits with them, but for what decoding one takes: it may be read twice."""
    # Where data are staged a chunk passes whole through the ring, which takes memory of its own.
    arguments["machine"] = replace(SMALL, staged=False)
    decoding = 3 * max([SMALL.piece, *(array.nbytes for array in arguments["operands"])]) + 512
    bare = [replace(array, chunks=None) for array in arguments["operands"]]
    try:
        make_plan(**{**arguments, "operands": bare}, budget=budget)
    except BudgetError:
        return
    make_plan(**arguments, budget=budget + decoding)


def test_incompatible_chunks_of_sources_are_all_read_once_where_there_is_room() -> None:
    a, b = spec((9600, 4800), chunks=(96, 480)), spec((9600, 4800), chunks=(128, 300))
    plan = make_plan(elementwise(a.shape, b.shape), [a, b], [spec(a.shape)], GPU, 100_000_000)
    assert len(plan.grid) > 1
    assert plan.bytes_in == a.nbytes + b.nbytes


def test_chunks_are_read_repeatedly_where_there_is_no_room() -> None:
    a = spec((4096, 4096), chunks=(4096, 4096))
    machine = replace(GPU, page=512)
    plan = make_plan(elementwise(a.shape), [a], [spec(a.shape)], machine, 8_000_000)
    assert len(plan.grid) > 1
    assert plan.bytes_in == len(plan.grid) * a.nbytes


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("chunk", [(8000, 100), (500, 1600)])
def test_blocks_lie_in_one_chunk_where_none_holds_a_whole_one(chunk: Shape, staged: bool) -> None:
    a, machine = spec((16000, 1600), chunks=chunk), replace(GPU, page=512, staged=staged)
    output = spec(a.shape, storage=IN_MEMORY)
    plan = make_plan(elementwise(a.shape), [a], [output], machine, 16_000_000, workspace=40.0)
    assert math.prod(plan.block) < math.prod(chunk)
    assert all(side <= n for side, n in zip(plan.block, chunk, strict=True))
    whole = math.prod(chunk) / math.prod(plan.block)
    assert plan.rereads <= 1.5 * whole + 1, "and not of all chunks in a row"
    assert re.search(r"chunks are read [\d.]+ times: whole ones fit a budget of about [\d.]+ MB", str(plan))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_planned_for_nothing(shape: Shape, machine: Machine) -> None:
    x = spec(shape)
    plan = make_plan(elementwise(shape), [x], [x], machine, 10_000)
    assert list(plan.steps()) == []
    assert (plan.bytes_in, plan.bytes_out) == (0, 0)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_scalar_is_one_step(machine: Machine) -> None:
    x = spec(())
    [step] = make_plan(elementwise(()), [x], [x], machine, 10_000).steps()
    assert (step.box, step.sources, step.stores) == ((), ((),), ((0, ()),))


# Memory


@given(plans())
def test_the_budget_is_kept(plan: Plan) -> None:
    assert plan.memory.total <= plan.budget
    assert plan.depth in plan.machine.depths
    assert 1 <= plan.lanes <= plan.machine.lanes


@given(plans())
def test_every_block_fits_the_slots_that_are_counted(plan: Plan) -> None:
    inputs = 0
    for i, array in enumerate(plan.operands):
        most = max(math.prod(shape_of(step.sources[i])) for step in plan.steps()) * array.dtype.itemsize
        assert most <= math.prod(plan.slot_shape(i)) * array.dtype.itemsize
        if plan.machine.staged or not array.storage.in_memory:
            inputs += plan.slots(i) * rounded(most, plan.machine.page)
    assert inputs <= plan.memory.inputs
    outputs = 0
    for i, array in enumerate(plan.outputs):
        most = max(math.prod(shape_of(dict(step.stores)[i])) for step in plan.steps()) * array.dtype.itemsize
        waiting = plan.depth if plan.machine.staged else plan.lanes
        outputs += min(waiting, len(plan.grid)) * rounded(most, plan.machine.page)
    assert outputs <= plan.memory.outputs


@given(plans())
def test_no_two_steps_that_are_under_way_together_need_one_slot(plan: Plan) -> None:
    """Where lanes take blocks all the way, a lane's steps follow one another; elsewhere `depth` steps are under way."""
    for i in range(len(plan.operands)):
        last: dict[int, tuple[int, int]] = {}
        for step in plan.steps():
            slot, lane = step.loads[i] % plan.slots(i), step.number % plan.lanes
            if slot in last and last[slot][0] != step.loads[i] and plan.slots(i) < min(plan.depth, plan.loads(i)):
                assert last[slot][1] == lane
            last[slot] = (step.loads[i], lane)


@given(plans())
def test_tiles_keep_the_working_set_in_the_cache_and_whole_axes_whole(plan: Plan) -> None:
    if plan.tile == plan.block:
        return
    assert not plan.machine.staged
    assert all(1 <= t <= b for t, b in zip(plan.tile, plan.block, strict=True))
    cut = [a for a, (t, b) in enumerate(zip(plan.tile, plan.block, strict=True)) if t < b]
    assert cut
    for a in cut:
        assert a not in plan.op.whole
        assert all(Along(a) in o.dims for o in plan.op.outputs)


def test_tiles_are_even() -> None:
    """Where all but a row of a plane would stay in the cache, its halves do; the row is no tile by itself."""
    x, machine = spec((512, 512, 512), storage=IN_MEMORY), replace(NumpyDevice().machine, cache=12 << 20)
    y = spec(x.shape, chunks=(16, 512, 512))
    plan = make_plan(elementwise(x.shape), [x], [y], machine, 1 << 34, workspace=8.02, tiles=True)
    assert plan.block == y.chunks
    assert plan.tile == (1, 256, 512)


@pytest.mark.parametrize("rates", [{}, {"read": 13.8e9, "write": 13e9, "compute": 27.4e9, "overhead": 102e-6}])
def test_a_map_in_memory_has_blocks_that_stay_in_the_cache(rates: dict[str, float]) -> None:
    """Of larger ones, computed by tiles, results are put into their places first, and fetched from there."""
    shape, cache = (512, 512, 512), 12 << 20
    machine = replace(NumpyDevice().machine, cache=cache, lanes=2, depths=(4, 2, 1), **rates)
    arrays = spec(shape, storage=IN_MEMORY)
    plan = make_plan(elementwise(shape), [arrays], [arrays], machine, 1 << 34, workspace=8.02, tiles=True)
    assert plan.tile == plan.block
    assert 16 * math.prod(plan.block) <= cache


def test_all_slots_of_a_lane_that_a_file_is_read_into_stay_in_the_cache() -> None:
    shape, cache = (4096, 4096), 12 << 20
    machine = replace(NumpyDevice().machine, cache=cache, lanes=2, depths=(4, 2, 1))
    op = nest([shape], [0, 1])
    for storage, slots in ((Storage(), 2), (IN_MEMORY, 1)):
        problem = PlanProblem(op, (spec(shape, storage=storage),), (), machine, 1 << 34, 0.0, 0, frozenset(), (0, 1))
        fits, other = (plan_of(problem, (rows, 4096), 4).estimate.stages["compute"] for rows in (384, 576))
        assert 384 * 4096 * 4 * 2 <= cache < 576 * 4096 * 4 * 2
        assert (other > fits) == (slots == 2)


def test_what_chunks_take_beside_their_bytes_is_predicted() -> None:
    x = spec((512, 512), chunks=(64, 512))
    machine = replace(NumpyDevice().machine, lanes=2, depths=(4, 2, 1), handling=0.0)
    op = nest([x.shape], [0, 1])
    problem = PlanProblem(op, (x,), (), machine, 1 << 30, 0.0, 0, frozenset(), (0, 1))
    slower = replace(problem, machine=replace(machine, handling=1e-3))
    with_it, without = (plan_of(p, (128, 512), 4).estimate.seconds for p in (slower, problem))
    assert with_it - without == pytest.approx(8e-3)


@given(problems())
def test_the_smallest_budget_is_just_enough(arguments: dict[str, Any]) -> None:
    with pytest.raises(BudgetError) as caught:
        make_plan(**arguments, budget=1)
    smallest = caught.value.smallest
    assert smallest is not None
    assert str(smallest) in str(caught.value)
    assert make_plan(**arguments, budget=smallest).memory.total <= smallest
    with pytest.raises(BudgetError):
        make_plan(**arguments, budget=smallest - 1)


@given(problems(), budgets)
def test_the_error_names_the_smallest_budget_whatever_was_asked_for(arguments: dict[str, Any], budget: int) -> None:
    error = None
    try:
        make_plan(**arguments, budget=budget)
    except BudgetError as caught:
        error = caught
    assume(error is not None)
    assert error.limit == budget
    assert budget < error.smallest == error.needed
    make_plan(**arguments, budget=error.smallest)


SHAPES = [(1 << 34,), (1 << 17, 1 << 17), (3000, 2000, 2500), (500, 100, 400, 700), (1 << 30, 7)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", ["256MB", "1GB", "4GB", "40GB"])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("workspace", [0.0, 12.0])
def test_the_budget_is_used(shape: Shape, budget: str, number: int, workspace: float) -> None:
    limit = parse_bytes(budget)
    arrays = [spec(shape)] * number
    op = elementwise(*[shape] * number)
    plan = make_plan(op, arrays, [spec(shape)], GPU, limit, workspace=workspace)
    assert plan.memory.total <= limit
    if plan.memory.total < 0.6 * limit:
        axis = next(a for a in reversed(range(len(shape))) if plan.block[a] < shape[a])
        for factor in (1.2, 1.5, 2.0, 3.0):
            side = min(math.ceil(plan.block[axis] * factor), shape[axis])
            block = (*plan.block[:axis], side, *plan.block[axis + 1 :])
            try:
                larger = make_plan(op, arrays, [spec(shape)], GPU, limit, workspace=workspace, block=block)
            except BudgetError:
                continue
            assert NEAR_TIE * larger.estimate.seconds >= plan.estimate.seconds


def test_slots_for_full_overlap_are_kept_where_there_is_room() -> None:
    x = spec((3000, 2000, 2500))
    plan = make_plan(elementwise(x.shape), [x], [x], GPU, 4_000_000_000, workspace=8)
    assert plan.depth == max(GPU.depths)


@pytest.mark.parametrize("chunks", [None, (64, 64, 64), (128, 1024, 1024)])
def test_a_terabyte_is_planned_in_few_trials(chunks: Shape | None, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(*args: Any, **how: Any) -> Any:
        tried.append(args)
        return estimate(*args, **how)

    monkeypatch.setattr(candidate, "estimate", counted)
    x = spec((1 << 18, 1024, 1024), chunks=chunks)
    plan = make_plan(elementwise(x.shape), [x], [x], GPU, 4_000_000_000)
    assert x.nbytes > 1e12
    assert len(plan.grid) > 100
    assert 0 < len(tried) < 500
    assert next(plan.steps()).number == 0  # made as they are asked for


def test_a_plan_describes_itself() -> None:
    x = spec((3000, 2000, 2500), chunks=(100, 100, 100))
    text = str(make_plan(elementwise(x.shape), [x], [x], GPU, 4_000_000_000, reserve=1 << 20))
    for part in ("blocks of", "float32 (3000, 2000, 2500)", "in chunks", "memory", "4.00 GB", "bound by"):
        assert part in text


def test_chunks_in_shards_are_handled_twice() -> None:
    whole = spec((256, 256), chunks=(16, 16))
    seconds = []
    for x in (whole, whole.with_storage(sharded=True)):
        plan = make_plan(elementwise(x.shape), [x], [spec(x.shape)], replace(GPU, handling=1.0), 1 << 30)
        seconds.append(plan.estimate.stages["read"])
    assert seconds == pytest.approx([CROWD * 256, CROWD * 512], rel=0.01), "threads have nothing else to do"


# The arithmetic below


@pytest.mark.parametrize(
    ("nbytes", "page", "expected"),
    [
        (0, 512, 0),
        (1, 512, 512),
        (512, 512, 512),
        (513, 512, 1024),
        (1, 2 << 20, 512),
        (1 << 20, 2 << 20, 1 << 20),
        ((1 << 20) + 1, 2 << 20, 2 << 20),
        (2 << 20, 2 << 20, 2 << 20),
        ((2 << 20) + 1, 2 << 20, 4 << 20),
    ],
)
def test_rounded(nbytes: int, page: int, expected: int) -> None:
    assert rounded(nbytes, page) == expected


@given(st.integers(0, 1 << 40), st.sampled_from([512, 4096, 2 << 20]))
def test_rounding_never_takes_away(nbytes: int, page: int) -> None:
    assert nbytes <= rounded(nbytes, page) < nbytes + page
    assert rounded(rounded(nbytes, page), page) == rounded(nbytes, page)


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 12))
def test_temporaries_waste_no_pages_where_there_are_none(nbytes: int, block: int) -> None:
    assert nbytes <= temporaries(nbytes, block, 512) <= nbytes + 3 * 512


def test_a_projection_sums_its_terms() -> None:
    projection = Projection(1, 20, 300, 4000, 50_000, 600_000)
    assert projection.total == 654_321
    assert str(Projection(0, 0, 0, 0, 0, 0)) == "0 B = 0 B"


@given(*(st.integers(1, 1000) for _ in range(5)))
def test_a_ring_is_within_its_limit(pieces: int, slot: int, threads: int, slots: int, limit: int) -> None:
    ring = Ring.sized(pieces, slot, threads, slots, limit)
    assert 1 <= ring.threads <= min(threads, pieces)
    assert ring.nbytes <= max(limit, slots * slot)


@given(st.lists(st.integers(0, 10**12), min_size=5, max_size=5), st.integers(1, 1000), st.integers(1, 5))
def test_estimates_grow_with_bytes(amounts: list[int], blocks: int, depth: int) -> None:
    for machine in (GPU, *MACHINES):
        base = estimate(machine, Traffic(*amounts), blocks, depth)
        for i in range(5):
            more = [*amounts[:i], amounts[i] * 2 + 1000, *amounts[i + 1 :]]
            assert estimate(machine, Traffic(*more), blocks, depth).seconds >= base.seconds
        assert base.seconds >= max(base.stages.values()) / machine.lanes
        assert base.bound_by in base.stages


def test_new_files_are_written_at_a_rate_of_their_own(tmp_path: Path) -> None:
    machine = replace(GPU, create=GPU.write / 8)
    old, new = (estimate(machine, Traffic(*[10**9] * 5, created=n), 10, 3) for n in (0, 10**9))
    assert new.stages["write"] == pytest.approx(8 * old.stages["write"])
    assert new.bound_by == "write"
    assert stores.open_target(tmp_path / "y.npy").describe((4,), np.dtype("f4"), None).storage.fresh


def test_narrow_blocks_of_new_files_are_written_at_a_rate_of_their_own(tmp_path: Path) -> None:
    machine = replace(GPU, create=GPU.write / 2, scatter=GPU.write / 8, staged=False)
    out = stores.open_target(tmp_path / "y.npy").describe((2048, 2048), np.dtype("f4"), None)
    problem = PlanProblem(
        elementwise(out.shape), (spec(out.shape),), (out,), machine, 1 << 30, 0.0, 0, frozenset(), (0, 1)
    )
    rows, columns = (plan_of(problem, block, 1).estimate.stages["write"] for block in ((64, 2048), (2048, 64)))
    assert columns == pytest.approx(4 * rows)
    problem = replace(problem, machine=replace(machine, scatter=0.0))  # as it was measured before
    assert plan_of(problem, (2048, 64), 1).estimate.stages["write"] == pytest.approx(rows)


def test_files_that_are_read_have_a_rate_and_memory_has_another() -> None:
    machine = replace(NumpyDevice().machine, read=8e9, load=4e9)
    memory, files = (estimate(machine, Traffic(*[10**9] * 5, files=n), 10, 3) for n in (0, 10**9))
    assert files.stages["read"] == pytest.approx(2 * memory.stages["read"])
    unknown = estimate(replace(machine, load=0.0), Traffic(*[10**9] * 5, files=10**9), 10, 3)
    assert unknown.stages["read"] == memory.stages["read"]


@pytest.mark.parametrize("parted", [True, False])
def test_of_chunks_that_can_be_read_in_parts_only_the_wanted_ones_count(parted: bool) -> None:
    x = spec((64, 512, 512), chunks=(64, 512, 512)).with_storage(raw=True, separate=True, parted=parted)
    out = spec(x.shape)
    plan = make_plan(elementwise(x.shape), [x], [out], NumpyDevice().machine, 1 << 30, block=(8, 512, 512))
    assert plan.traffic.read == x.nbytes * (1 if parted else 8)
    assert plan.traffic.files == plan.traffic.read


def test_chunks_that_are_files_have_a_rate_and_as_many_threads_as_there_are(tmp_path: Path) -> None:
    machine = replace(GPU, separate=GPU.write / 4, create=1.0)
    old, new = (estimate(machine, Traffic(*[10**9] * 5, separate=n), 10, 3) for n in (0, 10**9))
    assert new.stages["write"] == pytest.approx(4 * old.stages["write"])
    threads, device = {}, NumpyDevice(staged=True, machine=GPU)
    for codec in (None, "auto"):
        options: dict[str, Any] = {"chunks": (64, 64, 64), "compressors": codec}
        out = zarr.create_array(tmp_path / f"{codec}.zarr", shape=(512, 512, 512), dtype="f4", **options)
        x = np.broadcast_to(np.float32(1), out.shape)
        plan = cf.explain(cf.map, np.negative, x, out=out, device=device, budget="4GB")
        assert plan.ring_in is not None
        assert plan.ring_out is not None
        assert plan.traffic.separate == (out.nbytes if codec is None else 0)
        threads[codec] = plan.ring_in.threads, plan.ring_out.threads
    assert threads == {None: (8, 16), "auto": (8, 8)}


@pytest.mark.parametrize(("lanes", "threads"), [(1, 32), (3, 32), (40, 40)])
def test_many_pieces_are_under_way_over_a_network(lanes: int, threads: int) -> None:
    machine = replace(NumpyDevice().machine, staged=False, lanes=lanes, depths=(1,), cache=1 << 20)
    plain = spec((4096, 4096))
    chunked = spec((4096, 4096), chunks=(16, 16), storage=Storage(remote=True))
    for source, out in ((chunked, plain), (plain, chunked)):
        plan = make_plan(elementwise(plain.shape), [source], [out], machine, 2_000_000_000, block=(64, 4096))
        assert (plan.lanes, plan.coders) == (1, threads)


def test_no_more_threads_store_results_than_there_are_pieces_of_them() -> None:
    device, x = NumpyDevice(staged=True, machine=GPU), np.broadcast_to(np.float32(1), (256, 1024, 1024))
    threads = []
    for axis in (None, 0, (1, 2), 2):
        plan = cf.explain(cf.sum, x, axis=axis, device=device, budget="100MB")
        assert len(plan.grid) > 16
        assert plan.ring_out is not None
        threads.append(plan.ring_out.threads)
    assert threads == [1, 1, 8, 8], "of a reduction to a number, one"


@given(st.lists(st.integers(0, 10**12), min_size=5, max_size=5), st.integers(1, 1000))
def test_more_slots_are_no_slower(amounts: list[int], blocks: int) -> None:
    seconds = [estimate(GPU, Traffic(*amounts), blocks, depth).seconds for depth in (1, 2, 3)]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, 1),
        (np.int64(4096), 4096),
        ("1", 1),
        ("12 B", 12),
        ("4GB", 4 * 10**9),
        ("4gb", 4 * 10**9),
        ("4GiB", 4 << 30),
        (" 4 GiB ", 4 << 30),
        ("1.5kB", 1500),
        (".5 KiB", 512),
        ("2MB", 2_000_000),
        ("2MiB", 2 << 20),
        ("1TB", 10**12),
        ("1PiB", 1 << 50),
        ("1e3", 1000),
        ("2e-3 MB", 2000),
        ("80%", 800),
        ("100%", 1000),
        ("0.5%", 5),
        (0.8, 800),
        (1.0, 1000),
        (1e-9, 1),
    ],
)
def test_parse_bytes(text: Any, expected: int) -> None:
    assert parse_bytes(text, whole=1000) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(0, -1, 0.0, -0.5, 1.5, 4e9, math.nan, math.inf),
        *("0", "-4GB", "0B", "", "GB", "4 bananas", "4GBs", "4G B", "1,5GB", "nan", "inf", "1e-3 B"),
        *("0%", "101%", "-5%"),
    ],
)
def test_impossible_budgets(text: Any) -> None:
    with pytest.raises(ArgumentError):
        parse_bytes(text, whole=1000)


@pytest.mark.parametrize("value", [None, True, False, [1], 1j, b"4GB"])
def test_other_things_are_no_budgets(value: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_bytes(value, whole=1000)


@pytest.mark.parametrize("value", ["80%", 0.8])
def test_a_share_is_of_something(value: Any) -> None:
    with pytest.raises(ArgumentError, match="fraction"):
        parse_bytes(value)


@given(st.integers(1, 10**17))
def test_bytes_are_formatted_to_three_digits(count: int) -> None:
    assert math.isclose(parse_bytes(format_bytes(count)), count, rel_tol=0.01)


def test_grids_of_plans_are_kept() -> None:
    x = spec((100, 100))
    plan = make_plan(elementwise(x.shape), [x], [x], SMALL, 20_000)
    assert plan.grid is plan.grid
    assert plan.grid == Grid(x.shape, plan.block)


def test_a_plan_with_a_single_slot_says_so() -> None:
    x = spec((64, 64))
    least = 2 * x.nbytes // 32
    tight = make_plan(elementwise(x.shape), [x], [x], SMALL, least + 8192, block=(2, 64))
    assert tight.depth > 1
    alone = make_plan(elementwise(x.shape), [x], [x], replace(SMALL, depths=(2, 1)), 1024, block=(1, 64))
    assert alone.depth == 1
    assert "single slot" in str(alone)
    assert "single slot" not in str(tight)


def test_files_that_lie_differently_are_both_moved_in_runs() -> None:
    shape = (1000, 300, 700)
    fortran, plain = spec(shape, order=(2, 1, 0)), spec(shape)
    plan = make_plan(elementwise(shape), [fortran], [plain], GPU, 100_000_000)
    assert plan.block[0] * 4 >= 4000
    assert plan.block[2] * 4 >= 2800
    tight = make_plan(elementwise(shape), [fortran], [plain], SMALL, 100_000)
    assert tight.memory.total <= 100_000


def test_a_small_result_in_memory_that_lies_differently_does_not_cut_what_is_read_into_short_runs() -> None:
    shape = (500, 500, 600)
    fortran = spec(shape, order=(2, 1, 0), storage=IN_MEMORY)
    op = replace(nest([shape]), outputs=(Output((Along(1), Along(2))),))
    machine = replace(GPU, staged=False, lanes=2, cache=1 << 19)
    inside = make_plan(op, [fortran], [spec(shape[1:], storage=IN_MEMORY)], machine, 100_000_000)
    assert inside.block[:2] == (500, 500)  # what follows in memory
    assert inside.block[2] < 600
    in_file = make_plan(op, [fortran], [spec(shape[1:])], machine, 100_000_000)
    assert in_file.block[2] == 600


def halo(shape: Shape, boundary: Boundary = "nearest") -> LoopNest:
    """A stencil of depth 1."""
    axes = tuple(range(len(shape)))
    around = Operand(axes, ((1, 1),) * len(shape), shape, (boundary,) * len(shape))
    return LoopNest(shape, (around,), (Output(tuple(map(Along, axes))),))


def test_blocks_with_a_halo_are_no_thin_slabs_where_memory_is_scarce() -> None:
    shape = (256, 2048, 2048)
    x = spec(shape, storage=IN_MEMORY)
    tight, slabs = (make_plan(halo(shape), [x], [x], GPU, 256_000_000, block=b) for b in (None, (1, 2048, 2048)))
    assert tight.block[1] < 2048
    assert tight.rereads <= 1.02
    assert tight.estimate.seconds < 0.9 * slabs.estimate.seconds
    ample = make_plan(halo(shape), [x], [x], GPU, 4_000_000_000)
    assert ample.block[1:] == (2048, 2048)


def test_only_pieces_of_short_or_many_rows_land() -> None:
    shape = (64, 512, 2048)
    x = spec(shape, storage=IN_MEMORY)
    plan = make_plan(halo(shape), [x], [x], GPU, 100_000_000)
    assert plan.ring_in is not None
    assert plan.ring_in.scratch == 0
    wrapped = make_plan(halo(shape, "periodic"), [x], [x], GPU, 100_000_000)
    assert wrapped.ring_in is not None
    assert wrapped.ring_in.scratch > 0  # for the single elements from the other end of each row
    for chunks, block in (((64, 64, 64), (64, 64, 768)), ((128, 16, 512), (64, 16, 2048))):
        chunked = make_plan(elementwise(shape), [spec(shape, chunks=chunks)], [x], GPU, 100_000_000, block=block)
        assert chunked.ring_in is not None
        assert chunked.ring_in.scratch > 0


@pytest.mark.parametrize("chunks", [(64, 64, 64), (128, 16, 512)])
def test_a_block_is_cut_so_that_several_threads_decode(chunks: tuple[int, ...]) -> None:
    shape = (64, 512, 2048)
    x = spec(shape, chunks=chunks)
    plan = make_plan(elementwise(shape), [x], [x], GPU, 200_000_000)
    assert plan.ring_in is not None
    assert plan.ring_in.threads >= 5
    assert len(plan.cuts_in[0].pieces(plan.grid.region((0, 0, 0)))) >= 5
    one = spec(shape, chunks=(64, 64, 2048))
    alone = make_plan(elementwise(shape), [one], [one], GPU, 200_000_000, block=(64, 64, 2048))
    assert alone.estimate.coding > 2 * plan.estimate.coding, "a thread decodes a chunk, and a block has one"


def test_a_landing_place_takes_whatever_lands() -> None:
    shape = (600, 260, 1024)
    around = Operand((0, 1), ((1, 1),) * 2, shape[:2], ("nearest",) * 2)
    nest = replace(halo(shape), operands=(*halo(shape).operands, around))
    specs = [spec(shape, storage=IN_MEMORY), spec(shape[:2], "u1")]
    plan = make_plan(nest, specs, specs[:1], GPU, 2_000_000_000, block=(300, 256, 1024))
    assert plan.ring_in is not None
    assert plan.ring_in.scratch > 0  # for the short rows of the second array
    for step in plan.steps():
        for part, place in step.parts(0, nest.operands[0]):
            found = plan.cuts_in[0].pieces(part)
            block = tuple(s.stop - s.start for s in step.sources[0])
            tables = tabled(found, placed(found, place, block, (0, 1, 2)), 4, landing=True)
            assert tables is not None
            assert tables.landing <= plan.ring_in.scratch


def test_results_of_one_size_have_places_of_that_size() -> None:
    shape = (256, 2048, 2048)
    x = spec(shape, storage=IN_MEMORY)
    plan = make_plan(elementwise(shape), [x], [x], GPU, 500_000_000)
    assert sum(plan.results) == plan.memory.outputs
    assert set(plan.results) == {rounded(math.prod(plan.block) * 4, GPU.page)}
    assert len(plan.results) == plan.depth


def test_a_plan_that_is_known_has_the_boundary_that_is_asked_for() -> None:
    def above(block: np.ndarray) -> np.ndarray:
        return np.copysign(1.0, block[:-2, 1:-1])

    x = np.ones((64, 64))
    found = [
        cf.map_overlap(
            above, x, depth=1, boundary=edge, trim=False, budget="1MB", device="cpu", dtype="f8", workspace=8
        )[0, 0]
        for edge in (0.0, -0.0, 0.0)
    ]
    assert found == [1, -1, 1]


def test_planes_that_are_folded_are_cut(tmp_path: Path) -> None:
    """A variance keeps more for each element of a plane than blocks of few planes have, and lanes merge it."""
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "f4", (64, 1024, 2048))
    device = NumpyDevice(machine=replace(NumpyDevice().machine, cache=12 << 20, lanes=2, depths=(4, 2, 1)))

    for fn in (cf.var, cf.max):
        tall = cf.explain(fn, x, axis=0, budget="128MB", device=device)
        assert isinstance(tall, Plan)
        assert tall.block[0] == 64, "no two blocks add to one element"
        assert tall.block[2] == 2048, "rows stay whole"
        assert tall.memory.total < 100_000_000
        for budget in (6_000_000, 12_000_000, 30_000_000, 60_000_000):
            least = cf.explain(fn, x, axis=0, budget=budget, device=device)
            assert least.memory.total <= budget


# -- Scans ---------------------------------------------------------------------------------------------------


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    st.integers(0, 2),
    st.integers(1, 4),
)
def test_rows_of_a_scan_take_turns(extents: Shape, block: Shape, axis: int, lanes: int) -> None:
    """Each lane has a row, whose blocks it computes in order; no lane waits for another one's row to end."""
    machine = replace(SMALL, staged=False, lanes=lanes)
    op, arrays = replace(elementwise(extents), scan=axis), (spec(extents),)
    order = (*(a for a in range(3) if a != axis), axis)
    plan = plan_of(PlanProblem(op, arrays, arrays, machine, 1 << 20, 0.0, 0, frozenset(), order), block, lanes)
    steps = list(plan.steps())
    assert plan.lanes == min(lanes, plan.rows)
    assert sorted(step.index for step in steps) == sorted(Grid(extents, block).walk(range(3)))
    rows: dict[Shape, list[Step]] = {}
    for step in steps:
        rows.setdefault((*step.index[:axis], *step.index[axis + 1 :]), []).append(step)
    for row in rows.values():
        assert [step.index[axis] for step in row] == list(range(plan.grid.counts[axis]))
        assert len({(step.lane, step.chain) for step in row}) == 1
    for number in range(len(steps) // plan.lanes // plan.grid.counts[axis]):  # rows that take turns
        together = steps[number * plan.lanes * plan.grid.counts[axis] :][: plan.lanes]
        assert sorted(step.lane for step in together) == list(range(plan.lanes))


def test_plans_are_kept_whatever_the_names_of_arrays() -> None:
    problem = elementwise((500, 300)), [spec((500, 300))], [spec((500, 300))], SMALL, 1 << 20
    first = make_plan(*problem)
    calls = _chosen.cache_info().misses
    other = replace(spec((500, 300)), name="another")
    second = make_plan(problem[0], [other], [other], SMALL, 1 << 20)
    assert _chosen.cache_info().misses == calls
    assert (second.block, second.depth) == (first.block, first.depth)
    assert [a.name for a in (*first.operands, *second.operands, *second.outputs)] == ["x", "another", "another"]


@pytest.mark.parametrize("machine", [GPU, replace(GPU, staged=False, lanes=2, depths=(4, 2, 1))])
def test_a_fold_that_keeps_much_has_blocks_that_are_long(machine: Machine) -> None:
    x, y = spec((20_000, 500)), spec((500, 3000))
    op = replace(nest([x.shape]), outputs=(Output((Along(1), 3000)),), state=(24.0,))
    plan = make_plan(op, [x], [y], machine, 60_000_000)
    assert plan.block[0] > 1000
    assert len(plan.grid) < 1000, "a block of all columns would have one row"


@pytest.mark.parametrize("machine", [GPU, replace(GPU, staged=False, lanes=2, depths=(4, 2, 1))])
@pytest.mark.parametrize("storage", [Storage(), IN_MEMORY])
@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_what_is_transposed_is_read_and_written_in_runs(machine: Machine, storage: Storage, axes: Any) -> None:
    x = replace(spec((808, 808, 808), storage=storage), order=axes)
    y = spec(x.shape, storage=storage)
    plan = make_plan(elementwise(x.shape), [x], [y], machine, 512_000_000)
    for array in (x, y):
        assert plan.block[array.order[-1]] == 808, "both have whole rows in each block"


def test_a_function_with_temporaries_leaves_room_where_that_costs_little() -> None:
    x = spec((808, 808, 808), storage=IN_MEMORY)
    for op, budget in itertools.product((halo(x.shape), elementwise(x.shape)), (500_000_000, 1_000_000_000)):
        plan = make_plan(op, [x], [x], GPU, budget, workspace=12.0)
        most = 0.95 if op.has_halo and budget == 500_000_000 else 0.9  # fewer blocks with halos are worth more
        assert 0.6 * budget < plan.memory.total <= most * budget


def test_what_a_fold_keeps_has_places_of_its_own() -> None:
    x, y = spec((808, 808, 808), storage=IN_MEMORY), spec((808, 808))
    op = replace(nest([x.shape]), outputs=(Output((Along(1), Along(2))),), state=(8.0,))
    plan = make_plan(op, [x], [y], GPU, 500_000_000, workspace=8.0)
    assert plan.results
    assert set(plan.results) == {rounded(808 * 808 * 8, GPU.page)}
    assert sum(plan.results) <= plan.memory.partials


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("shape", [(640,) * 3, (100_000, 10_000, 1000), (1 << 40,)])
def test_few_blocks_are_tried_however_large_arrays_are(
    shape: Shape, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    made = search.plan_of
    monkeypatch.setattr(search, "plan_of", lambda *given: tried.append(given[1:]) or made(*given))
    machine = replace(GPU, staged=staged, lanes=1 if staged else 2, depths=(3, 2, 1), cache=0 if staged else 12 << 20)
    x = spec(shape, chunks=(64,) * len(shape))
    make_plan(elementwise(shape), [x], [replace(x, chunks=None)], machine, 4_000_000_000 + staged, workspace=4.0)
    assert 10 < len(tried) < 130
    assert len(set(tried)) == len(tried), "each once"


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**12))
def test_the_largest_block_within_a_budget_is_nearly_found(most: int, each: int, base: int, budget: int) -> None:
    def at(target: int) -> Any:
        return SimpleNamespace(block=(target,), memory=SimpleNamespace(total=base + each * target))

    found = search._largest(at, most, budget)
    best = min(most, (budget - base) // each)
    if best < 1:
        assert found is None
    else:
        assert found.memory.total <= budget
        assert best - max(best // search.NEARLY, 1) <= found.block[0] <= best


@pytest.mark.parametrize(("budget", "most"), [("8MB", 12), ("60MB", 4), ("1GB", 2.5)])
def test_blocks_are_about_as_long_as_wide_where_slabs_would_be_mostly_halo(budget: str, most: float) -> None:
    """Functions compute the halos of all blocks: of slabs with a halo of 24 planes on both sides that is most."""
    x = np.broadcast_to(np.float32(1), (512, 512, 512))
    plan = cf.explain(
        cf.map_overlap, np.copy, x, depth=24, budget=budget, device=NumpyDevice(lanes=2), dtype="f4", workspace=8.0
    )
    assert plan.memory.total <= parse_bytes(budget)
    assert plan.op.volume(plan.block) <= most * math.prod(plan.block)

"""Expressions: what NumPy gives of the whole arrays, from as few reads as there can be."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import operator
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import CPU, Place, checked, everywhere, numpy_device, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow.cluster import partition
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.rates import cpu
from chunkflow.engine.observe.analysis import AnalyzedRun
from chunkflow.engine.options import Options
from chunkflow.errors import ArgumentError, ArgumentTypeError, ResultError
from chunkflow.graph import evaluate, fusion
from chunkflow.graph.evaluate import Evaluation
from chunkflow.graph.fusion import fused
from chunkflow.graph.nodes import OpNode
from chunkflow.stores import open_source
from chunkflow.testing import filled
from chunkflow.testing.arrays import CountingSource

SHAPE = (6, 5, 7)


class Counting:
    """An array that counts how often each of its elements is read."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.nbytes = 0

    def __getitem__(self, index: Any) -> np.ndarray:
        found: np.ndarray = self.array[index]
        self.nbytes += found.nbytes
        return found

    def reads(self, run: Callable[[], Any]) -> float:
        """Times that a run reads the whole array, what it tries on a corner left out."""
        self.nbytes = 0
        run()
        return self.nbytes / self.array.nbytes


def volumes(number: int, shape: tuple[int, ...] = SHAPE, dtype: str = "f8") -> list[np.ndarray]:
    rng = np.random.default_rng(number)
    return [(rng.integers(-8, 9, shape) / 4).astype(dtype) for _ in range(number)]


# -- Random expressions ----------------------------------------------------------------------------------------------

UNARY = [np.negative, np.abs, np.square, np.sign, lambda x: x + 1, lambda x: 2 - x, lambda x: x > 0]
BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    np.maximum,
    np.minimum,
    np.greater,
    lambda a, b: np.where(a > b, a, b),
]
SHAPED: list[Callable[[Any], Any]] = [
    lambda x: x[::-1],
    lambda x: x[1:, ...],
    lambda x: x.T,
    lambda x: x[None],
    lambda x: np.flip(x, -1),
    lambda x: np.roll(x, 2, 0),
    lambda x: np.expand_dims(x, -1),
    lambda x: x[..., ::2],
    lambda x: np.concatenate([x, x]),
    lambda x: x.reshape(-1),
    lambda x: np.maximum(x[1:], x[:-1]),
    lambda x: x[1:][:-1] + x[:-1][1:] + x[2:],
    lambda x: x[:, None][:, ::-1],
]
REDUCED: list[Callable[[Any], Any]] = [
    lambda x: x.sum(axis=0),
    lambda x: x.max(axis=-1),
    lambda x: x.mean(axis=0, keepdims=True),
    lambda x: np.count_nonzero(x, axis=-1),
    lambda x: x.min(),
    lambda x: np.cumsum(x, axis=0),
    lambda x: x[None][1:].sum(axis=0),
    lambda x: x[..., None][..., 1:].sum(axis=-1),
]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[np.ndarray], Callable[[list[Any]], list[Any]]]:
    """Sources, and what makes up to eight nodes of them."""
    sources = volumes(draw(st.integers(1, 3)), dtype=draw(st.sampled_from(["f8", "f4", "i4"])))
    picks = draw(
        st.lists(st.tuples(st.sampled_from("ubbsr"), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8)
    )

    def build(given: list[Any]) -> list[Any]:
        made = list(given)
        for kind, which, other in picks:
            x = made[-1 - which % len(made)]
            if kind == "u":
                x = UNARY[which % len(UNARY)](x) if x.dtype.kind != "b" else x + 0
            elif kind == "b":
                y = made[other % len(made)]
                try:
                    np.broadcast_shapes(x.shape, y.shape)
                except ValueError:
                    continue
                if "b" in (x.dtype.kind, y.dtype.kind):
                    x, y = x + 0, y + 0
                x = BINARY[other % len(BINARY)](x, y)
            elif x.ndim and 0 not in x.shape and x.size < 5000:
                x = (SHAPED if kind == "s" else REDUCED)[which % len(SHAPED if kind == "s" else REDUCED)](x)
                if 0 in x.shape:
                    continue
            made.append(x)
        return made[len(given) :]

    return sources, build


@settings(deadline=None)
@given(
    case=trees(), budget=st.sampled_from([20_000, 100_000, 10_000_000]), place=st.sampled_from([CPU]), data=st.data()
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_as_numpy(case: Any, budget: int, place: Place, data: st.DataObject) -> None:
    _as_numpy(case, budget, place, data)


@everywhere
@settings(deadline=None, max_examples=examples(1 / 4))
@given(case=trees(), data=st.data())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_as_numpy_everywhere(case: Any, data: st.DataObject, place: Place) -> None:
    _as_numpy(case, 200_000, place, data)


def _as_numpy(case: Any, budget: int, place: Place, data: st.DataObject) -> None:
    sources, build = case
    expected = build(sources)
    lazy = build([cf.open(x) for x in sources])
    if not expected:
        return
    asked = sorted(data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1)))
    for i in asked:
        assert (lazy[i].shape, lazy[i].dtype) == (expected[i].shape, expected[i].dtype)
    results = cf.compute([lazy[i] for i in asked], budget=place.budget(budget), device=place.device())
    for i, result in zip(asked, results, strict=True):
        wanted = np.asarray(expected[i])
        assert np.shape(result) == wanted.shape
        assert np.asarray(result).dtype == wanted.dtype
        # Sums of quarters are exact; means and what is made of them are rounded otherwise.
        np.testing.assert_allclose(result, wanted, rtol=1e-5 if wanted.dtype == "f4" else 1e-12, atol=1e-6)


# -- How often sources are read --------------------------------------------------------------------------------------


def test_three_results_from_one_read() -> None:
    arrays = volumes(3, (32, 64, 64), "f4")
    sources = [Counting(x) for x in arrays]
    u, v, w = map(cf.open, sources)
    energy = (u**2 + v**2 + w**2) / 2
    asked = (energy.mean(), energy.max(axis=(1, 2)), np.histogram(energy, bins=256, range=(0, 50)))
    for source in sources:
        source.nbytes = 0
    mean, peak, (counts, edges) = cf.compute(*asked, budget="1MB", device="cpu")
    for source in sources:
        assert 1 <= source.nbytes / source.array.nbytes < 1.15  # the trial reads a corner
    whole = (arrays[0] ** 2 + arrays[1] ** 2 + arrays[2] ** 2) / 2
    np.testing.assert_allclose(mean, whole.mean(), rtol=1e-6)
    np.testing.assert_array_equal(peak, whole.max(axis=(1, 2)))
    np.testing.assert_array_equal(counts, np.histogram(whole, 256, (0, 50))[0])
    np.testing.assert_array_equal(edges, np.histogram_bin_edges(whole, 256, (0, 50)))


def test_five_statistics_from_one_read() -> None:
    (array,) = volumes(1, (64, 64, 64))
    source = Counting(array)
    x = cf.open(source)
    asked = (x.mean(), x.var(), x.min(), x.max(), np.histogram(x, 10, (-3, 3))[0])
    assert 1 <= source.reads(lambda: cf.compute(*asked, budget="1MB", device="cpu")) < 1.15


def test_ten_steps_are_one_pass() -> None:
    (array,) = volumes(1, (64, 64, 64))
    source = Counting(array)
    x = y = cf.open(source)
    expected = array
    for i in range(10):
        y, expected = y * 2 - i, expected * 2 - i
    same(y.compute(device="cpu"), expected)
    assert 1 <= source.reads(lambda: y.compute(budget="1MB", device="cpu")) < 1.15
    plan = cf.explain(y, budget="1MB", device="cpu")
    assert len(plan) == 1
    assert (plan.bytes_in, plan.bytes_out) == (x.nbytes, x.nbytes)
    assert len({operand.name for operand in plan.plans[0].operands}) == 1


def test_bytes_on_the_link(tmp_path: Path) -> None:
    """Where there is a link, a chain of steps costs one upload and one download."""
    from support.devices import numpy_device

    (array,) = volumes(1, (64, 32, 32))
    x = y = cf.open(array)
    for i in range(10):
        y = y * 2 - i
    with cf.Profile() as profile:
        y.compute(budget="2MB", device=numpy_device("threaded", staged=True, piece=1 << 16))
    stages = {stage.name: stage.nbytes for stage in profile.report.stages}
    assert stages["upload"] == x.nbytes
    assert stages["download"] == x.nbytes


def test_what_occurs_twice_is_computed_once() -> None:
    calls = []

    def fn(block: np.ndarray) -> np.ndarray:
        calls.append(block.size)
        return np.sqrt(block)

    x = cf.open(np.ones((50, 50)))
    one, other = x.map(fn, dtype="f8"), x.map(fn, dtype="f8")
    assert one._node is other._node
    cf.compute(one + other * one, one.sum(), device="cpu")
    assert sum(calls) - calls[0] == 2500  # and the trial


def test_expressions_that_differ_are_not_taken_for_one() -> None:
    x = cf.open(np.arange(4, dtype="i4"))
    assert (x + 1)._node is (x + 1)._node
    for a, b in itertools.combinations([1, 1.0, True, np.int64(1), np.float32(1)], 2):
        assert (x + a)._node is not (x + b)._node
    same((x + True).compute(device="cpu"), np.arange(4, dtype="i4") + True)
    same((x + 1.0).compute(device="cpu"), np.arange(4, dtype="i4") + 1.0)
    same((x * -0.0).compute(device="cpu"), np.arange(4) * -0.0)
    same((x * 0.0).compute(device="cpu"), np.arange(4) * 0.0)


def test_nodes_are_not_kept() -> None:
    x = cf.open(np.ones(5))
    gc.collect()
    before = sum(isinstance(o, OpNode) for o in gc.get_objects())
    y = np.sqrt(x) + x.mean()
    y.compute(device="cpu")
    del y
    gc.collect()
    assert sum(isinstance(o, OpNode) for o in gc.get_objects()) == before


# -- Passes ----------------------------------------------------------------------------------------------------------


def test_what_needs_a_result_waits_for_it() -> None:
    (array,) = volumes(1)
    x = cf.open(array)
    centred = x - x.mean(axis=0)
    plan = cf.explain(centred.max(), x.min(), (centred**2).mean(axis=0), device="cpu")
    assert [sorted(names) for names, _ in plan.passes] == [["mean", "min"], ["max", "mean"]]
    assert "pass 2: max, mean" in str(plan)
    top, least, spread = cf.compute(centred.max(), x.min(), (centred**2).mean(axis=0), device="cpu")
    np.testing.assert_allclose(top, (array - array.mean(axis=0)).max())
    assert least == array.min()
    np.testing.assert_allclose(spread, array.var(axis=0))


def test_what_must_be_stored_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (array,) = volumes(1)
    lazy, expected = cf.open(array), array
    for _ in range(20):
        lazy, expected = lazy - lazy.mean(axis=0) + lazy.max(), expected - expected.mean(axis=0) + expected.max()
    made = []
    for module in (evaluate, fusion):
        monkeypatch.setattr(module, "fused", lambda *args: made.append(args) or fused(*args))
    np.testing.assert_allclose(lazy.compute(device="cpu"), expected)
    assert len(made) <= 3 * 41  # for each node to see what it needs, and to run it, some together
    made.clear()
    assert len(partition.passes_of([lazy._node])) == 41
    assert len(made) <= 2 * 41


def test_results_of_one_pass_follow_different_axes() -> None:
    (array,) = volumes(1, (12, 10, 8))
    x = cf.open(array)
    asked = [x + 1, x.sum(axis=0), x.sum(axis=1), x.sum(axis=2), x.sum(axis=(0, 2)), x.sum(), x.argmax(axis=1)]
    expected = [array + 1, *(array.sum(axis=a) for a in (0, 1, 2, (0, 2))), array.sum(), array.argmax(axis=1)]
    for budget in (40_000, 100_000, 1_000_000):
        plan = cf.explain(asked, budget=budget, device="cpu")
        for result, wanted in zip(cf.compute(asked, budget=budget, device="cpu"), expected, strict=True):
            np.testing.assert_allclose(result, wanted, atol=1e-12)
        assert all(p.memory.total <= budget for p in plan.plans)
    assert len(cf.explain(asked, budget=1_000_000, device="cpu")) == 1


@checked
def test_many_partial_results_at_once(place: Place) -> None:
    """Walked in any order, blocks of one result are begun before those of another have ended."""
    (array,) = volumes(1, (9, 10, 11))
    x = cf.open(array)
    asked = [x.sum(axis=0), x.sum(axis=1), x.sum(axis=2), x.max(axis=(0, 1)), np.abs(x)]
    expected = [array.sum(axis=0), array.sum(axis=1), array.sum(axis=2), array.max(axis=(0, 1)), np.abs(array)]
    device = place.device()
    results = cf.compute(asked, budget=30_000, device=device)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, atol=1e-12)


def test_too_much_for_one_pass_takes_several() -> None:
    (array,) = volumes(1, (16, 64, 64))
    x = cf.open(array)
    asked = [x.sum(axis=0), x.max(axis=0), x.min(axis=0), x.var(axis=0)]
    ample, tight = (cf.explain(asked, budget=b, device="cpu") for b in ("10MB", "170kB"))
    assert len(ample) == 1
    assert len(tight) > 1 or tight.plans[0].grid.counts[1] > 1
    for budget in ("170kB", "10MB"):
        total, most, least, spread = cf.compute(asked, budget=budget, device="cpu")
        np.testing.assert_array_equal(total, array.sum(axis=0))
        np.testing.assert_array_equal(most, array.max(axis=0))
        np.testing.assert_array_equal(least, array.min(axis=0))
        np.testing.assert_allclose(spread, array.var(axis=0))


@pytest.mark.parametrize("dtype", [None, "f4"])
@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_a_reduction_by_functions_of_ones_own_is_an_expression(axis: Any, dtype: Any) -> None:
    (array,) = volumes(1)
    found = cf.reduction(cf.open(array), np.max, np.max, axis=axis, dtype=dtype)
    wanted = np.asarray(array.max(axis=axis), dtype)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.compute(device="cpu"), wanted)
    np.testing.assert_array_equal(found.to_dask(partition="1kB", device="cpu").compute(scheduler="sync"), wanted)


def test_several_results_that_are_combined_are_announced() -> None:
    (array,) = volumes(1, (20, 30))

    def both(block: Any) -> Any:
        return block.max(axis=0), -block.min(axis=0)

    def made(**options: Any) -> Any:
        return cf.blockwise(both, "j", cf.open(array), "ij", combine=np.maximum, **options)

    for found, wanted in zip(cf.compute(made(dtype=("f8", "f4")), device="cpu"), both(array), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    for options, why in (({}, "dtype= must say so"), ({"dtype": ("f8",) * 3}, "expected 3")):
        with pytest.raises(ResultError, match=why):
            cf.compute(made(**options), device="cpu")


WAITS = 0.03

STORED: dict[str, Any] = {"storing": 0.0, "created": 0, "crowd": 1.0}
"""Of runs whose copies to new memory are not what is looked at."""


def waited(a: Any, *axes: Any, **options: Any) -> Any:
    """A function that takes far longer than its bytes."""
    time.sleep(WAITS)
    return np.add.reduce(a, *axes, **options) if options else a + 1


@pytest.mark.parametrize("asked", [(waited,), (cf.reduction, waited, np.sum)], ids=["map", "reduction"])
def test_what_a_function_takes_is_expected(asked: tuple[Any, ...]) -> None:
    """Plans know functions by the bytes that they touch; a few calls show what else they do with them."""
    (array,) = volumes(1, (32, 32, 32))
    (run,) = cf.explain(asked[0], array, *asked[1:], analyze=True, device="cpu").runs
    assert run.plan.estimate.seconds < WAITS
    assert run.predicted >= WAITS
    assert run.bound_by == "compute"
    plan = cf.explain(asked[0], array, *asked[1:], device="cpu")
    assert plan.seconds >= WAITS > plan.estimate.seconds
    assert f"model   {plan.seconds:.3g} s" in str(plan)
    small = cf.explain(asked[0], array, *asked[1:], budget="1MB", device="cpu")
    assert small.seconds >= WAITS > small.estimate.seconds


@pytest.mark.parametrize(
    "work",
    [
        lambda x: (cf.cumsum, x),
        lambda x: (cf.matmul, x, x.T.copy()),
        lambda x: (cf.quantile, x, 0.3),
        lambda x: (cf.label_statistics, x, (x * 7).astype("i4")),
        lambda x: (cf.fft.fftn, x),
        lambda x: (cf.open(x).mean(), cf.open(x).max()),
    ],
)
def test_kernels_of_all_kinds_are_tried(work: Callable[[np.ndarray], tuple[Any, ...]]) -> None:
    x = np.random.default_rng(0).random((60, 40), "f4")
    analysis = cf.explain(*work(x), analyze=True, device="cpu")
    assert all(run.computing for run in analysis.runs)


def test_blocks_larger_than_the_array_are_tried_too() -> None:
    x = np.ones((60, 40), "f4")
    (run,) = cf.explain(np.negative, x, chunks=(1000, 7), analyze=True, device="cpu").runs
    assert run.computing


def test_of_a_file_little_is_read_before_the_run() -> None:
    """Or all of it might be in memory by then, and the run take less than it would have."""
    array = np.random.default_rng(0).random((256, 128, 128), "f4")
    device = NumpyDevice(machine=replace(cpu(2), cache=1 << 20, piece=1 << 20))
    planned, analyzed = CountingSource(array), CountingSource(array)
    cf.map(np.negative, planned, device=device)
    (run,) = cf.explain(np.negative, analyzed, analyze=True, device=device).runs
    assert run.computing
    assert run.plan.tile != run.plan.block, "this is about a few tiles of a block"
    tile = math.prod(run.plan.tile) * array.itemsize
    assert 0 < analyzed.bytes_read - planned.bytes_read <= run.plan.lanes * tile


def test_chunks_are_tried_too(tmp_path: Path) -> None:
    """Plans take all codecs for ordinary ones; a chunk of each source shows what its own takes."""
    array = np.round(np.random.default_rng(0).random((64, 64, 64), "f4") * 8)
    runs = []
    for name, codec in (("raw", None), ("zstd", zarr.codecs.ZstdCodec())):
        stored = zarr.create_array(tmp_path / name, data=array, chunks=(32, 32, 32), compressors=codec)
        (run,) = cf.explain(cf.sum, stored, analyze=True, device="cpu").runs
        runs.append(replace(run, computing=0.0, crowd=1.0))  # what trying the function took is the machine's affair
    raw, run = runs
    assert raw.decoding is None
    assert run.decoding
    machine, lanes, stages = run.plan.machine, run.plan.lanes, run.plan.estimate.stages
    byte = 1 / machine.read + 1 / machine.decode
    as_planned, slower = replace(run, decoding=byte), replace(run, decoding=2 * byte - 1 / machine.read)
    reading, finding = run.plan.traffic.read / machine.read, run.plan.estimate.finding
    assert slower.predicted - as_planned.predicted == pytest.approx((stages["read"] - reading - finding) / lanes)
    untried = replace(run, decoding=None).predicted
    assert untried - finding / lanes == pytest.approx(as_planned.predicted), "what was tried had been found"
    assert slower.bound_by == "read"


def test_memory_and_halos_are_expected_to_take_time_on_the_cpu() -> None:
    (array,) = volumes(1, (64, 32, 32))

    def run_with(boundary: str = "nearest", **rates: float) -> AnalyzedRun:
        device = NumpyDevice(machine=replace(cpu(2), **rates))
        options = {"depth": 1, "boundary": boundary, "chunks": (4, -1, -1), "device": device, "analyze": True}
        run: AnalyzedRun = cf.explain(cf.map_overlap, np.negative, array, **options).runs[0]
        return run

    def seconds(run: AnalyzedRun) -> float:
        """What was planned, but for the kernel, which takes a second."""
        return run.plan.estimate.seconds + (1 - run.plan.estimate.stages["compute"]) / 2

    usual, slow = (replace(run_with(**rates), computing=1.0, framing=2.0, **STORED) for rates in ({}, {"fresh": 1e6}))
    memory = usual.plan.memory
    assert memory.inputs >= 2 * 6 * 34 * 34 * array.itemsize
    expected = (memory.inputs + memory.partials) / 2e6
    assert slow.predicted - usual.predicted == pytest.approx(expected)
    # Both lanes take two seconds for blocks instead of those in which all is read.
    more = 2 - array.nbytes / usual.plan.machine.read
    assert usual.predicted - seconds(usual) == pytest.approx(more / 2)
    spilling = replace(run_with(cache=16 << 10), computing=1.0, framing=2.0, **STORED)
    assert spilling.plan.block == usual.plan.block
    assert spilling.predicted - seconds(spilling) == pytest.approx(more / 2), "that was seen when blocks were made"
    views = run_with("none", fresh=1e6)
    assert views.plan.memory.inputs == views.framing == 0 < run_with().framing
    views = replace(views, computing=1.0, **STORED)
    assert views.predicted == pytest.approx(seconds(views)), "these are the array's own elements"


def test_blocks_that_are_read_and_leave_the_cache_take_longer(tmp_path: Path) -> None:
    (array,) = volumes(1, (64, 32, 32))
    np.save(tmp_path / "x.npy", array)

    def expected(**rates: float) -> float:
        device = NumpyDevice(machine=replace(cpu(2), **rates))
        run = cf.explain(np.negative, str(tmp_path / "x.npy"), chunks=(4, -1, -1), device=device, analyze=True).runs[0]
        return (
            replace(run, computing=1.0, **STORED).predicted
            - run.plan.estimate.seconds
            + run.plan.estimate.stages["compute"] / 2
        )

    machine = cpu(2)
    more = array.nbytes / machine.read * (1 / machine.spill - 1) / 2
    assert expected(cache=8 << 10) - expected(cache=1 << 20) == pytest.approx(more)


def test_what_only_a_run_can_show_is_no_error_before_it() -> None:
    (array,) = volumes(1, (32, 32, 32))
    calls = iter(range(1))

    def fails(a: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("not again")
        return a

    with pytest.raises(RuntimeError, match="not again"):
        cf.explain(fails, array, analyze=True, device="cpu")


def test_on_a_device_of_its_own_plans_are_as_good() -> None:
    (array,) = volumes(1, (32, 32, 32))
    device = numpy_device("threaded", staged=True)
    (run,) = cf.explain(np.negative, array, analyze=True, device=device).runs
    assert run.computing is None
    assert run.predicted == run.plan.estimate.seconds
    halo = cf.explain(cf.map_overlap, np.negative, array, depth=1, analyze=True, device=device).runs[0]
    assert halo.predicted > halo.plan.estimate.seconds, "these take more of the host"


def test_an_operation_of_an_expression_is_run_to_be_analyzed() -> None:
    (array,) = volumes(1, (32, 32, 32))
    analysis = cf.explain(cf.sum, cf.open(array), analyze=True)
    assert [run.plan.bytes_in for run in analysis.runs] == [array.nbytes]


def test_unrelated_arrays_take_passes_of_their_own() -> None:
    one, other = (cf.open(x) for x in volumes(2))
    plan = cf.explain(one.sum(), other.sum(), device="cpu")
    assert len(plan) == 2


def test_what_was_predicted_is_shown_beside_what_happened(tmp_path: Path) -> None:
    (array,) = volumes(1, (32, 32, 32))
    x = cf.open(array)
    analysis = cf.explain((x - x.mean()).max(), analyze=True, device="cpu")
    assert len(analysis.runs) == analysis.report.runs == 2
    for run in analysis.runs:
        assert run.seconds > 0
        assert run.ratio == pytest.approx(run.seconds / run.predicted)
        assert f"predicted {run.predicted:.3g} s" in str(analysis)
    out = tmp_path / "y.npy"
    analysis = cf.explain(np.sqrt, np.abs(array), out=out, analyze=True, device="cpu")
    assert [run.plan.bytes_out for run in analysis.runs] == [array.nbytes]
    np.testing.assert_array_equal(np.load(out), np.sqrt(np.abs(array)))


def test_results_are_the_same_to_the_bit_each_time() -> None:
    x = cf.open(np.random.default_rng(3).random((40, 50, 60), "f4"))
    asked = ((x**2).mean(), x.var(axis=0), (x * 3).sum(axis=(0, 1)))
    first = cf.compute(*asked, budget="500kB", device="cpu")
    for _ in range(5):
        for a, b in zip(first, cf.compute(*asked, budget="500kB", device="cpu"), strict=True):
            same(a, b)


@on_cpu_and_gpu
def test_measured_peak_is_within_the_budget(place: Place) -> None:
    arrays = volumes(3, (64, 64, 64), "f4")
    u, v, w = map(cf.open, arrays)
    energy = (u**2 + v**2 + w**2) / 2
    smooth = energy.map_overlap(_laplacian, depth=1, boundary="nearest")
    for limit in (700_000, 3_000_000, 20_000_000):
        with cf.Budget(place.budget(limit)) as budget:
            cf.compute(energy.mean(), energy.max(axis=0), smooth.sum(), smooth, device=place.device())
            assert 0 < budget.peak <= budget.limit


# -- Stencils --------------------------------------------------------------------------------------------------------


def _laplacian(block: Any) -> Any:
    found = -2.0 * block.ndim * block
    for axis in range(block.ndim):
        for shift in (1, -1):
            found = found + np.roll(block, shift, axis)
    return found


BOUNDARIES = ["none", "nearest", "reflect", "mirror", "periodic", 2.5]


@everywhere
@settings(deadline=None, max_examples=examples(1 / 4))
@given(
    first=st.sampled_from(BOUNDARIES),
    second=st.sampled_from(BOUNDARIES),
    depth=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    budget=st.sampled_from([60_000, 1_000_000]),
)
def test_stencils_of_stencils(first: Any, second: Any, depth: Any, budget: int, place: Place) -> None:
    """One after another, with what feeds them and what they feed, as if each result were stored."""
    (array,) = volumes(1, (11, 9))
    x = cf.open(array)
    steps: list[dict[str, Any]] = [
        {"depth": {0: (1, 1), 1: depth}, "boundary": first},
        {"depth": {0: (depth[1] + 1, depth[0] + 1), 1: (1, 2)}, "boundary": {0: first, 1: second}},
    ]
    one, whole = x * 2 + 1, array * 2 + 1
    asked, expected = [one.sum(axis=0)], [whole.sum(axis=0)]
    for step in steps:
        one = one.map_overlap(_shifted, **step)
        whole = cf.map_overlap(_shifted, whole, device="cpu", **step)
        asked += [one, (one + x).max(axis=1)]
        expected += [whole, (whole + array).max(axis=1)]
    results = cf.compute(asked, budget=place.budget(budget), device=place.device())
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def _shifted(block: Any) -> Any:
    """Of the block's own shape, and right where the halo reaches: what is trimmed may be anything."""
    found = block.copy()
    found[:-1] += block[1:] * 0.5
    found[1:] += block[:-1] * 0.25
    return found


def test_a_stencil_and_what_it_sees_are_one_read() -> None:
    (array,) = volumes(1, (128, 64, 64))
    source = Counting(array)
    x = cf.open(source)
    smooth = (x**2).map_overlap(_laplacian, depth=1, boundary="reflect")
    asked = (smooth.max(), smooth.sum(axis=0), x.mean(), (smooth - x).min())
    for lazy in asked:
        assert lazy.dtype == np.float64
    assert 1 <= source.reads(lambda: cf.compute(*asked, budget="20MB", device="cpu")) < 1.15


def test_edges_are_made_up_of_what_is_computed_and_not_of_the_source() -> None:
    """A planted mistake: padding the source gives other edges wherever fn(constant) is not the constant."""
    (array,) = volumes(1, (8, 9))
    x = cf.open(array)
    right = cf.map_overlap(_shifted, array + 1, depth=1, boundary=5.0, device="cpu")
    wrong = cf.map_overlap(lambda b: _shifted(b + 1), array, depth=1, boundary=5.0, device="cpu")
    got = (x + 1).map_overlap(_shifted, depth=1, boundary=5.0).compute(device="cpu")
    same(got, right)
    assert not np.array_equal(right, wrong)


# -- Sources, sinks, slices ------------------------------------------------------------------------------------------


def test_every_source_and_sink(tmp_path: Path) -> None:
    (array,) = volumes(1, (20, 30, 16), "f4")
    np.save(tmp_path / "x.npy", array)
    zarr.create_array(str(tmp_path / "x.zarr"), data=array, chunks=(7, 8, 16))
    for source in (array, tmp_path / "x.npy", str(tmp_path / "x.zarr"), zarr.open_array(str(tmp_path / "x.zarr"))):
        y = cf.open(source) * 2
        zarr_out = y.to_zarr(tmp_path / "y.zarr", chunks=(4, 30, -1), overwrite=True, device="cpu")
        assert zarr_out.chunks == (4, 30, 16)
        np.testing.assert_array_equal(zarr_out[...], array * 2)
        np.testing.assert_array_equal(y.to_npy(tmp_path / "y.npy", overwrite=True, device="cpu"), array * 2)
        np.testing.assert_array_equal(np.asarray(y), array * 2)
        both = np.empty(array.shape, "f4"), np.empty(array.shape[1:], "f4")
        cf.store([y, y.max(axis=0)], list(both), device="cpu")
        np.testing.assert_array_equal(both[0], array * 2)
        np.testing.assert_array_equal(both[1], array.max(axis=0) * 2)


INDICES: list[Any] = [
    3, -1, slice(2, 5), slice(None, None, -1), slice(None, None, -3), slice(8, 2, -2), slice(4, 4), ..., None,
    (slice(1, None), ..., 2), (0, 1, 2), (None, slice(None, None, 2), None, -2), (..., slice(-3, None)),
    (slice(-100, 100),),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("kind", ["array", "npy", "zarr"])
def test_slices(index: Any, kind: str, tmp_path: Path) -> None:
    (array,) = volumes(1, (10, 8, 6))
    source: Any = array
    if kind == "npy":
        source = tmp_path / "x.npy"
        np.save(source, array)
    elif kind == "zarr":
        source = zarr.create_array(tmp_path / "x.zarr", shape=array.shape, chunks=(4, 3, 5), dtype="f8")
        source[...] = array
    x = cf.open(source)
    for lazy, wanted in (
        (x[index], array[index]),
        ((x + 1)[index], (array + 1)[index]),
        (x.cumsum(0)[index], array.cumsum(0)[index]),
    ):
        assert lazy.shape == np.shape(wanted)
        same(lazy.compute(device="cpu"), wanted)
    same(x[index][..., None].compute(device="cpu"), array[index][..., None])


def test_a_slice_reads_no_more_than_it_needs() -> None:
    (array,) = volumes(1, (100, 20, 20))
    source = Counting(array)
    y = (np.sqrt(np.abs(cf.open(source))) + 1)[10:20]
    assert source.reads(lambda: y.compute(device="cpu")) < 0.25


def test_what_is_stored_in_between_goes_to_a_file_when_it_is_large(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("chunkflow.graph.evaluate.room", lambda options: 0)
    (array,) = volumes(1)
    x = cf.open(array)
    y = x.cumsum(axis=0)
    np.testing.assert_allclose(
        (y - y.mean(axis=0)).max().compute(device="cpu"), (array.cumsum(0) - array.cumsum(0).mean(0)).max()
    )
    with pytest.raises(ZeroDivisionError):
        y.map(_fails, dtype="f8").sum().compute(device="cpu")
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def _fails(block: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError


# -- What it is ------------------------------------------------------------------------------------------------------


def test_nothing_is_read_before_it_is_asked_for() -> None:
    source = Counting(volumes(1)[0])
    x = cf.open(source)
    y = np.sqrt(np.abs(x.T[::2] * 2 + 1)).sum(axis=0, keepdims=True) - x.mean()
    z = np.where(y > 0, y, np.quantile(x, [0.5, 0.7])[0])
    assert (z.shape, z.dtype, z.ndim, z.size, z.nbytes, len(z)) == ((1, 5, 6), np.dtype("f8"), 3, 30, 240, 1)
    assert "where" in repr(z)
    assert str((1, 5, 6)) in repr(z)
    assert source.nbytes == 0


def test_the_dtype_of_a_function_is_tried_when_it_is_asked_for() -> None:
    source = Counting(volumes(1)[0])
    y = cf.open(source).map(lambda b: b.astype("f4"))
    assert y.shape == SHAPE
    assert "float" not in repr(y)
    assert source.nbytes == 0
    assert y.dtype == np.float32
    assert "float32" in repr(y)


def test_several_results_of_a_function() -> None:
    (array,) = volumes(1)
    whole, part = np.divmod(cf.open(array), 0.75)
    one, other = cf.open(array).map(lambda b: (b + 1, b > 0), dtype=("f8", "?"))
    got = cf.compute(whole, part, one, other.sum(), device="cpu")
    for a, b in zip(got, (*np.divmod(array, 0.75), array + 1, (array > 0).sum()), strict=True):
        same(a, b)
    with pytest.raises(ResultError, match="tuple"):
        cf.open(array).map(lambda b: b, dtype=("f8", "f8"))[0].compute(device="cpu")
    with pytest.raises(ResultError, match="dtype="):
        _ = cf.open(array).map(lambda b: (b, b)).dtype
    with pytest.raises(ResultError, match="expected 3"):
        cf.open(array).map(lambda b: (b, b), dtype=("f8", "f8", "f8"))[0].compute(device="cpu")
    numbers = itertools.chain([3], itertools.repeat(2))  # the trial's is no exception
    with pytest.raises(ResultError, match="tuple of 2 arrays; expected 3"):
        (cf.open(array).map(lambda b: (b,) * next(numbers), dtype=("f8",) * 3)[2] + 1).compute(device="cpu")


def test_deep_expressions() -> None:
    x = y = cf.open(np.arange(5.0))
    for _ in range(3000):
        y = y + 1
    same(y.compute(device="cpu"), np.arange(5.0) + 3000)
    del x


def test_structures_are_kept() -> None:
    x = cf.open(np.arange(4.0))
    got = cf.compute({"a": x.sum(), "b": [x.max(), 3]}, (x.min(), "text"), device="cpu")
    assert got == ({"a": 6.0, "b": [3.0, 3]}, (0.0, "text"))
    assert type(got[0]["a"]) is np.float64
    assert cf.compute(5) == 5


def test_arrays_of_other_kinds_join_in(tmp_path: Path) -> None:
    (a, b) = volumes(2)
    z = zarr.create_array(tmp_path / "z.zarr", shape=b.shape, chunks=(3, 3, 3), dtype="f8")
    z[...] = b
    x = cf.open(a)
    for other in (b, np.ma.getdata(b), b[0], b[0].tolist(), np.float32(2), np.array(2.0), 3):
        same((x + other).compute(device="cpu"), a + np.asarray(other) if isinstance(other, list) else a + other)
        if not isinstance(other, list):
            same((other - x).compute(device="cpu"), other - a)
    same(np.add(x, z).compute(device="cpu"), a + b)
    same(cf.map(np.subtract, z, x).compute(device="cpu"), b - a)
    x += 1
    same(x.compute(device="cpu"), a + 1)


# -- Refusals --------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: x[True], "adds an axis"),
    (lambda x: np.linalg.eig(x), "apply_gufunc"),
    (lambda x: np.add(x, 1, out=np.empty(SHAPE)), "store"),
    (lambda x: np.add(x, 1, where=np.ones(SHAPE, bool)), "np.where"),
    (lambda x: np.arctan2.reduce(x), "np.add"),
    (lambda x: np.add.reduceat(x, [0, 1]), "not supported"),
    (lambda x: np.histogram(x, "stone"), "every number of bins"),
    (lambda x: bool(x), r"any\(\), all\(\)"),
    (lambda x: float(x[:0]), "0 elements"),
    (lambda x: list(range(x.sum())), "no integers"),
    (lambda x: cf.copy(x + 1, "y.zarr"), "to_zarr"),
    (lambda x: cf.rechunk(x + 1, (2, 2, 2), "y.zarr"), "to_zarr"),
    (lambda x: x.__setitem__(0, 1), "chunkflow.put"),
    (lambda x: x.reshape(5, 5), "fit"),
    (lambda x: np.reshape(x, -1, order="K"), "order='K'"),
    (lambda x: np.squeeze(x, 0), "length 1"),
    (lambda x: x.transpose(0, 0, 1), "twice"),
    (lambda x: x + np.ones(4), "broadcast"),
    (lambda x: x.sum(axis=3), "out of bounds"),
    (lambda x: x.astype("i4", casting="safe"), "according to the rule"),
    (lambda x: cf.map(np.sqrt, x + 1, out="y.zarr"), "to_zarr"),
    (lambda x: x.map(np.add, other=x.max()), "map: other is an expression.*by position"),
    (lambda x: x.map_overlap(np.add, depth=1, other=[x.max()]), "map_overlap: other is an expression"),
    (lambda x: cf.blockwise(np.add, "ijk", x, "ijk", other=x.max()), "blockwise: other is an expression"),
    (lambda x: cf.blockwise(np.add, "ijk", x, "ijk", x.max(), None), "blockwise: argument 1 is an expression"),
    (lambda x: cf.histogram(x, "fd", weights=x), "know of no weights"),
    (lambda x: cf.store(x, np.zeros(SHAPE, "i4")), r"float64.*cannot hold.*\.astype\('int32'\)"),
    (lambda x: x.astype("g").to_zarr("y.zarr"), r"zarr cannot store.*\.astype\('float64'\)"),
    (lambda x: cf.sum(x, budget="1GB"), "budget"),
    (lambda x: x.to_npy("y.zarr"), "npy"),
    (lambda x: cf.store(x, ["a.npy", "b.npy"]), "out"),
    (lambda x: cf.store([x], []), "one output for each"),
    (lambda x: cf.store([x, x], ["a.npy", "b.npy"]), "twice"),
    (lambda x: cf.store(np.ones(3), "a.npy"), "open"),
    (lambda x: cf.explain(x, progress=True), "explain"),
    (lambda x: cf.open("nothing.npy"), "nothing.npy"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_refusals(call: Callable[[Any], Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = Counting(volumes(1)[0])
    with pytest.raises((cf.ChunkflowError, TypeError), match=says):
        call(cf.open(source))
    assert source.nbytes == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("index", [6, -7, (0, 0, 0, 0), (..., ...), (0, 5)], ids=str)
def test_places_that_there_are_not(index: Any) -> None:
    with pytest.raises(IndexError):
        cf.open(volumes(1)[0])[index]


def test_a_function_of_the_wrong_shape_inside_an_expression() -> None:
    x = cf.open(volumes(1)[0])
    with pytest.raises(ResultError, match="shape"):
        (x.map(lambda b: b[:1], dtype="f8") + 1).compute(device="cpu")


def test_options_of_an_evaluation_are_checked() -> None:
    x = cf.open(volumes(1)[0])
    with pytest.raises(ArgumentError, match="-1"):
        x.sum().compute(budget=-1)
    with pytest.raises(cf.errors.DeviceError):
        x.sum().compute(device="none such")
    assert Evaluation(Options()).stored == {}


def test_what_has_no_shape_before_it_has_run_runs_at_once() -> None:
    (array,) = volumes(1)
    x = cf.open(array)
    same(cf.unique((x * 4).astype("i4") + 1, device="cpu"), np.unique((array * 4).astype("i4") + 1))
    labels = cf.open((array > 0).astype("i4"))
    stats = cf.label_statistics(x * 2, labels + 1, ["sum", "count"], device="cpu")
    np.testing.assert_allclose(stats["sum"], [(array * 2)[array <= 0].sum(), (array * 2)[array > 0].sum()])


def test_iterated_stencils_are_expressions_too() -> None:
    (array,) = volumes(1)
    x = cf.open(array)
    y = (x + 1).map_overlap(_shifted, depth=1, boundary="nearest", iterations=4).max(axis=0)
    expected = array + 1
    for _ in range(4):
        expected = cf.map_overlap(_shifted, expected, depth=1, boundary="nearest", device="cpu")
    same(y.compute(device="cpu"), expected.max(axis=0))


# -- What a hostile reader found -------------------------------------------------------------------------------------


def test_an_output_in_place_of_what_a_later_pass_reads_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "x.npy")
    for later in (lambda x: x - x.mean(), lambda x: x.cumsum(0)):
        array = np.arange(8.0)
        x = cf.open(array)
        with pytest.raises(ArgumentError, match="later pass"):
            cf.store([x * 2, later(x)], [array, np.empty(8)], device="cpu")
        np.save(path, np.arange(8.0))
        x = cf.open(path)
        with pytest.raises(ArgumentError, match="later pass"):
            cf.store([x * 2, later(x)], [path, np.empty(8)], device="cpu", overwrite=True)
        same(np.load(path), np.arange(8.0))
    x = cf.open(array)
    cf.store(x * 2, array, device="cpu")  # in place, in one pass
    same(array, np.arange(8.0) * 2)


def test_an_output_in_the_way_of_its_own_pass_is_refused_before_an_earlier_one_writes() -> None:
    x = cf.open(array := np.arange(64.0).reshape(8, 8))
    for own in [x[::-1] + 1, x.T, x @ x, x.map_overlap(_shifted, depth=1, iterations=3)]:
        with pytest.raises(ArgumentError, match="overlaps the input"):
            cf.store([x * 2, own], [out := np.zeros((8, 8)), array], device="cpu")
        assert not out.any()
    same(array, np.arange(64.0).reshape(8, 8))
    cf.store([x.cumsum(0), x + 1], [out, array], device="cpu")  # in place, each in one pass
    same(array, np.arange(1.0, 65.0).reshape(8, 8))
    stepped = (x - x.mean()).map_overlap(_shifted, depth=1, iterations=3)  # of what is stored before
    want = stepped.compute()
    cf.store([x * 2, stepped], [out, array], device="cpu")
    same(array, want)


def test_an_output_in_the_way_of_a_later_part_is_refused_before_an_earlier_pass_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two results of one read are parts where they do not fit the budget together."""
    x, y = cf.open(array := np.arange(64.0).reshape(8, 8)), cf.open(np.ones(5))
    wanted, outs = [y + 1, x * 2, x + 1], [np.zeros(5), array, np.zeros((8, 8))]
    monkeypatch.setattr("chunkflow.graph.evaluate._is_busy", lambda plan: True)
    monkeypatch.setattr(Evaluation, "_parts", lambda self, group, wanted: [[node] for node in group])
    with pytest.raises(ArgumentError, match="later pass"):
        cf.store(wanted, outs, device="cpu")
    assert not outs[0].any()
    cf.store([y + 1, x + 1, x * 2], [outs[0], outs[2], array], device="cpu")
    same(outs[2], np.arange(1.0, 65.0).reshape(8, 8))
    same(array, 2 * np.arange(64.0).reshape(8, 8))


def test_an_output_given_twice_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    x, y = (cf.open(v) for v in volumes(2))
    out, path = np.zeros((5, 7)), tmp_path / "a.npy"
    for places in ([out, out], [path, path]):
        with pytest.raises(ArgumentError, match="overlap"):
            cf.store([x.sum(0), y.max(0)], places, device="cpu", overwrite=True)
    assert not out.any()
    assert list(tmp_path.iterdir()) == []


def test_the_advice_on_an_expression_given_twice_is_good(tmp_path: Path) -> None:
    (array,) = volumes(1)
    x, memory = cf.open(array), np.empty(SHAPE)
    outs = [tmp_path / "a.npy", str(tmp_path / "b.zarr"), memory]
    with pytest.raises(
        ArgumentError, match=r"arrays\[1\] and arrays\[2\].*outs\[1\] alone.*chunkflow\.copy\(stored, outs\[2"
    ):
        cf.store([x * 2, x + 1, x + 1], outs, device="cpu")
    _, stored = cf.store([x * 2, x + 1], outs[:2], device="cpu")
    cf.copy(stored, outs[2], device="cpu")
    same(memory, array + 1)


def test_outputs_are_checked_before_the_first_pass(tmp_path: Path) -> None:
    np.save(tmp_path / "there.npy", np.zeros(3))
    source = Counting(volumes(1)[0])
    centred = cf.open(source).cumsum(0)
    centred = centred - centred.mean()
    for out, error in (
        (tmp_path / "there.npy", FileExistsError),
        (np.empty(3), ValueError),
        (np.empty(SHAPE, "i4"), TypeError),
    ):
        with pytest.raises(error):
            cf.store(centred, out, device="cpu")
    assert source.nbytes == 0


def test_functions_get_what_they_must_not_change_read_only() -> None:
    x = cf.open(np.arange(24.0).reshape(4, 6))
    y = x + 1
    for fn in (lambda b: np.multiply(b, 2, out=b), lambda b: np.nan_to_num(b, copy=False)):
        with pytest.raises(ValueError, match="read-only"):
            cf.compute(y.map(fn, dtype="f8"), y.sum(), device="cpu")
    kept = np.empty((4, 6))

    def buffered(block: np.ndarray) -> np.ndarray:
        return np.multiply(block, 2, out=kept[: len(block)] if len(block) < 4 else kept)

    p, q = x.map(buffered, dtype="f8"), (x * 2).map(buffered, dtype="f8")
    total, first = cf.compute(p + q, p, device="cpu")
    same(total, np.arange(24.0).reshape(4, 6) * 6)
    same(first, np.arange(24.0).reshape(4, 6) * 2)


@pytest.mark.parametrize("shape", [(100, 200), (1000, 1000), (40,), (64, 48, 80)], ids=str)
def test_results_along_different_axes_of_larger_arrays(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).random(shape)
    x = cf.open(array)
    asked = [
        x + 1,
        *(x.sum(axis=a) for a in range(len(shape))),
        np.histogram(x, 5, (0, 1))[0],
        x.max(axis=-1, keepdims=True),
    ]
    expected = [
        array + 1,
        *(array.sum(axis=a) for a in range(len(shape))),
        np.histogram(array, 5, (0, 1))[0],
        array.max(axis=-1, keepdims=True),
    ]
    for one, other in zip(cf.compute(asked, device="cpu"), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_scalars_that_take_passes_of_their_own_join_in() -> None:
    (array,) = volumes(1)
    x = cf.open(array)
    same((x - np.median(x)).compute(device="cpu"), array - np.median(array))
    same((np.median(x) + 1).compute(device="cpu"), np.median(array) + 1)
    same(
        np.where(x > np.percentile(x, 99), x, 0).compute(device="cpu"),
        np.where(array > np.percentile(array, 99), array, 0),
    )
    same((cf.open(np.float64(3)) + x).compute(device="cpu"), 3 + array)


def test_promised_dtypes(tmp_path: Path) -> None:
    array = volumes(1)[0].astype("f4")
    x = cf.open(array)
    for lazy, expected in (
        (np.median(x), np.median(array)),
        (np.quantile(x, 0.5), np.quantile(array, 0.5)),
        (np.quantile(x, [0.5]), np.quantile(array, [0.5])),
        (np.percentile(x, 50), np.percentile(array, 50)),
        (np.mean(x, where=x > 0), np.mean(array, where=array > 0)),
    ):
        assert lazy.dtype == expected.dtype
        assert lazy.compute(device="cpu").dtype == expected.dtype


def test_slices_of_what_is_stretched() -> None:
    x = cf.open(np.arange(5.0))
    same(np.broadcast_to(x, (3, 5))[1:, ::2].compute(device="cpu"), np.broadcast_to(np.arange(5.0), (3, 5))[1:, ::2])
    y = np.arange(9.0).reshape(9, 1)
    same(np.broadcast_to(cf.open(y), (9, 4))[2:5].compute(device="cpu"), np.broadcast_to(y, (9, 4))[2:5])


def test_slices_of_what_is_shared_and_deep() -> None:
    x = y = cf.open(np.arange(5.0))
    for _ in range(60):
        y = y + y
    same(y[1:].compute(device="cpu"), np.arange(1.0, 5) * 2.0**60)
    assert y[1:]._node is y[1:]._node
    for _ in range(3000):
        x = x + 1
    same(x[::2].compute(device="cpu"), np.arange(0.0, 5, 2) + 3000)


def test_periodic_and_other_stencils_of_one_source_on_a_short_axis() -> None:
    (array,) = volumes(1, (40, 3))
    x = y = cf.open(array)
    expected = array
    for _ in range(4):
        y = y.map_overlap(_shifted, depth=1, boundary="nearest", dtype="f8")
        expected = cf.map_overlap(_shifted, expected, depth=1, boundary="nearest", device="cpu")
    p = x.map_overlap(_shifted, depth=1, boundary="periodic", dtype="f8")
    one, other = cf.compute(y, p, device="cpu")
    same(one, expected)
    same(other, cf.map_overlap(_shifted, array, depth=1, boundary="periodic", device="cpu"))


def test_one_of_several_results_feeds_a_periodic_stencil() -> None:
    (array,) = volumes(1, (20, 9))
    u, v = cf.open(array).map_overlap(lambda b: (_shifted(b), b), depth=1, boundary="nearest", dtype=("f8", "f8"))
    got = (u.map_overlap(_shifted, depth=1, boundary="periodic") + v).compute(device="cpu")
    first = cf.map_overlap(_shifted, array, depth=1, boundary="nearest", device="cpu")
    same(got, cf.map_overlap(_shifted, first, depth=1, boundary="periodic", device="cpu") + array)


def test_windows_are_as_many_as_the_depths() -> None:
    x = y = cf.open(np.arange(200.0))
    expected = np.arange(200.0)
    for _ in range(12):
        y = y.map_overlap(_shifted, depth=1, boundary="nearest", dtype="f8") + y.map_overlap(
            _shifted, depth=2, boundary="nearest", dtype="f8"
        )
        expected = 2 * cf.map_overlap(_shifted, expected, depth=1, boundary="nearest", device="cpu")
    node = y._node
    assert isinstance(node, OpNode)
    declared = Evaluation(Options())._pass([node], {}).declared  # type: ignore[union-attr]
    assert len(declared.kernel.windows) <= 25  # type: ignore[union-attr]
    same(y.compute(device="cpu"), expected)
    del x


def test_many_results_do_not_share_a_pass_that_is_slow() -> None:
    x = cf.open(np.random.default_rng(2).random((300, 300)))
    asked = [(x + i).sum(0) for i in range(40)]
    evaluate = cf.explain(asked, budget="400kB", device="cpu")
    assert sum(len(plan.grid) for plan in evaluate.plans) < 3000
    for i, result in enumerate(cf.compute(asked, budget="400kB", device="cpu")):
        np.testing.assert_allclose(result, (np.asarray(x) + i).sum(0))


def test_the_smallest_budget_is_that_of_all_results() -> None:
    x = cf.open(np.random.default_rng(3).random((8, 12, 10)))
    asked = (x + 1, x.mean(), x.var(1), x.argmax(2))
    with pytest.raises(cf.BudgetError) as caught:
        cf.compute(*asked, budget=100, device="cpu")
    assert caught.value.smallest is not None
    cf.compute(*asked, budget=caught.value.smallest, device="cpu")


def test_functions_are_tried_once_for_a_chain() -> None:
    source, calls = Counting(volumes(1)[0]), []

    def fn(block: np.ndarray) -> np.ndarray:
        calls.append(block.size)
        return block + 1

    y = cf.open(source)
    for _ in range(30):
        y = y.map(fn) + 1
    assert (source.nbytes, calls) == (0, [])
    assert y.dtype == np.float64
    assert len(calls) == 30


def test_what_is_stored_in_between_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    run = Evaluation._launch

    def watched(self: Evaluation, *args: Any, **kwargs: Any) -> bool:
        held.append(len(self.stored))
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Evaluation, "_launch", watched)
    (array,) = volumes(1)
    y, expected = cf.open(array), array
    for _ in range(8):
        y, expected = y.cumsum(0) * 0.5, expected.cumsum(0) * 0.5
    np.testing.assert_allclose(y.compute(device="cpu"), expected)
    assert max(held) <= 2


def test_expressions_by_name() -> None:
    (array,) = volumes(1)
    x = cf.open(array)
    same(np.clip(x, min=x.mean(), max=None).compute(device="cpu"), np.clip(array, array.mean(), None))
    same(
        np.isclose(x, x * 1.01, rtol=x.max() * 0.01).compute(device="cpu"),
        np.isclose(array, array * 1.01, rtol=array.max() * 0.01),
    )


def test_copies_and_texts() -> None:
    x = cf.open(volumes(1)[0]) + 1
    assert copy.deepcopy(x) is x
    assert copy.copy(x) is x
    with pytest.raises(ArgumentError, match="one is asked for"):
        f"{x:.2f}"
    for call in (lambda x: x == "zz", lambda x: x + "a", lambda x: x.astype(str)):
        with pytest.raises(TypeError, match=r"compute|open"):
            call(x)
    for name in ("setflags", "dumps"):
        with pytest.raises(AttributeError, match=r"numpy\.md"):
            getattr(x, name)
    with pytest.raises(ArgumentError, match="where"):
        np.sum(cf.open(np.ones(3)), where=np.ones((4, 3), bool))
    for wrong in (lambda b: b - b, np.negative, np.sign):
        with pytest.raises(TypeError):
            wrong(cf.open(np.ones(3, bool)))


@everywhere
def test_nothing_beside_nothing(place: Place) -> None:
    x = cf.open(np.empty((0, 5)))
    asked = (x.sum(), x + 1, x.sum(axis=1), (abs(x) * 2 + 1).sum())
    total, more, spread, chained = cf.compute(*asked, budget=place.budget(100_000), device=place.device())
    assert (total, more.shape, spread.shape, chained) == (0, (0, 5), (0,), 0)


def test_a_long_flat_scan_is_described_without_making_it() -> None:
    x = cf.open(np.broadcast_to(np.ones((), "f4"), (10, 100_000, 100_000)))
    assert x.cumsum().shape == (10**11,)
    assert x.cumsum().dtype == np.float32


def test_several_large_intermediates_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkflow.graph.evaluate.room", lambda options: 0)
    array = np.random.default_rng(0).random((30, 20))
    x = cf.open(array)
    got = ((x - x.mean(0)) / x.std(0)).compute(device="cpu")
    np.testing.assert_allclose(got, (array - array.mean(0)) / array.std(0))


def test_slices_of_slices_are_slices() -> None:
    array = np.random.default_rng(0).random((900, 40))
    x = y = cf.open(array)
    expected = array
    for _ in range(12):
        y, expected = y[1:] - y[:-1], expected[1:] - expected[:-1]
    np.testing.assert_allclose(y.compute(device="cpu"), expected, atol=1e-9)
    assert x[1:][:-1]._node is x[:-1][1:]._node
    for index, then in itertools.product([slice(2, 50, 3), slice(None, None, -2), slice(40, 5, -1)], repeat=2):
        same(x[index][then].compute(device="cpu"), array[index][then])


@pytest.mark.parametrize("dtype", ["f4", ">i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_in_c_order_are_reshaped_without_a_pass(order: Any, dtype: str, tmp_path: Path) -> None:
    a = np.asarray(np.arange(24).reshape(2, 3, 4), dtype, order)
    np.save(tmp_path / "x.npy", a)
    for path in (tmp_path / "x.npy", str(tmp_path / "x.npy")):
        x = cf.open(path).reshape(4, -1)
        assert len(cf.explain(x + 1, device="cpu").passes) == 1 + (order == "F")
        same(x.compute(device="cpu"), np.ascontiguousarray(a, dtype[-2:]).reshape(4, -1))
        same(np.asarray(x[1:3, ::2]), a.astype(dtype[-2:]).reshape(4, -1)[1:3, ::2])


@pytest.mark.parametrize("opened", [str, lambda path: path, zarr.open_array])
def test_others_are_copied_before_they_are_reshaped(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    a = np.arange(24.0).reshape(2, 3, 4)
    zarr.create_array(tmp_path / "x.zarr", data=a, chunks=(1, 2, 4))
    x = cf.open(opened(tmp_path / "x.zarr")).reshape(4, -1)
    assert len(cf.explain(x + 1, device="cpu").passes) == 2
    same((x + 1).compute(device="cpu"), a.reshape(4, -1) + 1)


@pytest.mark.parametrize("into", [None, np.zeros((4, 6)), np.zeros((4, 6), order="F"), np.zeros((4, 12))[:, ::2]])
def test_a_result_in_memory_is_computed_in_its_other_shape(into: np.ndarray | None, tmp_path: Path) -> None:
    x = cf.open(a := np.arange(24.0).reshape(2, 3, 4))
    for expression, expected in [(x * 2, a * 2), (np.sort(-x, axis=1), np.sort(-a, axis=1)), (x.T + 1, a.T + 1)]:
        wanted = expression.reshape(4, 6)
        with cf.Profile() as profile:
            got = wanted.compute(device="cpu") if into is None else cf.store(wanted, into, device="cpu")
        same(got, np.ascontiguousarray(expected).reshape(4, 6))
        assert into is None or got is into
        in_order = into is None or into.flags.c_contiguous
        assert len(profile.passes) == (1 if in_order else 2)


def test_results_of_other_shapes_share_no_memory_and_overwrite_nothing_that_is_read() -> None:
    x = cf.open(a := np.arange(24.0).reshape(2, 3, 4))
    y = np.sort(-x, axis=1)
    found = cf.compute(y, y.reshape(-1), y.reshape(4, 6), device="cpu")
    for one, other in itertools.combinations(found, 2):
        assert not np.shares_memory(one, other)
        same(one.reshape(-1), other.reshape(-1))
    expected = (a.T + 1).reshape(-1)
    cf.store((x.T + 1).reshape(-1), a.reshape(-1), device="cpu")
    same(a.reshape(-1), expected)


@pytest.mark.parametrize("chunks", [(2, 3), (4, 2)])
def test_the_place_of_a_block_is_known_inside_an_expression(chunks: tuple[int, int]) -> None:
    def place(block: Any, block_id: Any = None) -> Any:
        return block * 0 + 10 * block_id[0] + block_id[1]

    x = np.zeros((4, 6))
    rows, columns = np.indices(x.shape)
    got = (cf.open(x).map(place, chunks=chunks, dtype="f8") + 1).compute(device="cpu")
    same(got, 10.0 * (rows // chunks[0]) + columns // chunks[1] + 1)


def test_the_place_of_a_block_is_known_where_it_is_stretched() -> None:
    def place(block: Any, block_info: Any = None) -> Any:
        ((start, stop),) = block_info[0]["array-location"]
        if stop - start > 1 and start:  # behind the trial's
            infos.add((start, *block_info[0]["chunk-location"], *block_info[0]["num-chunks"]))
        return block + np.arange(start, stop)

    infos = set[tuple[int, ...]]()
    row, x = np.zeros(30_000), filled((3, 30_000), "f8")
    expression = cf.open(row).map(place, dtype="f8", workspace=8.0) + cf.open(x)
    plan = cf.explain(expression, device="cpu", budget=500_000)
    (_, number), (_, side) = plan.passes[0][1].grid.counts, plan.passes[0][1].block
    same(expression.compute(device="cpu", budget=500_000), np.arange(30_000.0) + x)
    assert infos == {(i * side, i, number) for i in range(1, number)}
    assert infos


def test_an_expression_is_no_source_before_it_is_computed() -> None:
    array = np.arange(6.0)
    assert open_source(cf.open(array)).spec.shape == (6,)
    with pytest.raises(ArgumentTypeError, match="add is an expression"):
        open_source(cf.open(array) + 1)


@pytest.mark.parametrize("budget", [1_000_000, 2_000_000, 3_000_000, 5_000_000, 6_000_000])
def test_intermediate_results_leave_room_for_later_passes(budget: int, tmp_path: Path) -> None:
    """Of forty small ones all stayed in memory: 3 MB were refused, in which fewer stay than in 2 MB do."""
    frames = np.random.default_rng(0).integers(0, 9, (40, 256, 256)).astype("u2")
    x = cf.open(frames)
    drift = cf.stack([cf.roll(x[i], i % 7, axis=0) for i in range(40)])
    found = cf.store(drift, tmp_path / "drift.zarr", budget=budget, device="cpu")
    np.testing.assert_array_equal(found[...], np.stack([np.roll(f, i % 7, axis=0) for i, f in enumerate(frames)]))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_items_are_stacked_in_one_pass(axis: int) -> None:
    """They were stored first, each by a pass of its own."""
    frames = np.random.default_rng(0).integers(0, 9, (6, 7, 8)).astype("u2")
    x, item = cf.open(frames), (slice(None),) * (axis % 3)
    stacked = cf.stack([x[*item, i] for i in (3, 0, 5)], axis)
    np.testing.assert_array_equal(stacked.compute(device="cpu"), np.take(frames, (3, 0, 5), axis))
    assert len(cf.explain(stacked).plans) == 1


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("budget", ["600kB", "64MB"])
def test_computed_components_are_stacked_in_the_pass_that_computes_them(axis: int, budget: str) -> None:
    """Each was stored, and read again. Their halos and dtypes may differ."""
    values = np.random.default_rng(0).random((40, 30, 20)).astype("f4")
    x = cf.open(values)
    parts = [np.gradient(x, axis=0), x * 2, (x * 100).astype("i2"), x > 0.5]
    right = np.stack([np.gradient(values, axis=0), values * 2, (values * 100).astype("i2"), values > 0.5], axis)
    stacked = np.stack(parts, axis)
    (plan,) = cf.explain(stacked, budget="64MB", device="cpu").plans
    assert plan.bytes_in <= 1.2 * values.nbytes
    found = stacked.compute(budget=budget, device="cpu")
    assert found.dtype == right.dtype
    np.testing.assert_allclose(found, right, rtol=1e-6)
    np.testing.assert_allclose(stacked.sum(axis).compute(device="cpu"), right.sum(axis), rtol=1e-5)
    one = (slice(None),) * (axis % 4) + (1,)
    np.testing.assert_array_equal(stacked[one].compute(device="cpu"), right[one])


@pytest.mark.parametrize("axis", [-1, 3, 0])
def test_a_device_of_its_own_stacks_short_rows(axis: int) -> None:
    """The host moved single elements one by one: 25 GB/s of 102."""
    device = numpy_device("eager", staged=True)
    one, other = (np.random.default_rng(i).random((6, 7, 9)).astype("f4") for i in range(2))
    stacked = cf.stack([cf.open(one), cf.open(other)], axis)
    (plan,) = cf.explain(stacked, device=device, budget="1MB").plans
    assert len(plan.operands) == (1 if axis == 0 else 2)
    np.testing.assert_array_equal(stacked.compute(device=device, budget="1MB"), np.stack([one, other], axis))
    np.testing.assert_array_equal(stacked.compute(device="cpu"), np.stack([one, other], axis))
    np.testing.assert_array_equal((stacked * 2).compute(device=device), np.stack([one, other], axis) * 2)
    assert len(cf.explain(stacked * 2, device=device).plans) == 1

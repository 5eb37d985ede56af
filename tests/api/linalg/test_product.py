"""Products are NumPy's, whatever the shapes, dtypes, budget and device; and they read no more than they must."""

from __future__ import annotations

import itertools
import math
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.devices import CPU, Place, checked, everywhere, numpy_device, on_cpu_and_gpu
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.linalg import gram as moments
from chunkflow.api.linalg import product as linalg
from chunkflow.core.grid import Grid, Interleave
from chunkflow.core.machine import Machine
from chunkflow.core.memory import rounded
from chunkflow.core.nest import Along, Output
from chunkflow.core.product_nest import ProductNest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.devices import rates
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine import trial
from chunkflow.graph.slicing import untransposed
from chunkflow.kernels.linalg import gemm, product
from chunkflow.kernels.linalg import labels as notation
from chunkflow.kernels.linalg.product import ProductLabels, contraction
from chunkflow.planner import matmul_schedule, matmul_search
from chunkflow.planner import search as planner
from chunkflow.planner.candidate import plan_of
from chunkflow.planner.cost import PANEL
from chunkflow.planner.plan import Plan
from chunkflow.planner.problem import PlanProblem
from chunkflow.planner.search import make_plan
from chunkflow.testing import CountingSource

FLOATS = ("f2", "f4", "f8", "c8", "c16")
EXACT = ("?", "i1", "u2", "i4", "i8")
thorough = settings(
    max_examples=examples(1 / 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
sizes = st.integers(1, 7)
budgets = st.sampled_from([1, 1500, 4000, 100_000])
dtypes = st.sampled_from(FLOATS + EXACT)


def noise(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random values, none of them zero on the average; integers large enough to wrap."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.2
    if kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min // 2, info.max // 2, shape, dtype=dtype)
    values = rng.normal(0.3, 1, shape)
    return np.asarray(values + 1j * rng.normal(0.3, 1, shape) if kind == "c" else values).astype(dtype)


def run(place: Place, budget: int, fn: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """An operation with the budget, or the smallest that will do if that is more."""
    least = place.budget(budget)
    for _ in range(9):
        try:
            return fn(*arrays, budget=least, device=place.device(), **options)
        except cf.BudgetError as error:
            least, before = error.smallest or 0, least
        assert least > before, "the error names a budget that is enough"
    raise AssertionError(f"no budget is enough: {least} bytes were promised to be")


def close(got: Any, fn: Callable[..., Any], *arrays: np.ndarray) -> None:
    """NumPy's dtype and shape; integers exact, floats within what rounding of sums that long can do."""
    expected = fn(*arrays)
    got = np.asarray(got)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
        return
    wide = [a.astype(np.result_type(a, np.float64)) for a in arrays]
    exact, size = fn(*wide), fn(*map(np.abs, wide))
    terms = max([math.prod(a.shape) for a in arrays], default=1)
    step = np.finfo(np.float32 if got.dtype == np.float16 else got.dtype).eps
    bound = 2 * (terms + 4) * step * np.abs(size) + np.finfo(got.dtype).eps * np.abs(exact)
    assert (np.abs(got - exact) <= bound).all()


# -- Like NumPy ----------------------------------------------------------------------------------------------


@st.composite
def stacks(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes that matmul takes: vectors, matrices, and stacks that broadcast."""
    m, k, n = draw(sizes), draw(sizes), draw(sizes)
    stack = draw(st.lists(st.integers(1, 3), max_size=2))
    shapes = []
    for vector, matrix in (((k,), (m, k)), ((k,), (k, n))):
        if draw(st.integers(0, 4)) == 0:
            shapes.append(vector)
        else:
            own = [draw(st.sampled_from([1, s])) for s in stack][draw(st.integers(0, len(stack))) :]
            shapes.append((*own, *matrix))
    return shapes[0], shapes[1]


@everywhere
@given(shapes=stacks(), kinds=st.tuples(dtypes, dtypes), budget=budgets)
@example(shapes=((40, 30), (30, 50)), kinds=("f4", "f4"), budget=12_000)
@example(shapes=((20, 70), (70, 20)), kinds=("f2", "f2"), budget=6000)
@example(shapes=((20, 70), (70, 20)), kinds=("i1", "i1"), budget=6000)
@example(shapes=((20, 70), (70, 20)), kinds=("?", "?"), budget=6000)
@example(shapes=((12, 9, 7), (12, 7, 9)), kinds=("c8", "f8"), budget=8000)
@example(shapes=((0, 3), (3, 4)), kinds=("f4", "f4"), budget=4000)
@example(shapes=((4, 0), (0, 3)), kinds=("i4", "i4"), budget=4000)
@thorough
def test_matmul(place: Place, shapes: Any, kinds: tuple[str, str], budget: int) -> None:
    a, b = noise(shapes[0], kinds[0], 1), noise(shapes[1], kinds[1], 2)
    close(run(place, budget, linalg.matmul, a, b), np.matmul, a, b)


@st.composite
def subscripts(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """A product of up to three operands in Einstein's notation, and shapes for it; some lengths of 1 stretch."""
    lengths = {x: draw(st.integers(1, 5)) for x in "ijkl"}
    terms = [
        "".join(draw(st.lists(st.sampled_from("ijkl"), max_size=3, unique=True))) for _ in range(draw(sizes) % 3 + 1)
    ]
    used = sorted(set("".join(terms)))
    shapes = [tuple(1 if draw(st.integers(0, 9)) == 0 else lengths[x] for x in term) for term in terms]
    if draw(st.booleans()):
        return ",".join(terms), shapes
    kept = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    return f"{','.join(terms)}->{''.join(kept)}", shapes


@checked
@given(product=subscripts(), kind=dtypes, budget=budgets)
@example(product=("ij,jk,kl->li", [(4, 5), (5, 6), (6, 3)]), kind="f8", budget=2000)
@example(product=("bik,bkj->ibj", [(9, 4, 5), (9, 5, 6)]), kind="f4", budget=4000)
@example(product=("ij->ji", [(30, 20)]), kind="f4", budget=2000)
@example(product=("...ij,...jk", [(3, 2, 4, 5), (2, 5, 6)]), kind="f8", budget=3000)
@example(product=("i...->...", [(5, 2, 3)]), kind="i4", budget=3000)
@example(product=("ij,ij->", [(30, 20), (30, 20)]), kind="f4", budget=2000)
@example(product=("i,j,k->kij", [(9,), (8,), (7,)]), kind="i8", budget=2000)
@example(product=("ij,jk->ik", [(3, 5), (1, 4)]), kind="f8", budget=2000)
@thorough
def test_einsum(place: Place, product: tuple[str, list[tuple[int, ...]]], kind: str, budget: int) -> None:
    text, shapes = product
    arrays = [noise(shape, kind, i) for i, shape in enumerate(shapes)]
    got = run(place, budget, lambda *a, **o: linalg.einsum(text, *a, **o), *arrays)

    def einsum(*operands: np.ndarray) -> Any:
        return np.asarray(np.einsum(text, *operands))

    close(got, einsum, *arrays)


@checked
@given(shapes=stacks(), kind=dtypes, budget=budgets)
@thorough
def test_dot(place: Place, shapes: Any, kind: str, budget: int) -> None:
    a, b = (noise(shape, kind, i) for i, shape in enumerate(shapes))
    close(run(place, budget, linalg.dot, a, b), lambda *x: np.asarray(np.dot(*x)), a, b)


@checked
@given(stack=st.lists(st.integers(1, 3), max_size=2), n=st.integers(1, 30), kind=dtypes, budget=budgets)
@thorough
def test_vecdot(place: Place, stack: list[int], n: int, kind: str, budget: int) -> None:
    a, b = noise((*stack, n), kind, 1), noise((n,), kind, 2)
    close(run(place, budget, linalg.vecdot, a, b), lambda *x: np.asarray(np.vecdot(*x)), a, b)
    a, b = np.moveaxis(a, -1, 0), np.moveaxis(noise((*stack, n), kind, 3), -1, 0)
    got = run(place, budget, linalg.vecdot, a, b, axis=0)
    close(got, lambda *x: np.asarray(np.vecdot(*x, axis=0)), a, b)


@everywhere
@given(m=sizes, n=sizes, kinds=st.tuples(dtypes, dtypes), budget=budgets)
@thorough
def test_outer(place: Place, m: int, n: int, kinds: tuple[str, str], budget: int) -> None:
    a, b = noise((m,), kinds[0], 1), noise((n,), kinds[1], 2)
    close(run(place, budget, linalg.outer, a, b), np.outer, a, b)


@checked
@given(data=st.data(), kind=dtypes, budget=budgets)
@thorough
def test_tensordot(place: Place, data: st.DataObject, kind: str, budget: int) -> None:
    a = noise(tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))), kind, 1)
    pairs = data.draw(st.integers(0, a.ndim))
    first = data.draw(st.permutations(range(a.ndim)))[:pairs]
    others = data.draw(st.lists(st.integers(1, 4), max_size=2))
    order = data.draw(st.permutations(range(pairs + len(others))))
    lengths = [a.shape[i] for i in first] + others
    b = noise(tuple(lengths[i] for i in order), kind, 2)
    axes = (first, [order.index(i) for i in range(pairs)])
    got = run(place, budget, linalg.tensordot, a, b, axes=axes)
    close(got, lambda *x: np.tensordot(*x, axes=axes), a, b)


def test_tensordot_over_a_number_of_axes() -> None:
    a, b = noise((3, 4, 5), "f8"), noise((4, 5, 2), "f8")
    for axes, other in ((2, b), (1, b.reshape(5, 4, 2)), (0, b), ((-1, 1), b)):
        close(linalg.tensordot(a, other, axes, device="cpu"), lambda *x: np.tensordot(*x, axes=axes), a, other)  # noqa: B023


def test_dot_with_a_scalar() -> None:
    x = noise((5, 6), "f8")
    np.testing.assert_array_equal(linalg.dot(x, 2.0, device="cpu"), x * 2)
    np.testing.assert_array_equal(linalg.dot(np.float64(3), x, device="cpu"), x * 3)


@everywhere
@given(n=st.integers(0, 60), side=sizes, kind=dtypes, budget=budgets)
@thorough
def test_gram(place: Place, n: int, side: int, kind: str, budget: int) -> None:
    x = noise((n, side), kind)
    close(run(place, budget, moments.gram, x), lambda x: x.conj().T @ x, x)


@everywhere
@given(
    variables=sizes,
    samples=st.integers(3, 60),
    rowvar=st.booleans(),
    kind=st.sampled_from(["f4", "f8", "i2", "c8"]),
    options=st.sampled_from([{}, {"bias": True}, {"ddof": 2}]),
    budget=budgets,
)
@thorough
def test_cov_and_corrcoef(
    place: Place, variables: int, samples: int, rowvar: bool, kind: str, options: dict[str, Any], budget: int
) -> None:
    m = noise((variables, samples), kind) if kind != "i2" else noise((variables, samples), "f4").astype("i2")
    m = m if rowvar else np.ascontiguousarray(m.T)
    got, expected = run(place, budget, moments.cov, m, rowvar=rowvar, **options), np.cov(m, rowvar=rowvar, **options)
    assert (np.shape(got), np.asarray(got).dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)
    if np.diagonal(np.atleast_2d(expected)).all():
        got, expected = run(place, budget, moments.corrcoef, m, rowvar=rowvar), np.corrcoef(m, rowvar=rowvar)
        assert np.shape(got) in (np.shape(expected), ())
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


@everywhere
@given(
    variables=st.tuples(sizes, sizes),
    samples=st.integers(3, 60),
    rowvar=st.booleans(),
    kind=st.sampled_from(["f4", "f8", "c8"]),
    given=st.sampled_from(["y", "y f", "f", "a", "f a", "y f a"]),
    options=st.sampled_from([{}, {"bias": True}, {"ddof": 2}]),
    budget=budgets,
)
@thorough
def test_cov_of_further_variables_and_with_weights(
    place: Place,
    variables: tuple[int, int],
    samples: int,
    rowvar: bool,
    kind: str,
    given: str,
    options: dict[str, Any],
    budget: int,
) -> None:
    m, y = (noise((n, samples), kind, seed) for seed, n in enumerate(variables))
    if not rowvar:
        m, y = np.ascontiguousarray(m.T), np.ascontiguousarray(y.T)
    more: dict[str, Any] = {"rowvar": rowvar, **options}
    if "y" in given:
        more["y"] = y
    if "f" in given:
        more["fweights"] = np.arange(samples) % 4 + 1
    if "a" in given:
        more["aweights"] = np.abs(noise((samples,), "f8", 9)) + 0.1
    got, expected = run(place, budget, moments.cov, m, **more), np.cov(m, **more)
    assert (np.shape(got), np.asarray(got).dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
    if given == "y":
        got, expected = run(place, budget, moments.corrcoef, m, y, rowvar=rowvar), np.corrcoef(m, y, rowvar=rowvar)
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


@checked
def test_covariance_of_data_far_from_zero(place: Place) -> None:
    x = (noise((4, 3000), "f8") * [[1], [2], [3], [0.5]] + 1e6).astype("f4")
    got = run(place, 20_000, moments.cov, x)
    wide = x.astype(np.longdouble)
    about = wide - wide.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(got, (about @ about.T / 2999).astype("f8"), rtol=1e-12, atol=1e-12)


@on_cpu_and_gpu
def test_products_of_single_precision_are_no_worse_than_numpys(place: Place) -> None:
    a, b = noise((64, 6000), "f4", 1), noise((6000, 48), "f4", 2)
    exact = a.astype("f8") @ b.astype("f8")
    got = place.host(run(place, 300_000, linalg.matmul, a, b))
    assert np.abs(got - exact).max() <= 2 * np.abs(a @ b - exact).max()


# -- Stores --------------------------------------------------------------------------------------------------


@everywhere
def test_from_files_into_files(place: Place, tmp_path: Path) -> None:
    a, b = noise((30, 35), "f4", 1), noise((35, 25), "f4", 2)
    np.save(tmp_path / "a.npy", np.asfortranarray(a))
    zarr.create_array(tmp_path / "b.zarr", shape=b.shape, chunks=(8, 10), dtype="f4")[...] = b
    for out in ("c.npy", "c.zarr"):
        made = run(place, 12_000, linalg.matmul, tmp_path / "a.npy", tmp_path / "b.zarr", out=tmp_path / out)
        close(made[...], np.matmul, a, b)
    target = np.zeros((30, 25), "f8")
    assert run(place, 12_000, linalg.matmul, a, b, out=target) is target
    np.testing.assert_allclose(target, a @ b, rtol=1e-4, atol=1e-4)


def test_of_one_array_with_itself(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", noise((300, 20), "f8"))
    x = np.load(tmp_path / "x.npy")
    path = tmp_path / "x.npy"
    got = linalg.einsum("ki,kj->ij", path, path, budget="40kB", device="cpu")
    np.testing.assert_allclose(got, x.T @ x)
    np.testing.assert_allclose(moments.gram(path, budget="40kB", device="cpu"), x.T @ x)
    with pytest.raises(errors.ArgumentError, match="overlap"):
        linalg.matmul(x[:20], x[:20], out=x[:20], device="cpu")


# -- What is read --------------------------------------------------------------------------------------------

STAGED = Machine(
    read=30e9, upload=50e9, compute=8e11, download=50e9, write=30e9, overhead=1e-7, page=512, piece=16384, threads=2
)


def planned(
    labels: ProductLabels, shapes: Sequence[tuple[int, ...]], budget: int, kind: str = "f4", machine: Machine = STAGED
) -> Plan:
    specs = [ArraySpec("x", s, np.dtype(kind)) for s in shapes]
    op, _ = contraction(labels, shapes, [s.dtype for s in specs], [s.order for s in specs], "test", None, tf32=False)
    result = tuple(range(len(labels.result)))
    op = replace(op, outputs=(Output(tuple(Along(a) for a in result)),))
    out = ArraySpec("out", tuple(op.extents[a] for a in result), np.dtype(kind))
    return make_plan(op, specs, [out], machine, budget)


def fewest_bytes(m: int, k: int, n: int, budget: int, slots: int) -> float:
    """Of all products of (m, k) and (k, n) float32 matrices by blocks on a grid, in any order that sums last.

    Written down from first principles: a block of an operand is read when it differs from the one before.
    """
    best = math.inf

    def sides(extent: int) -> list[int]:
        return sorted({extent} | {-(-extent // p) for p in range(2, 9)} | {2**j for j in range(extent.bit_length())})

    for i, j, d in itertools.product(sides(m), sides(n), sides(k)):
        if d < min(k, 256):
            continue
        rows, columns, depths = -(-m // i), -(-n // j), -(-k // d)
        for rows_first in (True, False):
            # With the sum in one step, the operand along the slower axis stays while the faster one is walked.
            a = rows * (1 if depths == 1 and rows_first else columns) * depths if columns > 1 else rows * depths
            b = columns * (1 if depths == 1 and not rows_first else rows) * depths if rows > 1 else columns * depths
            read = 4 * (a * m * k / (rows * depths) + b * k * n / (columns * depths))
            tile = i * j
            waiting = min(-(-slots // depths), rows * columns)
            panel = min(tile, max(tile / 8, 1 << 19) + j)
            panels = panel + i * d * panel / tile
            memory = min(slots, a) * rounded(4 * i * d) + min(slots, b) * rounded(4 * d * j)
            memory += waiting * rounded(4 * tile) + rounded(math.ceil(4 * (tile + panels))) + 3 * 512
            if memory <= budget:
                best = min(best, read)
    return best


@given(
    m=st.sampled_from([64, 700, 2000]),
    k=st.sampled_from([64, 700, 3000]),
    n=st.sampled_from([64, 900, 2000]),
    share=st.sampled_from([0.1, 0.3, 0.7]),
)
@settings(max_examples=examples(1), deadline=None)
@example(m=2000, k=2000, n=2000, share=1 / 3)
@example(m=4000, k=300, n=50, share=0.2)
@example(m=50, k=300, n=4000, share=0.2)
def test_no_blocks_read_less(m: int, k: int, n: int, share: float) -> None:
    budget = max(int(4 * share * max(m * k, k * n)), 250_000)
    plan = planned(notation.matmul([(m, k), (k, n)]), [(m, k), (k, n)], budget)
    staging = plan.memory.staging
    near = 1.02 if budget > 2_500_000 else 1.4  # within a small budget few shapes are compared
    assert plan.bytes_in <= near * fewest_bytes(m, k, n, budget - staging, plan.depth) + 1


@pytest.mark.parametrize("mode", ["threaded", "lazy"])
@pytest.mark.parametrize("shape", [(900, 900, 900), (2000, 300, 100), (300, 4000, 250)])
def test_a_product_reads_what_its_plan_says(mode: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, y = noise((m, k), "f4", 1), noise((k, n), "f4", 2)
    budget = max(x.nbytes, y.nbytes) // 3
    device = numpy_device(mode, staged=True, lanes=1)
    a, b = CountingSource(x), CountingSource(y)
    plan = cf.explain(linalg.matmul, a, b, budget=budget, device=device)
    assert f"reads {format_bytes(plan.bytes_in)}" in str(plan)
    a, b = CountingSource(x), CountingSource(y)
    got = linalg.matmul(a, b, budget=budget, device=device)
    np.testing.assert_allclose(got, x @ y, rtol=1e-3, atol=1e-2)
    assert a.bytes_read + b.bytes_read == plan.bytes_in
    assert plan.bytes_in <= 1.02 * fewest_bytes(m, k, n, budget - plan.memory.staging, plan.depth)


def test_a_product_is_tried_by_each_thread_for_arrays_of_one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    device, real = NumpyDevice(), trial.run_trial
    tried = MagicMock(wraps=lambda *args, **kwargs: replace(real(*args, **kwargs), workspace=1.0))
    monkeypatch.setattr(trial, "run_trial", tried)

    def trials(*arrays: np.ndarray) -> int:
        before = tried.call_count
        for x in arrays:
            a = CountingSource(x)
            moments.gram(a, budget="1MB", device=device)
            assert a.bytes_read == x.nbytes, "trials read nothing"
        return tried.call_count - before

    x, other = noise((50, 20), "f4"), noise((50, 20), "f4", 1)
    assert trials(x, other, x, other) == 2, "once, and once more to be sure"
    assert trials(x[1:], x[1:], x[1:]) == 2, "another shape"
    assert trials(x.astype("f8")) == 1, "another dtype"
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(trials, x).result() == 1, "a library may have memory for each thread"
    device = NumpyDevice()
    assert trials(x) == 1, "another device"


MATRICES = [(16384, 16384), (16384, 16384)]
A_GPU = rates.gpu()


def tiles_of(plan: Plan) -> list[slice]:
    return [plan.grid.region((i, 0, 0))[0] for i in range(plan.grid.counts[0])]


def test_the_first_tiles_take_turns_while_an_operand_is_loaded() -> None:
    plan = planned(notation.matmul(MATRICES), MATRICES, 4_000_000_000, "f8", A_GPU)
    assert plan.resident == {1}
    assert plan.turns.together > 1
    rows = [side.stop - side.start for side in tiles_of(plan)]
    assert sum(rows) == 16384
    assert rows[-1] < rows[0], "the last one's way back is awaited"
    assert plan.memory.total <= plan.budget
    multiplied = math.prod(plan.block) / A_GPU.products
    assert matmul_schedule.LONG * PANEL <= multiplied < 2 * matmul_schedule.LONG * PANEL, (
        "a tile is added to no more often than it must"
    )
    assert f"first   {plan.turns.together} tiles in turn" in str(plan)
    order = [(step.index[0], step.index[2]) for step in plan.steps()]
    panels = plan.grid.counts[2]
    widths = [side.stop - side.start for side in (plan.grid.region((0, 0, k))[2] for k in range(panels))]
    assert 0 < widths[0] < widths[1] < max(widths), "less is awaited before anything is computed"
    assert sum(widths) == 16384
    assert sum(math.prod(shape) for shape in plan.slot_shapes(1)) == 16384**2, "no slot is larger than what stays there"
    begun = [(i, k) for k in range(panels) for i in range(plan.turns.together)]
    assert order == begun + [(i, k) for i in range(plan.turns.together, len(rows)) for k in range(panels)]
    assert [step.fresh[1] for step in plan.steps()] == [i == 0 for i, _ in order], "read once"


@pytest.mark.parametrize("slow", [1, 10_000])
def test_two_tiles_that_take_turns_end_a_panel_apart(slow: int) -> None:
    """Where nothing is awaited but products, and the results' way back."""
    machine = replace(A_GPU, read=1e30, upload=1e30, download=A_GPU.download / slow)
    plan = planned(notation.matmul(MATRICES), MATRICES, 4_000_000_000, "f8", machine)
    fixed = {"machine": machine, "budget": plan.budget, "workspace": 0.0, "reserve": 0, "tiled": frozenset[int]()}
    problem: Any = PlanProblem(plan.op, plan.operands, plan.outputs, order=(0, 1, 2), **fixed)
    for rows in (1024, 4096, 8192):  # panels are as deep as what each costs besides asks for, and no deeper
        part = matmul_schedule._block(problem, replace(plan, block=(8192, 16384, 64)), 0, rows)
        costs = [math.prod((rows, 16384, n)) / machine.products for n in (part[2], part[2] // 2)]
        assert part[:2] == (rows, 16384)
        assert costs[1] < matmul_schedule.LONG * PANEL <= costs[0]
    block, panels = (8192, 16384, 2048), 8
    computed = math.prod((8192, 16384, 16384)) / machine.products + panels * PANEL
    back = 8192 * 16384 * 8 / machine.download
    found = matmul_schedule._ended(problem, plan, 0)(block, 2)
    first = 2 * computed - computed / panels + back
    assert found == pytest.approx(max(2 * computed, first) + back, rel=1e-6)


def test_no_more_tiles_are_alive_than_have_a_place() -> None:
    plan = planned(notation.matmul(MATRICES), MATRICES, 4_000_000_000, "f8", A_GPU)
    tile = plan.op.holds(plan.block)
    begun: set[int] = set()
    done = waiting = 0
    for step in plan.steps():
        waiting = min(waiting, plan.waiting(step))
        begun.add(step.index[0])
        assert (len(begun) - done + waiting) * tile <= plan.memory.outputs + plan.memory.partials
        if step.stores:
            done, waiting = done + 1, waiting + 1
    assert done == plan.grid.counts[0]


def test_what_the_host_does_for_a_product_is_done_ahead() -> None:
    """In other runs every block waits for it."""
    plan = planned(notation.matmul(MATRICES), MATRICES, 4_000_000_000, "f8", A_GPU)
    same = planned(notation.matmul(MATRICES), MATRICES, 4_000_000_000, "f8", replace(A_GPU, overhead=1.0))
    assert len(plan.grid) > 1
    assert (same.block, same.turns, same.estimate) == (plan.block, plan.turns, plan.estimate)


@pytest.mark.parametrize("chunk", [256, 700, 1000, 1024, 2048])
def test_tiles_that_take_turns_cut_no_chunk(chunk: int) -> None:
    specs = [ArraySpec("x", s, np.dtype("f8")) for s in MATRICES]
    op, _ = contraction(
        notation.matmul(MATRICES),
        MATRICES,
        [s.dtype for s in specs],
        [s.order for s in specs],
        "test",
        None,
        tf32=False,
    )
    op = replace(op, outputs=(Output((Along(0), Along(1))),))
    stored = ArraySpec("out", MATRICES[0], np.dtype("f8"), (chunk, chunk))
    read = replace(specs[0], chunks=(chunk, 16384))
    for sources, out in ((specs, stored), ([read, specs[1]], replace(stored, chunks=None))):
        plan = make_plan(op, sources, [out], A_GPU, 4_000_000_000)
        if plan.turns.together > 1 or out.chunks:
            assert not any(side.start % chunk for side in tiles_of(plan))
        assert plan.memory.total <= plan.budget


@everywhere
@given(data=st.data())
@thorough
def test_products_of_tiles_that_take_turns(place: Place, data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, 9)) for _ in range(3))
    block = tuple(data.draw(st.integers(1, side)) for side in (m, n, k))
    block = (block[0], n, block[2])
    together, depth = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    head = data.draw(st.lists(st.integers(1, block[2]), max_size=2).filter(lambda sides: sum(sides) <= k))
    heads = data.draw(st.sampled_from([(), ((), (), tuple(head))]))

    def chosen(problem: PlanProblem, caps: Sequence[int], units: Sequence[Sequence[int]]) -> Plan:
        return plan_of(problem, block, depth, frozenset({1}), Interleave(together, heads))

    x, y = noise((m, k), "f8", 1), noise((k, n), "f8", 2)
    device, budget = place.device(), place.budget(100_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "product_plan", chosen)
        planner._chosen.cache_clear()
        plan = cf.explain(linalg.matmul, x, y, budget=budget, device=device)
        if plan.turns.together == 1 or plan.grid.counts[0] > 1:
            got = linalg.matmul(x, y, budget=budget, device=device)
            np.testing.assert_allclose(got, x @ y, rtol=1e-12, atol=1e-12)
        planner._chosen.cache_clear()


def test_a_small_operand_stays_and_the_large_one_is_read_once() -> None:
    shapes = [(100_000, 500), (500, 64)]
    plan = planned(notation.matmul(shapes), shapes, 4_000_000)
    assert plan.bytes_in == 4 * (100_000 * 500 + 500 * 64)
    assert plan.loads(1) == plan.slots(1) == 1


def test_a_small_result_stays_and_both_operands_are_read_once() -> None:
    shapes = [(64, 1_000_000), (1_000_000, 80)]
    plan = planned(notation.matmul(shapes), shapes, 8_000_000)
    assert plan.bytes_in == 4 * 1_000_000 * (64 + 80)
    assert plan.block[2] >= 256


def test_a_sum_over_several_axes_is_deep_by_all_of_them() -> None:
    """Each of these axes alone is short, but the result stays: the operands are read once."""
    shapes = [(300, 400, 64), (300, 400, 80)]
    plan = planned(notation.einsum("abi,abj->ij", shapes), shapes, 4_000_000)
    assert plan.bytes_in == 4 * 300 * 400 * (64 + 80)


@everywhere
def test_an_array_that_meets_itself_along_the_same_axes_is_read_once(place: Place) -> None:
    x = noise((40, 30, 20), "f8")
    for text, number in (("ijk,ijk->ij", 1), ("ijk,ijk,ijk->j", 1), ("ijk,ijl->kl", 2)):
        arrays = [x] * (text.count(",") + 1)
        options = {"budget": place.budget(100_000), "device": place.device()}
        plan = cf.explain(cf.einsum, text, *arrays, **options)
        assert len(plan.operands) == number
        assert number > 1 or plan.bytes_in == x.nbytes
        got = cf.einsum(text, *arrays, **options)
        np.testing.assert_allclose(got, np.einsum(text, *arrays))


TURNED: dict[str, Any] = {
    "x.T @ y": lambda x, y, z: x.T @ y,
    "x.T @ x": lambda x, y, z: x.T @ x,
    "y.T.T.T @ x": lambda x, y, z: y.T.T.T @ x,
    "x.mT @ y": lambda x, y, z: np.matrix_transpose(x) @ y,
    "dot": lambda x, y, z: np.dot(y.T, x),
    "inner": lambda x, y, z: np.inner(x.T, y.T),
    "vecdot": lambda x, y, z: np.vecdot(x.T, x.T),
    "stacks": lambda x, y, z: np.matmul(z, np.swapaxes(z, 1, 2)),
    "a matrix and a stack": lambda x, y, z: np.matmul(x.T, np.swapaxes(z, 1, 2)),
    "tensordot": lambda x, y, z: np.tensordot(np.moveaxis(z, 0, 2), x, axes=([1], [0])),
    "einsum": lambda x, y, z: np.einsum("ij,kjl->kil", x.T, z.transpose(0, 2, 1)),
}


@on_cpu_and_gpu
@pytest.mark.parametrize("name", TURNED)
def test_transposed_operands_are_read_as_they_lie(place: Place, name: str) -> None:
    """A transposition of an expression is no pass of its own, and is not stored."""
    x, y, z = noise((60, 30), "f8"), noise((60, 20), "f8"), noise((3, 40, 60), "f8")
    lazy = TURNED[name](*(cf.open(array) for array in (x, y, z)))
    expected = TURNED[name](x, y, z)
    assert lazy.shape == expected.shape
    for budget in (100_000, 1 << 26):
        options = {"budget": place.budget(budget), "device": place.device()}
        assert str(cf.explain(lazy, **options)).startswith("1 pass")
        np.testing.assert_allclose(lazy.compute(**options), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", [{}, {"axes": (1, 0)}], ids=str)
def test_a_users_function_that_transposes_blocks_is_left_to_run(how: dict[str, Any]) -> None:
    a, b = noise((4, 4), "f8"), noise((4, 3), "f8")
    turned = cf.map(np.transpose, cf.open(a), **how)
    assert untransposed(turned._node) == (turned._node, (0, 1))
    for x in (turned, cf.blockwise(np.transpose, "ji", cf.open(a), "ij", **how)):
        np.testing.assert_allclose((x @ b).compute(device="cpu"), a.T @ b, rtol=1e-12)


def test_transposed_operands_that_do_not_match_are_named_as_they_are_seen() -> None:
    x = cf.open(np.ones((3, 4)))
    with pytest.raises(errors.ArgumentError, match=r"shapes \(4, 3\) and \(4, 3\) do not match"):
        _ = x.T @ x.T


def test_gram_and_cov_read_once() -> None:
    x = noise((3000, 20), "f8")
    for fn, options in ((moments.gram, {}), (moments.cov, {"rowvar": False}), (moments.corrcoef, {"rowvar": False})):
        plan = cf.explain(fn, x, budget=100_000, device="cpu", **options)
        assert len(plan.grid) > 1
        assert plan.bytes_in == x.nbytes


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("ij,jk->ik", [(1 << 20, 1 << 18), (1 << 18, 1 << 19)]),
        ("bij,bjk->bik", [(100, 40_000, 50_000), (100, 50_000, 40_000)]),
        ("ijk,jkl->il", [(3000, 4000, 5000), (4000, 5000, 6000)]),
        ("ij,jk,kl->il", [(30_000, 40_000), (40_000, 50_000), (50_000, 10_000)]),
    ],
)
def test_planning_takes_no_time(text: str, shapes: list[tuple[int, ...]]) -> None:
    labels = notation.einsum(text, shapes)
    begin = time.perf_counter()
    plan = planned(labels, shapes, 64 << 30, machine=replace(STAGED, page=2 << 20, piece=8 << 20))
    print(text, plan.block, plan.depth, f"{time.perf_counter() - begin:.3f} s")  # to be read: no clock decides a test
    assert plan.memory.total <= plan.budget
    assert all(plan.block[a] >= 256 for a in plan.op.folded)


@pytest.mark.parametrize("chunks", [(128, 100), (1000, 7)])
def test_blocks_respect_chunks(chunks: tuple[int, int]) -> None:
    labels = notation.matmul([(900, 700), (700, 800)])
    specs = [ArraySpec("a", (900, 700), np.dtype("f4"), chunks=chunks), ArraySpec("b", (700, 800), np.dtype("f4"))]
    op, _ = contraction(
        labels, [s.shape for s in specs], [s.dtype for s in specs], [s.order for s in specs], "test", None, tf32=False
    )
    op = replace(op, outputs=(Output((Along(0), Along(1))),))
    plan = make_plan(op, specs, [ArraySpec("c", (900, 800), np.dtype("f4"), chunks=(90, 64))], STAGED, 1_500_000)
    assert plan.block[0] % 90 == 0
    assert plan.block[1] % 64 == 0 or plan.block[1] == 800


@given(kind=dtypes, budget=st.integers(4000, 60_000))
@settings(max_examples=examples(1), deadline=None)
def test_the_budget_is_kept(kind: str, budget: int) -> None:
    shapes = [(90, 120), (120, 70)]
    labels = notation.einsum("ij,jk->ik", shapes)
    with pytest.raises(errors.BudgetError) as caught:
        planned(labels, shapes, 1, kind)
    smallest = caught.value.smallest
    assert smallest is not None
    for limit in (smallest, max(budget, smallest)):
        plan = planned(labels, shapes, limit, kind)
        assert isinstance(plan.op, ProductNest)
        assert plan.memory.total <= limit


# -- Memory --------------------------------------------------------------------------------------------------


@checked
@pytest.mark.parametrize("contiguous", [False, True])
def test_panels_add_up(place: Place, contiguous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with panels of a few bytes, as blocks of gigabytes have them; and as a GPU needs its matrices."""
    monkeypatch.setattr(gemm, "PANEL", 64)
    if contiguous:
        monkeypatch.setattr(gemm, "_may_copy", lambda array: True)
    for kind in ("f4", "f2", "i4", "?", "c16"):
        a, b = noise((24, 40), kind, 1), noise((40, 30), kind, 2)
        for x, y in ((a, b), (a.copy("F"), b.copy("F"))):
            close(run(place, 16_000, linalg.matmul, x, y), np.matmul, a, b)
        close(run(place, 10_000, moments.gram, a), lambda x: x.conj().T @ x, a)
        for stack in (3, 11):
            a, b = noise((stack, 9, 30), kind, 1), noise((stack, 30, 7), kind, 2)
            close(run(place, 16_000, linalg.matmul, a, b), np.matmul, a, b)
    x = noise((30, 100), "c16")
    np.testing.assert_allclose(run(place, 40_000, moments.cov, x), np.cov(x), atol=1e-12)


@pytest.mark.parametrize(
    ("text", "kinds", "shapes"),
    [
        ("ij,jk->ik", ("f4", "f4"), [(1200, 300), (300, 1100)]),
        ("ij,jk->ki", ("f4", "f4"), [(1200, 300), (300, 1100)]),
        ("ij,jk->ik", ("f2", "f2"), [(1200, 300), (300, 1100)]),
        ("ij,jk->ik", ("?", "?"), [(1200, 300), (300, 1100)]),
        ("ij,jk->ik", ("f4", "f8"), [(1200, 300), (300, 1100)]),
        ("bij,bjk->bik", ("f8", "f8"), [(11, 200, 300), (11, 300, 250)]),
        ("bij,bjk->ibk", ("f8", "f8"), [(3, 400, 300), (3, 300, 350)]),
        ("ij,jk,kl->il", ("f8", "f8", "f8"), [(600, 300), (300, 700), (700, 500)]),
        ("ijk->ki", ("f4",), [(60, 70, 500)]),
    ],
)
def test_what_a_lane_holds_is_counted(text: str, kinds: tuple[str, ...], shapes: list[tuple[int, ...]]) -> None:
    labels = notation.einsum(text, shapes)
    arrays = [noise(shape, kind, i) for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))]
    op, kernel = contraction(
        labels, shapes, [a.dtype for a in arrays], [tuple(range(a.ndim)) for a in arrays], "test", None, tf32=False
    )
    box = tuple(slice(0, n) for n in op.extents)
    grid, index = Grid(op.extents, op.extents), (0,) * len(box)
    tracemalloc.start()
    try:
        value = kernel.fold(None, arrays, op, grid, index, box)
        value = kernel.fold(value, arrays, op, grid, index, box)
        kernel.finish(value, op, box)
        assert tracemalloc.get_traced_memory()[1] <= op.holds(op.extents) + 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", [CPU], ids=str)
def test_a_fold_that_runs_out_of_memory_is_halved(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tile stays as it was, so that the halves can be added to it."""
    a, b = noise((30, 900), "f8", 1), noise((900, 20), "f8", 2)
    real, calls = gemm.add_product, []

    def scarce(into: Any, left: Any, right: Any, **options: Any) -> None:
        calls.append(left.shape)
        if left.shape[-1] > 300:
            raise MemoryError("no more")
        real(into, left, right, **options)

    monkeypatch.setattr(product, "add_product", scarce)
    np.testing.assert_allclose(linalg.matmul(a, b, device=place.device(), budget=400_000), a @ b)
    assert len({shape[-1] for shape in calls}) > 1


# -- Bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: linalg.matmul(x, x), [r"\(4, 5\)", "axis 1 of the first has 5", "axis 0 of the second 4"]),
        (lambda x: linalg.matmul(x, 3), ["scalar", "dot"]),
        (lambda x: linalg.dot(x, x), [r"\(4, 5\)", "axis 1", "axis 0"]),
        (lambda x: linalg.vecdot(x, x[:, :3]), [r"\(4, 3\)", "axis 1"]),
        (lambda x: linalg.vecdot(x, x, axis=2), ["out of bounds"]),
        (lambda x: linalg.outer(x, x), ["tensordot"]),
        (lambda x: linalg.tensordot(x, x, 1), ["axis 1 of the first has 5"]),
        (lambda x: linalg.tensordot(x, x, 3), ["must be from 0 to"]),
        (lambda x: linalg.tensordot(x, x, ((0, 1), (0,))), ["2 axes of a and 1 of b"]),
        (lambda x: linalg.tensordot(x, x, ((0, 0), (0, 0))), ["twice"]),
        (lambda x: linalg.einsum("ij,jk", x, x), [r"\(4, 5\)", "axis 1 of the first", "axis 0 of the second"]),
        (lambda x: linalg.einsum("ii->i", x), ["'i' of 'ii'", "lengths 4 and 5"]),
        (lambda x: linalg.einsum("iij->i", x), ["3 letters", "2 dimensions"]),
        (lambda x: linalg.einsum("ii->i", x[None]), ["2 letters", "3 dimensions"]),
        (lambda x: linalg.einsum("ij", x, order="Z"), ["order"]),
        (lambda x: linalg.einsum("ij,jk", x), ["2 terms", "1 operand"]),
        (lambda x: linalg.einsum("ijk", x), ["2 dimensions"]),
        (lambda x: linalg.einsum("i->i", x), ["2 dimensions"]),
        (lambda x: linalg.einsum("ij->ik", x), ["'k'", "no operand"]),
        (lambda x: linalg.einsum("ij->ii", x), ["twice"]),
        (lambda x: linalg.einsum("i1", x), ["no letter"]),
        (lambda x: linalg.einsum("...j->j", x), ["ellipsis"]),
        (lambda x: moments.gram(x[0]), ["matrix"]),
        (lambda x: moments.cov(x[None]), ["one or two"]),
        (lambda x: moments.cov(x, y=x[:, :-1]), ["samples and y has", "as many"]),
        (lambda x: moments.cov(x, aweights=x[0, :-1] ** 2), ["one for each"]),
        (lambda x: moments.cov(x, aweights=x), ["aweights have shape", "one dimension"]),
        (lambda x: moments.cov(x, aweights=-(x[0] ** 2) - 1), ["aweights has a negative weight"]),
        (lambda x: moments.cov(x, fweights=np.zeros(x.shape[1], int)), ["sum to zero"]),
        (
            lambda x: linalg.matmul(x, x.T, precision="low"),  # type: ignore[arg-type]
            ["precision='low'", "tf32"],
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, words: list[str]) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        call(np.ones((4, 5)))
    for word in words:
        assert re.search(word, str(caught.value))


@pytest.mark.parametrize("fn", [linalg.matmul, linalg.dot, linalg.tensordot, linalg.vecdot])
def test_nothing_is_read_of_what_is_refused(fn: Any) -> None:
    a, b = CountingSource(np.ones((4, 5))), CountingSource(np.ones((3, 7)))
    with pytest.raises(errors.ArgumentError):
        fn(a, b, device="cpu")
    assert a.reads == b.reads == 0


DIAGONALS = ["ii->i", "ii", "ii->", "ij,jj->i", "iij->ij", "iji->j", "...ii->...i", "i...i", "iii", "aab,b->a"]


@pytest.mark.parametrize("text", DIAGONALS)
@pytest.mark.parametrize("stored", ["memory", "npy", "zarr", "lazy"])
def test_einsum_of_diagonals(text: str, stored: str, tmp_path: Path) -> None:
    arrays = []
    for place, term in enumerate(text.split("->")[0].split(",")):
        shape = (4,) * (len(term.replace("...", "")) + ("..." in term))
        x = np.random.default_rng(place).integers(-4, 5, shape).astype("f8")
        path = str(tmp_path / f"x{place}.{stored}")
        if stored == "npy":
            np.save(path, x)
        elif stored == "zarr":
            cf.copy(x, out=path, device="cpu")
        kinds = {"npy": path, "zarr": path, "lazy": cf.open(x)}
        arrays.append((x, kinds.get(stored, x)))
    got = cf.einsum(text, *(given for _, given in arrays), **({} if stored == "lazy" else {"device": "cpu"}))
    got = cf.compute(got, device="cpu") if stored == "lazy" else got
    np.testing.assert_array_equal(got, np.einsum(text, *(x for x, _ in arrays)))


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i8"])
def test_einsum_in_another_dtype(dtype: str) -> None:
    x = np.arange(-6, 6, dtype="i2").reshape(3, 4) * 1000
    for text in ("ij,kj->ik", "ij->j", "ij->ji"):
        given = [x] * (1 + ("," in text))
        for order in ("K", "F"):
            got = cf.einsum(text, *given, dtype=dtype, casting="unsafe", order=order, device="cpu")
            expected = np.einsum(text, *given, dtype=dtype, casting="unsafe").astype(dtype)  # of a view it takes none
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
        lazy = cf.einsum(text, *map(cf.open, given), dtype=dtype, casting="unsafe")
        np.testing.assert_array_equal(lazy.compute(device="cpu"), expected)


def test_einsum_with_lists_of_indices() -> None:
    a, b = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)
    for operands in ((a, [0, 1], b, [1, 2], [0, 2]), (a, [5, 3], b, [3, 5 + 9]), (a, [..., 1]), (a @ a.T, [0, 0], [0])):
        np.testing.assert_array_equal(cf.einsum(*operands, device="cpu"), np.einsum(*operands))


def test_subscripts_are_text_and_axes_numbers() -> None:
    x = np.ones((2, 2))
    with pytest.raises(errors.ArgumentTypeError, match="text such as"):
        linalg.einsum(x, x, device="cpu")
    with pytest.raises(errors.ArgumentTypeError, match="ints"):
        linalg.einsum(x, [0, 1.5], device="cpu")
    with pytest.raises(errors.ArgumentTypeError, match="float64 is not cast"):
        linalg.einsum("ij", x, dtype="i4", device="cpu")
    with pytest.raises(errors.ArgumentTypeError, match="astype before"):
        linalg.einsum("ij", x, dtype="f2", casting="unsafe", device="cpu")
    with pytest.raises(errors.ArgumentTypeError, match="int"):
        linalg.tensordot(x, x, 1.5, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentTypeError, match="int"):
        moments.cov(x, ddof=0.5, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentTypeError, match="fweights must be whole numbers"):
        moments.cov(x, fweights=np.full(x.shape[1], 1.5), device="cpu")


def test_too_few_samples_are_warned_of() -> None:
    with pytest.warns(RuntimeWarning, match="degrees of freedom"):
        got = moments.cov(np.ones((2, 1)), device="cpu")
    assert np.isnan(got).all()


def test_precision_is_accepted_where_it_means_nothing() -> None:
    x = noise((20, 20), "f4")
    np.testing.assert_array_equal(
        linalg.matmul(x, x, precision="tf32", device="cpu"), linalg.matmul(x, x, device="cpu")
    )


# -- Precision -----------------------------------------------------------------------------------------------


class Rounding(NumpyDevice):
    """Says when products may be rounded."""

    def __init__(self) -> None:
        super().__init__(lanes=1)
        self.asked, self.open = 0, False

    @contextmanager
    def rounding(self) -> Iterator[None]:
        self.asked, self.open = self.asked + 1, True
        yield
        self.open = False


@pytest.mark.parametrize("precision", ["highest", "tf32"])
def test_a_device_is_asked_to_round_for_as_long_as_the_run(precision: Any) -> None:
    a, device = noise((40, 30), "f4", 1), Rounding()
    linalg.matmul(a, a.T, precision=precision, device=device)
    moments.gram(a, precision=precision, device=device)
    assert (device.asked, device.open) == ((2, False) if precision == "tf32" else (0, False))


@pytest.mark.gpu
@pytest.mark.parametrize("product", ["matmul", "gram"])
def test_tf32_keeps_eleven_bits_of_factors_and_holds_for_its_run_alone(product: str) -> None:
    a = noise((512, 384), "f4", 1)
    exact = a.astype("f8").T @ a.astype("f8")
    scale = np.abs(a).astype("f8").T @ np.abs(a).astype("f8")

    def error(precision: Any) -> float:
        given = (np.ascontiguousarray(a.T), a) if product == "matmul" else (a,)
        got = getattr(moments if product == "gram" else linalg, product)(*given, precision=precision, device="cuda")
        return float((np.abs(got - exact) / scale).max())

    before, rounded, after = error("highest"), error("tf32"), error("highest")
    assert before == after < 2**-20
    assert 2**-18 < rounded < 2**-9, "factors have 10 bits behind the point"


def test_a_product_in_memory_says_that_it_has_a_single_slot() -> None:
    """With several slots, lanes would stand in the way of BLAS: the plan leaves them out, and says so."""
    machine = replace(STAGED, staged=False, lanes=4, depths=(4, 2, 1), cache=12 << 20, read=8e9, overhead=1e-4)
    matrix, vector = np.zeros((5000, 5000), "f4"), np.ones(5000, "f4")
    plan = cf.explain(linalg.matmul, matrix, vector, budget="1GB", device=NumpyDevice(machine=machine))
    assert isinstance(plan, Plan)
    assert (plan.depth, len(plan.grid) > 1) == (1, True)
    assert "a single slot: one block is read" in str(plan)


def test_where_memory_is_shared_less_of_it_is_worth_a_little_time() -> None:
    shapes = [(3840, 3840), (3840, 3840)]
    plan = planned(notation.matmul(shapes), shapes, 16 << 30, machine=rates.cpu(2))
    assert plan.budget == 16 << 30
    most = plan.memory.total
    faster = matmul_search._fastest(
        PlanProblem(plan.op, plan.operands, plan.outputs, plan.machine, 16 << 30, 0.0, 0, frozenset(), (0, 1, 2)),
        [3840] * 3,
        [[1] * 3],
    )
    best = min((p for _, p in faster), key=lambda p: p.estimate.seconds)
    assert most <= 3 * best.memory.total // 4
    assert plan.estimate.seconds <= matmul_search.SHARED_LESS * best.estimate.seconds


def test_the_operands_that_do_not_match_are_numbered() -> None:
    arrays = [np.ones(n) for n in (2, 3, 4, 5)]
    for text, words in (
        ("a,a,b,c->abc", "of the first operand has 2 elements and axis 0 of the second 3"),
        ("a,b,b,c->abc", "of the second operand has 3 elements and axis 0 of the third 4"),
        ("a,b,c,c->abc", "of the third operand has 4 elements and axis 0 of the 4th 5"),
    ):
        with pytest.raises(errors.ArgumentError, match=words):
            cf.einsum(text, *arrays, device="cpu")


@pytest.mark.parametrize("budget", [None, 3000])
def test_a_sum_of_bools_is_whether_any_is_true(budget: int | None) -> None:
    x = np.random.default_rng(0).random((40, 600)) < 0.001
    for text in ("ij->i", "ij->j", "ij->"):
        got, expected = cf.einsum(text, x, budget=budget, device="cpu"), np.einsum(text, x)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "right",
    [
        lambda b: np.broadcast_to(b[:1, :1], b.shape),
        lambda b: b[::-1],
        lambda b: np.repeat(b, 2, axis=1)[:, ::2],
    ],
    ids=["broadcast", "backwards", "every second"],
)
def test_arrays_that_blas_does_not_take_are_copied_within_the_budget(right: Any) -> None:
    """NumPy copies such a factor as a whole, to memory that nobody sees."""
    a, plain = np.ones((40, 20_000), "f4"), np.random.default_rng(0).random((20_000, 100), "f4")
    b = right(plain)
    plans = [cf.explain(linalg.matmul, a, each, budget=2_000_000, device="cpu") for each in (plain, b)]
    assert isinstance(plans[0], Plan)
    assert isinstance(plans[1], Plan)
    assert plans[0].memory.inputs == 0 < plans[1].memory.inputs
    np.testing.assert_allclose(linalg.matmul(a, b, budget=2_000_000, device="cpu"), a @ b, rtol=1e-3)


@pytest.mark.parametrize(
    ("text", "shapes", "wanted"),
    [
        ("abi,abj->ij", [(256, 512, 512)] * 2, {"b": 512}),
        ("ki,kj->ij", [(131_072, 512)] * 2, {"i": 512, "j": 512}),
    ],
)
def test_blocks_for_blas_are_runs_and_leave_no_narrow_rest(
    text: str, shapes: list[tuple[int, ...]], wanted: dict[str, int]
) -> None:
    """A block that is no run is copied first, and BLAS takes a strip of a few columns as long as a whole one."""
    arrays = [np.empty(shape, "f4") for shape in shapes]  # which nobody reads
    plan = cf.explain(cf.einsum, text, *arrays, budget="128MB", device="cpu")
    sides = dict(zip(notation.einsum(text, shapes).extents(shapes, "einsum"), plan.block, strict=True))
    assert all(sides[label] == n for label, n in wanted.items())


@pytest.mark.parametrize("budget", [5_000, 10_000])
def test_a_budget_of_a_few_lines_makes_no_block_of_one_element(budget: int) -> None:
    """Of shapes between the shortest and the longest sides many fit, where the longest do not."""
    x = np.ones((300, 300))
    plan = cf.explain(linalg.matmul, CountingSource(x), x, budget=budget, device="cpu")
    assert isinstance(plan, Plan)
    assert len(plan.grid) < 10_000


@pytest.mark.parametrize("budget", [80_000, 90_000])
def test_where_whole_sums_leave_no_room_for_tiles_they_are_cut(budget: int, tmp_path: Path) -> None:
    """Blocks of one element of the result would decode each chunk for each of 90,000 blocks."""
    zarr.create_array(tmp_path / "x.zarr", shape=(300, 300), chunks=(64, 64), dtype="f8")
    x = cf.open(tmp_path / "x.zarr")
    plan = cf.explain(linalg.matmul, x, x, budget=budget, device="cpu")
    assert isinstance(plan, Plan)
    assert len(plan.grid) < 10_000


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("tij,i->t", [(4,)]),
        ("i,tij->t", [(4,)]),
        ("tij,ij->t", [(4, 5)]),
        ("tij,ji->t", [(5, 4)]),
        ("tij,tij->ij", [(6, 4, 5)]),
        ("tij,t,j->i", [(6,), (5,)]),
        ("...j,j->...", [(5,)]),
        ("tij,i->", [(4,)]),
        ("tij,ti->ti", [(6, 1)]),
    ],
)
@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f4", "f8"), ("i2", "i4"), ("?", "f8"), ("c8", "f4")])
def test_sums_of_products_of_an_expression_read_it_once(
    text: str, others: list[tuple[int, ...]], dtypes: tuple[str, str]
) -> None:
    """It is not stored for a product that needs each of its elements once."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 if dtypes[0] == "?" else 100, (6, 4, 5)).astype(dtypes[0])
    given = [rng.integers(1, 9, shape).astype(dtypes[1]) for shape in others]
    changed = np.logical_not if dtypes[0] == "?" else np.negative

    def of(y: Any) -> Any:
        return np.einsum(text, *([given[0], y] if text.startswith("i,") else [y, *given]))

    expression = of(changed(cf.open(x)))
    expected = of(changed(x))
    got = expression.compute(budget="1MB", device="cpu")
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert len(cf.explain(expression, budget="1MB", device="cpu").passes) == 1


def test_products_that_read_an_expression_several_times_or_add_bools_are_products() -> None:
    x = np.random.default_rng(0).random((6, 5)) - 0.5
    lazy = cf.open(x)
    for made, expected in (
        ((lazy + 1) @ np.ones((5, 2)), (x + 1) @ np.ones((5, 2))),
        (np.einsum("ij,j->i", lazy > 0, np.ones(5, "?")), np.einsum("ij,j->i", x > 0, np.ones(5, "?"))),
        (np.einsum("ij,i->ji", lazy + 1, np.ones(6)), (x + 1).T),
        (np.vdot(lazy[0] * 1j, lazy[1]), np.vdot(x[0] * 1j, x[1])),
        ((lazy + 1) @ (lazy[0] + 2), (x + 1) @ (x[0] + 2)),
    ):
        np.testing.assert_allclose(made.compute(device="cpu"), expected)
    with pytest.raises(errors.ArgumentError, match="do not match"):
        (lazy + 1) @ np.ones(4)

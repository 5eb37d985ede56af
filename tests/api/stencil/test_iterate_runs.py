"""Stencils applied many times: traffic, budgets, stores, failures and arguments."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support import budgets
from support.budgets import MB, SLACK, DriverMemory, traced
from support.devices import Place, at_work, checked, checking, on_cpu_and_gpu, same
from support.stencils import box, one_by_one

import chunkflow as cf
from chunkflow import devices
from chunkflow.api.stencil import iterate
from chunkflow.api.stencil.steps_per_pass import PATIENCE, Pacing
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError, ResultError
from chunkflow.kernels.stencil.iterate import Stepping
from chunkflow.testing import CountingSource, FailingArray

on_disk, bare_context = budgets.on_disk, budgets.bare_context

# -- Traffic -------------------------------------------------------------------------------------------------


def heat(u: Any) -> Any:
    """A step of the heat equation, explicit in time."""
    found = u.copy()
    inner = u[1:-1, 1:-1, 1:-1]
    found[1:-1, 1:-1, 1:-1] = inner + u.dtype.type(0.1) * (
        u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1]
        + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2] - 6 * inner
    )  # fmt: skip
    return found


class Traffic:
    """Bytes read and written by all runs."""

    wants_spans = False

    def __init__(self) -> None:
        self.nbytes = self.runs = 0

    def started(self, plan: Any, run: Any) -> None:
        self.runs += 1

    def span(self, *_: Any) -> None: ...
    def noted(self, text: str) -> None: ...
    def finished(self, error: Any, peak: int) -> None:
        assert error is None

    def landed(self, nbytes_in: int, nbytes_out: int) -> None:
        self.nbytes += nbytes_in + nbytes_out


def slow_disk() -> Any:
    """A device whose data come from a slow disk, in slabs."""
    return checking("eager", staged=True, read=1e9, write=1e9, piece=64 << 10)


@pytest.mark.parametrize("boundary", ["nearest", "periodic", 0.0, "none"])
def test_twenty_steps_take_a_third_of_twenty_passes_traffic(boundary: Any) -> None:
    x = np.random.default_rng(0).random((300, 24, 24), "f4")
    options: dict[str, Any] = {"depth": 1, "boundary": boundary, "budget": "4MB"}
    with cf.observing(single := Traffic()):
        expected = one_by_one(20, heat, CountingSource(x), device=slow_disk(), **options)
    plan = cf.iteration_plan(heat, CountingSource(x), iterations=20, device=slow_disk(), **options)
    source = CountingSource(x)
    with cf.observing(several := Traffic()):
        got = cf.map_overlap(heat, source, iterations=20, device=slow_disk(), **options)
    same(got, expected)
    assert several.nbytes == plan.bytes_read + plan.bytes_written
    assert several.runs == plan.passes < single.runs == 20
    assert sum(plan.steps) == 20
    assert several.nbytes <= single.nbytes / 3
    assert source.bytes_read <= plan.plans[0].bytes_in + 400_000  # and what the trials read


def test_the_model_takes_few_steps_where_halos_would_outweigh_blocks() -> None:
    x = CountingSource(np.zeros((200, 200, 200), "f4"))
    many = cf.iteration_plan(heat, x, depth=1, boundary=0, iterations=24, budget="80MB", device=slow_disk())
    few = cf.iteration_plan(heat, x, depth=1, boundary=0, iterations=24, budget="1MB", device=slow_disk())
    assert few.steps[0] < many.steps[0]
    assert "24 iterations in" in str(many)
    assert all(p.memory.total <= 1_000_000 for p in few.plans)


def test_the_search_ends_after_a_few_numbers_of_steps_that_are_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, passes = [], Pacing._passes

    def noted(self: Pacing, iterations: int, steps: int) -> Any:
        tried.append(steps)
        return passes(self, iterations, steps)

    monkeypatch.setattr(Pacing, "_passes", noted)
    x = CountingSource(np.zeros((200, 200, 200), "f4"))
    plan = cf.iteration_plan(heat, x, depth=1, boundary=0, iterations=200, budget="1MB", device=slow_disk())
    behind = [steps for steps in tried if steps > plan.steps[0]]
    assert len(behind) <= PATIENCE
    assert max(tried) < 200


def test_more_steps_are_predicted_to_compute_more() -> None:
    x = CountingSource(np.zeros((64, 64, 64), "f4"))
    options: dict[str, Any] = {"depth": 2, "boundary": 0, "iterations": 24, "budget": "3MB", "chunks": (16, 16, 16)}
    plans = [cf.iteration_plan(heat, x, steps_per_pass=k, device=slow_disk(), **options) for k in (1, 2, 4)]
    work = [sum(p.traffic.compute for p in plan.plans) for plan in plans]
    assert work[0] < work[1] < work[2]
    assert plans[0].bytes_written == 2 * plans[1].bytes_written == 4 * plans[2].bytes_written


def test_a_periodic_array_is_wrapped_around_once_at_most() -> None:
    x = np.random.default_rng(0).random((7, 4))
    plan = cf.iteration_plan(
        lambda b: box(b, ((2, 1), (0, 0))), x, depth={0: (2, 1)}, boundary="periodic", iterations=9, steps_per_pass=9,
        device="cpu",
    )  # fmt: skip
    assert plan.steps == (3, 3, 3)


def test_no_more_is_wrapped_around_than_there_is() -> None:
    specs = [ArraySpec(name, (4, 6), np.dtype("f8")) for name in "xw"]
    assert Stepping.of(specs, [1, 0], "periodic").most == 4
    assert Stepping.of(specs, [1, 2], "periodic").most == 3
    assert Stepping.of(specs, [{1: (0, 3)}, 1], ["periodic", {1: "periodic"}]).most == 2
    assert Stepping.of(specs, [1, 1], ["periodic", "nearest"]).most == 1
    assert Stepping.of(specs, 1, "mirror").most == 0


def test_coefficients_without_a_halo_wrap_around_with_the_array() -> None:
    x, w = np.random.default_rng(0).random((2, 20, 3))
    options: dict[str, Any] = {
        "depth": [{0: 1}, 0],
        "boundary": ["periodic", "none"],
        "iterations": 12,
        "device": "cpu",
    }

    def fn(block: Any, w: Any) -> Any:
        found = box(block, ((1, 1), (0, 0)))
        found[1:-1] *= w
        return found

    assert cf.iteration_plan(fn, x, w, steps_per_pass=6, **options).steps == (6, 6)
    got = cf.map_overlap(fn, x, w, steps_per_pass=6, **options)
    wide = np.arange(-1, 21) % 20
    for _ in range(12):
        x = fn(x[wide], w)[1:-1]
    same(got, x)


def test_an_array_without_a_halo_along_an_axis_does_not_clip_the_others_there() -> None:
    x, w = np.random.default_rng(0).random((2, 12, 9))
    options: dict[str, Any] = {"depth": [1, {1: 1}], "boundary": ["nearest", {1: "nearest"}], "device": "cpu"}

    def fn(block: Any, w: Any) -> Any:
        found = box(block, ((1, 1), (1, 1)))
        found[1:-1] *= w
        return found

    expected = x
    for _ in range(4):
        expected = fn(np.pad(expected, 1, mode="edge"), np.pad(w, ((0, 0), (1, 1)), mode="edge"))[1:-1, 1:-1]
    same(one_by_one(4, fn, x, w, chunks=(5, -1), **options), expected)
    same(cf.map_overlap(fn, x, w, chunks=(5, -1), iterations=4, steps_per_pass=2, **options), expected)


def test_coefficients_that_say_nothing_of_what_wraps_around_make_it_one_step_a_pass() -> None:
    x, w = np.random.default_rng(0).random((2, 20))
    options: dict[str, Any] = {"depth": 1, "boundary": ["periodic", "nearest"], "device": "cpu"}
    plan = cf.iteration_plan(lambda b, w: box(b * w, ((1, 1),)), x, w, iterations=3, steps_per_pass=3, **options)
    assert plan.steps == (1, 1, 1)


# -- Memory, files and failures ------------------------------------------------------------------------------


def blur(block: Any) -> Any:
    return box(block, ((1, 1), (1, 1)))


@cache
def blurred_six_times(folder: Path) -> np.ndarray:
    return one_by_one(6, blur, np.load(folder / "x.npy"), depth=1, boundary="nearest", device="cpu")


@pytest.mark.parametrize(("kind", "megabytes"), [("npy", 4), ("zarr", 4), ("npy", 16), ("zarr", 64)])
@pytest.mark.parametrize("steps", [None, 1, 4])
def test_what_is_allocated_stays_within_the_budget(
    kind: str, steps: int | None, megabytes: int, on_disk: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"depth": 1, "boundary": "nearest", "iterations": 6, "steps_per_pass": steps}
    source = on_disk / f"x.{kind}"
    cf.map_overlap(blur, source, device="cpu", out=tmp_path / f"warm.{kind}", budget=megabytes * MB, **options)
    gc.collect()
    with cf.Budget(megabytes * MB) as budget, traced() as peak:
        got = cf.map_overlap(blur, source, device="cpu", out=tmp_path / f"y.{kind}", **options)
        measured = peak()
    same(got[...], blurred_six_times(on_disk))
    assert measured <= budget.limit + SLACK
    assert 0 < budget.peak <= budget.limit


@pytest.mark.gpu
@pytest.mark.parametrize("megabytes", [64, 256, 1000])
@pytest.mark.parametrize("steps", [None, 1, 5])
def test_what_the_driver_gives_stays_within_the_budget(steps: int | None, megabytes: int, bare_context: int) -> None:
    x = np.random.default_rng(0).random((1 << 16, 1024), "f4")
    memory = DriverMemory(bare_context)
    libraries = devices.resolve("cuda").reserve  # what other tests have had them take
    with cf.Budget(megabytes * MB + libraries) as budget, memory.sampled():
        cf.map_overlap(blur, x, depth=1, boundary="mirror", iterations=10, steps_per_pass=steps, device="cuda")
    assert 0 < memory.taken <= budget.limit
    assert budget.peak <= budget.limit


@checked
def test_a_budget_is_kept_by_every_pass(place: Place) -> None:
    x = CountingSource(np.random.default_rng(0).random((60, 12)))
    with cf.Budget(60_000) as budget:
        cf.map_overlap(blur, x, depth=1, boundary="reflect", iterations=7, device=place.device())
    assert 0 < budget.peak <= 60_000


def test_a_budget_too_small_for_one_step_says_what_would_do() -> None:
    x = CountingSource(np.zeros((40, 40, 40)))
    with pytest.raises(BudgetError) as caught:
        cf.map_overlap(
            np.copy, x, depth=10, boundary="nearest", iterations=3, budget=20_000, dtype="f8", workspace=0.0,
            device=checking("eager", staged=True),
        )  # fmt: skip
    assert caught.value.smallest is not None


@pytest.mark.parametrize("out", ["y.npy", "y.zarr", "group.zarr/y"])
def test_passes_leave_nothing_beside_the_output(out: str, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "group.zarr")
    x, seen = np.random.default_rng(0).random((40, 6)), set()

    def fn(block: Any) -> Any:
        seen.update(os.listdir(tmp_path))
        return blur(block)

    got = cf.map_overlap(
        fn, x, depth=1, boundary="nearest", iterations=6, steps_per_pass=2, out=tmp_path / out, device="cpu"
    )
    same(got[...], one_by_one(6, blur, x, depth=1, boundary="nearest", device="cpu"))
    assert any(".steps." in name for name in seen)
    assert sorted(os.listdir(tmp_path)) == sorted({"group.zarr", out.split("/")[0]})


def test_a_chunked_output_gets_the_chunks_of_its_input(tmp_path: Path) -> None:
    x = zarr.create_array(tmp_path / "x.zarr", shape=(40, 24), chunks=(10, 8), dtype="f8")
    x[...] = np.random.default_rng(0).random(x.shape)
    options: dict[str, Any] = {"depth": 1, "boundary": "nearest", "device": "cpu", "budget": "2MB"}
    got = cf.map_overlap(blur, x, iterations=4, steps_per_pass=2, out=tmp_path / "y.zarr", **options)
    assert got.chunks == (10, 8)
    same(got[...], one_by_one(4, blur, x[...], **options))
    more = cf.map_overlap(blur, x, iterations=4, chunks=(20, -1), out=tmp_path / "z.zarr", **options)
    assert more.chunks == (20, 24)


def test_host_memory_that_is_short_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterate, "available_memory", lambda: 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x, seen = np.random.default_rng(0).random((40, 6)), set()

    def fn(block: Any) -> Any:
        seen.update(os.listdir(tmp_path))
        return blur(block)

    got = cf.map_overlap(fn, x, depth=1, boundary=0, iterations=5, steps_per_pass=2, device="cpu")
    same(got, one_by_one(5, blur, x, depth=1, boundary=0, device="cpu"))
    assert seen
    assert not os.listdir(tmp_path)


@on_cpu_and_gpu
@pytest.mark.parametrize("out", ["memory", "y.npy", "y.zarr"])
@pytest.mark.parametrize("kind", ["error", "interrupt", "read", "write"])
def test_what_fails_in_the_middle_leaves_nothing(place: Place, kind: str, out: str, tmp_path: Path) -> None:
    x, lock, calls = np.random.default_rng(0).random((400, 30)), threading.Lock(), [0]
    weight: Any = np.ones_like(x)
    if kind == "read":
        weight = FailingArray(weight, after=40)
    target: Any = None if out == "memory" else tmp_path / out
    if kind == "write":
        target = FailingArray(np.empty_like(x), after=3)

    def fn(block: Any, weight: Any) -> Any:
        with lock:
            calls[0] += 1
            if calls[0] == 60 and kind == "error":
                raise ZeroDivisionError("a bad block")
            if calls[0] == 60 and kind == "interrupt":
                signal.raise_signal(signal.SIGINT)
        return blur(block) * weight

    errors = {"error": ZeroDivisionError, "interrupt": KeyboardInterrupt, "read": cf.ReadError, "write": cf.WriteError}
    before, threads = x.copy(), at_work()
    with pytest.raises(errors[kind]):
        cf.map_overlap(
            fn, x, weight, depth=1, boundary="nearest", iterations=8, steps_per_pass=2, chunks=(20, -1), out=target,
            budget=place.budget(400_000), device=place.device(),
        )  # fmt: skip
    assert not os.listdir(tmp_path)
    assert at_work() == threads
    same(x, before)


# -- Arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"iterations": 0}, ArgumentError, "iterations=0 must be at least 1"),
        ({"iterations": 2.0}, ArgumentTypeError, "iterations must be an int"),
        ({"iterations": True}, ArgumentTypeError, "iterations must be an int"),
        ({"iterations": 3, "steps_per_pass": 0}, ArgumentError, "steps_per_pass=0"),
        ({"iterations": 3, "trim": False}, ArgumentError, "trim=True"),
        ({"iterations": 3, "depth": {0: 7}, "boundary": "reflect"}, ArgumentError, "7 along axis 0.*6"),
        ({"iterations": 3, "boundary": "wrap"}, ArgumentError, "'wrap' is none of"),
    ],
)
def test_bad_arguments_are_refused_before_a_byte_is_read(options: Any, error: Any, words: str) -> None:
    source = CountingSource(np.zeros((6, 4)))
    with pytest.raises(error, match=words):
        cf.map_overlap(np.negative, source, device="cpu", **({"depth": 1} | options))
    assert source.bytes_read == 0


def test_what_cannot_be_stepped_is_refused(tmp_path: Path) -> None:
    x = np.zeros((6, 4))
    options: dict[str, Any] = {"depth": 1, "iterations": 2, "device": "cpu"}
    with pytest.raises(ArgumentError, match="first array has the shape"):
        cf.map_overlap(np.add, x[:1], x, **options)
    with pytest.raises(ResultError, match="tuple"):
        cf.map_overlap(lambda b: (b, b), x, **options)
    with pytest.raises(ResultError, match="expected"):
        cf.map_overlap(lambda b: b[1:-1], x, boundary=0, **options)
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.map_overlap(np.copy, x, out=x, **options)
    with pytest.raises(ArgumentError, match="block_id"):
        cf.map_overlap(lambda b, block_id: b, x, steps_per_pass=2, **options)
    options["budget"] = "1MB"  # not a share of what is free, which other processes change between the two
    assert cf.explain(cf.map_overlap, np.copy, x, **options) == cf.iteration_plan(np.copy, x, **options)
    with pytest.raises(ArgumentError, match="one pass"):
        cf.iteration_plan(np.copy, x, depth=1, iterations=1)


def test_blocks_that_are_asked_for_come_one_step_at_a_time() -> None:
    seen = []

    def fn(block: Any, block_id: tuple[int, ...]) -> Any:
        seen.append(block_id)
        return block * 2

    got = cf.map_overlap(fn, np.ones((8, 2)), depth=1, iterations=3, chunks=(4, -1), device="cpu")
    same(got, np.full((8, 2), 8.0))
    assert seen.count((1, 0)) == 3


def test_one_iteration_is_as_ever() -> None:
    x = np.random.default_rng(0).random((30, 5))
    options: dict[str, Any] = {"depth": 1, "boundary": 0, "device": "cpu"}
    same(cf.map_overlap(blur, x, iterations=1, steps_per_pass=4, **options), cf.map_overlap(blur, x, **options))
    assert cf.explain(cf.map_overlap, blur, x, iterations=1, **options).memory.total > 0


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_arrays_of_few_elements_or_none(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 2, "i4")
    got = cf.map_overlap(lambda b: b * 1.5, x, depth=1, boundary="nearest", iterations=3, device="cpu")
    same(got, x * 1.5**3)


def test_a_depth_of_nothing_in_place_is_a_map_over_and_over() -> None:
    x = np.arange(12.0).reshape(3, 4)
    expected = x * 8
    assert cf.map_overlap(lambda b: b * 2, x, depth=0, iterations=3, steps_per_pass=1, out=x, device="cpu") is x
    same(x, expected)


def test_scalars_are_passed_on_to_every_step() -> None:
    x = np.arange(12.0)
    got = cf.map_overlap(lambda a, b, c: b * a + c, 2.0, x, 1, depth=1, boundary=0, iterations=3, device="cpu")
    same(got, x * 8 + 7)

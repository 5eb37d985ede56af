"""The budget is kept, in what is measured and not only in what is planned; it is also used."""

from __future__ import annotations

import contextvars
import gc
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support import budgets
from support.budgets import SLACK, DriverMemory, traced
from support.devices import MODES, Place, at_work, checking, everywhere, machine, on_cpu_and_gpu, same

import chunkflow as cf
from chunkflow import errors
from chunkflow.core.machine import Machine
from chunkflow.devices import rates
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine.trace import observing
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.testing import CountingSource, filled

MB = budgets.MB
on_disk, bare_context = budgets.on_disk, budgets.bare_context

# -- What a budget says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "limit"),
    [(1000, 1000), ("4GB", 4 * 10**9), ("4GiB", 4 * 2**30), ("1.5 kB", 1500), ("64 mib", 64 << 20), (np.int64(7), 7)],
)
def test_bytes_as_people_write_them(written: Any, limit: int) -> None:
    assert cf.Budget(written).limit == limit


@pytest.mark.parametrize("share", ["50%", 0.5])
def test_a_share_is_of_what_is_free_when_it_is_first_used(share: Any) -> None:
    budget = cf.Budget(share)
    with pytest.raises(errors.ArgumentTypeError, match="no run has used a device yet"):
        budget.limit  # noqa: B018
    device = NumpyDevice(lanes=1)
    device.free_memory = lambda: 40 * MB  # type: ignore[method-assign]
    cf.map(np.negative, np.ones(1000), budget=budget, device=device)
    assert budget.limit == 20 * MB


def test_what_stays_with_the_process_is_said() -> None:
    class Card(NumpyDevice):
        reserve = 0

    device = Card(lanes=1)
    with cf.Budget("10MB") as budget:
        cf.map(np.negative, np.ones(1000), device=device)
    assert budget.kept == 0
    assert repr(budget) == "Budget('10MB')"
    device.reserve = 2_000_000
    assert budget.kept == 2_000_000
    assert "of which 2.00 MB stay with libraries until the process ends" in repr(budget)


def test_the_default_is_four_fifths_of_what_is_free() -> None:
    device = NumpyDevice(lanes=1)
    found = []
    for free in (40 * MB, 41 * MB, 40.3 * MB):
        device.free_memory = lambda free=free: int(free)  # type: ignore[method-assign,misc]
        found.append(cf.explain(np.negative, np.ones(1000), device=device).budget)
        assert 0.968 * 0.8 * free < found[-1] <= 0.8 * free
    assert found[0] == found[2] < found[1], "and the same for runs that follow one another"


@pytest.mark.parametrize("bad", [0, -1, "", "4 apples", "GB", "-1MB", "0MB", 0.0, 1.5, "101%", float("nan")])
def test_what_is_no_budget_is_refused(bad: Any) -> None:
    with pytest.raises(errors.ArgumentError):
        cf.Budget(bad)


@pytest.mark.parametrize("bad", [True, [1], 1j, object()])
def test_what_is_no_number_is_refused(bad: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError):
        cf.Budget(bad)


# -- Shared by the runs of a `with` block --------------------------------------------------------------------


def rows() -> np.ndarray:
    return filled((400, 500), "f4")


@everywhere
def test_every_run_inside_shares_it(place: Place) -> None:
    x, device = CountingSource(rows()), place.device()
    limit = place.budget(400_000)  # once: what libraries have taken may grow when they are first used
    with cf.Budget(limit) as budget:
        assert budget.peak == 0
        assert cf.explain(np.negative, x, device=device).budget <= budget.limit == limit
        same(cf.map(np.negative, x, device=device), -rows())
        after_one = budget.peak
        same(cf.map(np.sqrt, x, device=device, dtype="f4"), np.sqrt(rows()))
        assert 0 < after_one <= budget.peak <= budget.limit
    assert 0 < budget.peak <= budget.limit


@on_cpu_and_gpu
def test_a_run_may_be_given_less_but_not_more_than_the_shared_budget(place: Place) -> None:
    x, device = rows(), place.device()
    with cf.Budget(place.budget(400_000)):
        assert cf.explain(np.negative, x, device=device, budget=place.budget(100_000)).budget <= place.budget(100_000)
        assert cf.explain(np.negative, x, device=device, budget="64GB").budget <= place.budget(400_000)


def test_budgets_nest() -> None:
    x = rows()

    def budget() -> int:
        return cf.explain(np.negative, x, device="cpu").budget

    with cf.Budget("9MB"):
        assert budget() == 9 * MB
        with cf.Budget("2MB"):
            assert budget() == 2 * MB
        assert budget() == 9 * MB
    assert budget() not in (2 * MB, 9 * MB)


def test_a_budget_may_be_entered_within_itself_or_says_that_it_may_not() -> None:
    shared = cf.Budget("9MB")

    def budget_afterwards() -> int:
        try:
            with shared, shared:
                pass
        except cf.ChunkflowError:
            pass
        return cf.explain(np.negative, rows(), device="cpu").budget

    # In a context of its own: what is not left here must not follow the other tests.
    assert contextvars.copy_context().run(budget_afterwards) != 9 * MB, "it is left as often as it was entered"


def test_it_is_left_also_by_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), cf.Budget("9MB"):
        cf.map(lambda x: 1 / 0, rows(), device="cpu")
    assert cf.explain(np.negative, rows(), device="cpu").budget != 9 * MB


def test_it_may_be_passed_by_hand_and_used_again() -> None:
    budget = cf.Budget("9MB")
    for _ in range(3):
        same(cf.map(np.negative, rows(), budget=budget, device="cpu"), -rows())
        budget.close()
        budget.close()
    with budget:
        same(cf.map(np.negative, rows(), device="cpu"), -rows())
    assert budget.peak <= 9 * MB


@everywhere
def test_threads_that_share_it_take_turns(place: Place) -> None:
    device, got = place.device(), {}
    with cf.Budget(place.budget(300_000)) as budget:

        def run(n: int) -> None:
            got[n] = cf.map(lambda x: x + n, CountingSource(rows()), budget=budget, device=device, dtype="f4")

        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert budget.peak <= budget.limit
    for n in range(4):
        same(got[n], rows() + np.float32(n))


def test_a_thread_of_its_own_has_no_part_in_the_context() -> None:
    found = []
    with cf.Budget("9MB"):
        thread = threading.Thread(target=lambda: found.append(cf.explain(np.negative, rows(), device="cpu").budget))
        thread.start()
        thread.join()
    assert found != [9 * MB]


# -- Kept: what is measured is within it ---------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A function with the options that it needs, and whether it takes libraries with workspaces of their own."""

    name: str
    fn: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    libraries: bool = False
    results: int = 1
    operands: int = 1


WHOLE_ROWS = {"chunks": ("auto", -1)}
WORKS = [
    Work("temporaries", lambda x: np.sqrt(x * x + x * x) * 2 - x),
    Work("more temporaries", lambda x: sum([x * n for n in range(9)], x)),
    Work("astype", lambda x: x.astype("f2")),
    Work("wider", lambda x: x.astype("c16")),
    Work("sort", lambda x: np.sort(x, axis=-1), WHOLE_ROWS),
    Work("cumsum", lambda x: np.cumsum(x, axis=-1), WHOLE_ROWS),
    Work("mean", lambda x: x.mean(axis=-1), {"drop_axis": 1}),
    Work("several results", lambda x: (x + 1, x > 0, x.astype("f8")), results=3),
    Work("several operands", lambda a, b: a * b + a, operands=2),
    Work("new axis", lambda x: np.stack([x, -x]), {"new_axis": 0}),
    Work("fft", lambda x: np.fft.fft(x, axis=-1), WHOLE_ROWS, libraries=True),
    Work("product", lambda x: x @ x[:1].T @ x[:1], WHOLE_ROWS | {"dtype": "f4"}, libraries=True),
]
BUDGETS = [1, 4, 16, 64]
"""In MB, on the CPU."""


@pytest.mark.parametrize("megabytes", BUDGETS)
@pytest.mark.parametrize("work", WORKS, ids=lambda w: w.name)
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_what_is_allocated_stays_within_the_budget(
    kind: str, work: Work, megabytes: int, on_disk: Path, tmp_path: Path
) -> None:
    source = on_disk / f"x.{kind}"
    out = tuple(tmp_path / f"{n}.npy" for n in range(work.results))
    options = {"device": "cpu", "out": out if work.results > 1 else out[0]} | work.options
    cf.map(np.negative, source, chunks=(20, -1), device="cpu")  # imports, and the threads that zarr keeps
    gc.collect()  # zarr's tasks hold chunks in cycles: the collector starts from the same point each time
    with cf.Budget(megabytes * MB) as budget, traced() as peak:
        cf.map(work.fn, *[source] * work.operands, **options)
        measured = peak()
    assert measured <= budget.limit + SLACK
    assert 0 < budget.peak <= budget.limit


@pytest.mark.parametrize("megabytes", [4, 8])
@pytest.mark.parametrize("fn", [cf.copy, cf.transpose])
def test_what_is_moved_into_another_byte_order_stays_within_the_budget(
    fn: Callable[..., Any], megabytes: int, on_disk: Path, tmp_path: Path
) -> None:
    x = np.load(on_disk / "x.npy")
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", ">f4", x.shape if fn is cf.copy else x.shape[::-1])
    options: dict[str, Any] = {"out": out, "device": NumpyDevice(lanes=8)}
    fn(on_disk / "x.npy", budget="16MB", **options)
    gc.collect()
    with traced() as peak:
        fn(on_disk / "x.npy", budget=megabytes * MB, **options)
        measured = peak()
    assert measured <= megabytes * MB + SLACK
    np.testing.assert_array_equal(out, x if fn is cf.copy else x.T)


@pytest.mark.parametrize("megabytes", [2, 4])
@pytest.mark.parametrize(
    "made",
    [lambda x: (x * 2).reshape(-1, 64), lambda x: np.concatenate([x * 2, x]), lambda x: np.stack([x, x * 2])[:, ::-1]],
)
def test_what_lies_between_passes_stays_within_the_budget(
    made: Callable[[Any], Any], megabytes: int, on_disk: Path, tmp_path: Path
) -> None:
    lazy = made(cf.open(on_disk / "x.npy"))
    lazy.to_npy(tmp_path / "before.npy", budget="16MB", device="cpu")  # imports
    gc.collect()
    with cf.Budget(megabytes * MB), traced() as peak:
        lazy.to_npy(tmp_path / "y.npy", device=NumpyDevice(lanes=4))
        measured = peak()
    assert measured <= megabytes * MB + SLACK
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), made(np.load(on_disk / "x.npy")))


@pytest.mark.parametrize("megabytes", [1, 2, 4])
@pytest.mark.parametrize(
    "cut", [np.s_[::4], np.s_[::4, ::4], np.s_[7::-1], np.s_[13:-10, ::-3], np.s_[:, ::64]], ids=repr
)
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_slices_stay_within_the_budget(kind: str, cut: Any, megabytes: int, on_disk: Path, tmp_path: Path) -> None:
    source = on_disk / f"x.{kind}"
    cf.map(np.negative, source, chunks=(20, -1), device="cpu")
    gc.collect()
    lazy = cf.open(source)[cut] * 2
    with cf.Budget(megabytes * MB), traced() as peak:
        lazy.to_npy(tmp_path / "y.npy", device=NumpyDevice(lanes=4))
        measured = peak()
    assert measured <= megabytes * MB + SLACK
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.load(on_disk / "x.npy")[cut] * 2)


@pytest.fixture(scope="module")
def in_memory() -> np.ndarray:
    """One gigabyte."""
    return np.random.default_rng(0).random((1 << 18, 1024), "f4")


# Small budgets come first, and functions with libraries last, for what a library took stays taken.
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("work", "megabytes"),
    [(w, m) for some in (False, True) for m in (64, 128, 256, 1000, 4000) for w in WORKS if w.libraries is some],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_what_the_driver_gives_stays_within_the_budget(
    work: Work, megabytes: int, bare_context: int, in_memory: np.ndarray
) -> None:
    from chunkflow.devices.cuda.device import device

    memory = DriverMemory(bare_context)
    try:
        with cf.Budget(megabytes * MB) as budget, memory.sampled():
            cf.map(work.fn, *[in_memory] * work.operands, device="cuda", **work.options)
    except cf.BudgetError:  # the trial call has shown what the library takes: there is no run to measure
        left = megabytes * MB - device(0).reserve
        assert left < (64 * MB if work.libraries else 32 * MB), "more is left than any of them needs"
        return
    assert 0 < memory.taken <= budget.limit
    assert budget.peak <= budget.limit


@pytest.mark.gpu
def test_leaving_it_returns_the_memory_to_the_driver() -> None:
    import cupy

    with cf.Budget("500MB"):
        cf.map(np.negative, np.ones((4000, 4000)), device="cuda")  # what kernels and libraries take once
        cf.map(np.negative, rows(), device="cuda")
    before = cupy.cuda.runtime.memGetInfo()[0]

    def fail() -> None:
        with cf.Budget("500MB"):
            cf.map(np.negative, np.ones((4000, 4000)), device="cuda")
            assert cupy.cuda.runtime.memGetInfo()[0] < before
            cf.map(lambda x: 1 / 0, rows(), device="cuda")

    with pytest.raises(ZeroDivisionError):
        fail()
    gc.collect()  # the error's traceback knew the block on which fn failed
    # The run took over 300 MB. The driver keeps a page or two of its own, from which small buffers came.
    assert cupy.cuda.runtime.memGetInfo()[0] >= before - (4 << 20)


@pytest.mark.gpu
def test_what_an_error_held_goes_back_when_the_next_run_begins() -> None:
    import cupy

    def begin() -> None:
        cf.map(np.negative, rows(), device="cuda", budget="500MB")

    def fail() -> None:
        with suppress(ZeroDivisionError):
            cf.map(lambda x: 1 / 0, np.ones((4000, 4000)), device="cuda", budget="500MB", dtype="f8", workspace=0)

    begin()
    before = cupy.cuda.runtime.memGetInfo()[0]
    gc.collect()
    gc.disable()
    try:
        fail()
        assert cupy.cuda.runtime.memGetInfo()[0] < before - (8 << 20), "nothing is held: the test shows nothing"
        begin()
        assert cupy.cuda.runtime.memGetInfo()[0] >= before - (4 << 20)
    finally:
        gc.enable()


@pytest.mark.gpu
def test_the_function_cannot_take_more_than_the_budget() -> None:
    import cupy

    def wasteful(x: Any) -> Any:
        cupy.empty(1 << 30, "u1")
        return x

    with cf.Budget("200MB") as budget, pytest.raises(cf.BudgetError):
        cf.map(wasteful, rows(), device="cuda")
    assert budget.peak <= budget.limit


# -- Used ----------------------------------------------------------------------------------------------------

GPU_LIKE = Machine(read=30e9, upload=50e9, compute=8e11, download=50e9, write=30e9, overhead=300e-6, page=2 << 20)
HUGE = [(1 << 36,), (1 << 18, 1 << 18), (4096, 4096, 4096), (1000, 3000, 7000), (3, 1 << 34), (1 << 34, 3)]


def huge(shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.zeros(1, "f4"), shape)


@pytest.mark.parametrize("budget", ["64MB", "256MB", "1GB", "4GB", "40GB"])
@pytest.mark.parametrize("workspace", [0, 4, 20])
@pytest.mark.parametrize("shape", HUGE, ids=str)
def test_most_of_the_budget_is_planned_for(shape: tuple[int, ...], workspace: int, budget: str) -> None:
    device = NumpyDevice(staged=True, machine=GPU_LIKE)
    plan = cf.explain(np.negative, huge(shape), dtype="f4", workspace=workspace, budget=budget, device=device)
    assert plan.memory.total <= plan.budget
    if plan.memory.total < 0.6 * plan.budget:
        (note,) = [n for n in plan.notes if "smaller than the budget allows" in n]
        found = re.search(r"([0-9.e+-]+) s by the model", note)
        assert found is not None
        assert float(found[1]) >= 0.97 * plan.estimate.seconds, "more would not be faster"


@pytest.mark.parametrize("shape", HUGE, ids=str)
def test_a_plan_of_millions_of_blocks_takes_little_memory(shape: tuple[int, ...]) -> None:
    with traced() as peak:
        plan = cf.explain(np.negative, huge(shape), dtype="f4", workspace=4, budget="2MB", device="cpu")
        assert peak() < 4 * MB
    assert len(plan.grid) > 10_000


def test_a_sparse_terabyte(tmp_path: Path) -> None:
    path = tmp_path / "terabyte.bin"
    shape = (1 << 16, 2048, 2048)
    path.touch()
    try:
        os.truncate(path, 4 * (1 << 16) * 2048 * 2048)
    except OSError as error:
        pytest.skip(f"the file system has no sparse files of that size: {error}")
    with open(path, "r+b") as file:
        file.write(np.full(100, 7, "f4").tobytes())
    x = np.memmap(path, "f4", "r", shape=shape)
    try:
        plan = cf.explain(np.sqrt, x, budget="64MB", device="cpu", out=tmp_path / "y.npy")
        assert plan.bytes_in == plan.bytes_out == 1 << 40
        assert plan.memory.total <= 64 * MB
        with traced() as peak, cf.chunks(x, budget="64MB", device="cpu") as blocks:
            total = elements = 0
            for chunk in blocks:
                total += float(chunk.data.sum())
                elements += chunk.data.size
                if elements > 60 * MB:
                    break
            assert peak() <= 64 * MB + SLACK
        assert total == 700
    finally:
        del x
        path.unlink()
    assert os.listdir(tmp_path) == []


# -- Host memory is bounded too ------------------------------------------------------------------------------


class Lead:
    """A source and a slow sink that know how far the one is ahead of the other."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape, self.dtype = shape, np.dtype("f4")
        self._lock, self._ahead, self.most = threading.Lock(), 0, 0

    def __getitem__(self, region: Any) -> np.ndarray:
        found = np.zeros(self.shape, "f4")[region]
        with self._lock:
            self._ahead += found.size
            self.most = max(self.most, self._ahead)
        return found

    def __setitem__(self, region: Any, block: np.ndarray) -> None:
        time.sleep(0.002)
        with self._lock:
            self._ahead -= block.size


@everywhere
def test_a_slow_sink_stalls_the_reader(place: Place) -> None:
    lead = Lead((300, 200))
    options = {"budget": place.budget(200_000), "dtype": "f4", "workspace": 0, "chunks": (3, -1)}
    depth = cf.explain(np.negative, lead, out=lead, device=place.device(), **options).depth
    cf.map(np.negative, lead, out=lead, device=place.device(), **options)
    blocks = lead.most / (3 * 200)
    assert 1 <= blocks <= 2 * depth + 2, "loads ahead, results on their way, and one in hand"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [500, 4000])
def test_staging_memory_does_not_grow_with_the_array(mode: str, rows: int, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((rows, 256), "f8"))
    device = NumpyDevice(mode=mode, staged=True, machine=machine(staged=True, piece=20_000))  # type: ignore[arg-type]
    cf.map(np.negative, tmp_path / "x.npy", out=tmp_path / "z.npy", budget="200kB", device=device)  # imports modules
    with traced() as peak:
        cf.map(np.negative, tmp_path / "x.npy", out=tmp_path / "y.npy", budget="200kB", device=device)
        assert peak() <= 200_000 + 2 * 3 * 2 * 20_000 + SLACK


def test_a_race_detector_sees_the_same_limit() -> None:
    with cf.Budget("100kB") as budget:
        cf.map(np.negative, CountingSource(rows()), device=checking("threaded", staged=True))
    assert 0 < budget.peak <= budget.limit


# -- Chunks that the idle cores code -------------------------------------------------------------------------


class Seeing:
    """Keeps the plans that are run."""

    wants_spans = False

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def started(self, plan: Any, run: Any) -> None:
        self.seen.append(plan)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize(("megabytes", "coders"), [(9, 4), (14, 8)])
def test_chunks_of_a_single_block_are_coded_by_all_cores_within_the_budget(
    tmp_path: Path, megabytes: int, coders: int
) -> None:
    x = np.random.default_rng(0).random((512, 2048), "f4")  # 4.2 MB
    source = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(64, 2048), dtype="f4")
    source[...] = x
    options: dict[str, Any] = {"device": NumpyDevice(lanes=8), "out": tmp_path / "y.zarr", "overwrite": True}
    seen: list[Any] = []
    with observing(Seeing(seen)):
        cf.rechunk(source, (512, 256), **options, budget=megabytes * MB)
    assert [(plan.lanes, plan.coders) for plan in seen] == [(1, coders)]
    gc.collect()
    with traced() as peak:
        got = cf.rechunk(source, (512, 256), **options, budget=megabytes * MB)
        measured = peak()
    assert measured <= megabytes * MB + SLACK
    np.testing.assert_array_equal(got[...], x)


def test_the_first_error_of_several_that_code_is_raised_when_all_are_done(tmp_path: Path) -> None:
    source = zarr.create_array(tmp_path / "x.zarr", shape=(64, 4096), chunks=(4, 4096), dtype="f4")
    source[...] = np.random.default_rng(0).random(source.shape)
    for name in ("3", "9"):
        (tmp_path / "x.zarr" / "c" / name / "0").write_bytes(b"no chunk")
    before = at_work()
    with pytest.raises(cf.ReadError) as caught:
        cf.map(np.negative, source, chunks=(64, -1), device=NumpyDevice(lanes=8), out=tmp_path / "y.zarr")
    assert caught.value.region is not None
    assert at_work() == before
    assert not (tmp_path / "y.zarr").exists()


def test_no_more_chunks_are_coded_at_once_than_the_plan_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = zarr.create_array(tmp_path / "x.zarr", shape=(512, 512), chunks=(64, 64), dtype="f4")
    source[...] = np.random.default_rng(0).random(source.shape)
    lock, busy, most = threading.Lock(), 0, 0

    def watched(name: str) -> None:
        real = getattr(Chunks, name)

        def call(self: Any, *args: Any) -> Any:
            nonlocal busy, most
            with lock:
                busy += 1
                most = max(most, busy)
            time.sleep(0.002)
            try:
                return real(self, *args)
            finally:
                with lock:
                    busy -= 1

        monkeypatch.setattr(Chunks, name, call)

    watched("_read")
    watched("_write")
    seen: list[Any] = []
    cores = NumpyDevice(lanes=8, machine=replace(rates.cpu(8), depths=(4,), piece=16 << 10))
    with observing(Seeing(seen)):
        cf.map(
            np.negative,
            source,
            chunks=(128, -1),
            device=cores,
            out=zarr.create_array(tmp_path / "y.zarr", shape=(512, 512), chunks=(64, 64), dtype="f4"),
        )
    (plan,) = seen
    assert (plan.lanes, plan.coders) == (4, 2)
    assert 4 < most <= plan.lanes * plan.coders


def test_a_refusal_says_that_the_budget_is_a_setting() -> None:
    x = np.ones(1000)
    with cf.config.set(budget=4), pytest.raises(errors.BudgetError) as refused:
        cf.mean(x, device="cpu")
    assert "chunkflow: the setting budget=4 holds (config.set), as no budget= is given" in refused.value.__notes__
    with cf.config.set(budget=4), pytest.raises(errors.BudgetError) as refused:
        cf.mean(x, device="cpu", budget=8)
    assert not any("setting" in note for note in getattr(refused.value, "__notes__", ()))

"""A warning of blocks for which a run seems to take for ever: so many small ones, or ones that read the same again."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
import chunkflow.fft
from chunkflow.core.grid import Region
from chunkflow.core.spec import ArraySpec, Behind
from chunkflow.core.units import parse_bytes
from chunkflow.errors import SlowRunWarning
from chunkflow.planner import plan

X = np.ones((100, 50), ">f8")  # in the other byte order, so that blocks are copied

RUNS: dict[str, Callable[..., Any]] = {
    "a map": lambda **options: cf.map(np.exp, X, **options),
    "an expression": lambda **options: cf.compute(np.exp(cf.open(X)), **options),
    "a loop": lambda **options: [chunk.index for chunk in cf.chunks(X, **options)],
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CRUMBS", 40)


def warned(run: Callable[..., Any], **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(**options, device="cpu")
    return [str(w.message) for w in seen if w.category is SlowRunWarning]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_within_a_budget_that_is_nearly_used_up_says_what_would_do(name: str) -> None:
    (message,) = warned(RUNS[name], budget=1100)
    assert "1.10 kB are left of the budget: raise budget= to " in message
    enough = parse_bytes(message.rsplit("raise budget= to ", 1)[1])
    assert not warned(RUNS[name], budget=enough)


@pytest.mark.parametrize("name", ["a map", "a loop"])
def test_chunks_that_the_caller_has_fixed_are_to_be_larger(name: str) -> None:
    (message,) = warned(RUNS[name], chunks=(1, 10))
    assert "500 blocks of (1, 10)" in message
    assert "their sides are fixed: give larger chunks=" in message


def test_what_a_loop_has_taken_of_the_budget_counts() -> None:
    with cf.Budget("100kB") as budget, cf.chunks(X, chunks=(60, -1), device="cpu") as loop:
        left = 100_000 - loop.plan.memory.total
        assert left < 90_000
        found = cf.explain(np.exp, X, chunks=(1, 10), budget=budget, device="cpu")
        assert found.budget == left
        assert found.warning


def test_explain_says_it_and_does_not_warn() -> None:
    assert not warned(lambda **options: cf.explain(np.exp, X, **options), budget=1100)
    assert "raise budget= to " in str(cf.explain(np.exp, X, budget=1100, device="cpu"))
    assert "raise budget= to " not in str(cf.explain(np.exp, X, budget="1MB", device="cpu"))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An array with chunks that no small budget holds, nor keeps in shards, of which a megabyte is much."""
    monkeypatch.setattr(plan, "CRUMBS", 100_000)
    monkeypatch.setattr(plan, "MUCH", 1_000_000)
    x, chunks = np.random.default_rng(0).random((200, 40, 40), "f4"), (50, 40, 40)
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=chunks, shards=chunks)
    return str(tmp_path / "x.zarr")


def test_a_run_that_reads_the_same_chunks_again_and_again_says_what_would_do(stored: str) -> None:
    with pytest.raises(cf.BudgetError) as caught:
        cf.mean(stored, axis=0, budget=1, device="cpu")
    tight = (caught.value.smallest or 0) + 60_000
    (message,) = warned(lambda **options: cf.mean(stored, axis=0, **options), budget=tight)
    found = re.fullmatch(
        r"[\d,]+ blocks of \([\d, ]+\) read elements (\d+) times, \S+ [MG]B in all, "
        r"since \S+ kB are left of the budget: raise budget= to (.+)",
        message,
    )
    assert found is not None
    assert int(found[1]) >= plan.AGAIN
    assert not warned(lambda **options: cf.mean(stored, axis=0, **options), budget=found[2])
    assert cf.explain(cf.mean, stored, axis=0, budget=found[2], device="cpu").rereads < plan.AGAIN


def test_passes_of_one_call_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A median along an axis finds a few bits in each of many passes, and none of them reads much by itself."""
    zarr.create_array(tmp_path / "x.zarr", data=np.random.default_rng(0).random((2000, 200)), chunks=(20, 100))
    monkeypatch.setattr(plan, "CRUMBS", 100_000)
    asked = np.median(cf.open(tmp_path / "x.zarr"), axis=0)
    monkeypatch.setattr(plan, "MUCH", 1 << 30)
    first, *_ = cf.explain(asked, budget="70kB", device="cpu").plans
    assert first.times > 1
    assert first.rereads > plan.AGAIN
    assert not first.warning
    monkeypatch.setattr(plan, "MUCH", 2 * first.bytes_in)
    first, *others = cf.explain(asked, budget="70kB", device="cpu").plans
    assert f"MB in each of {first.times} passes, which takes 3 s or more, since 70.00 kB are left of" in first.warning
    assert not any(later.warning for later in others)


def test_little_that_is_read_again_is_no_slow_run(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MUCH", 1 << 30)
    assert not warned(lambda **options: cf.mean(stored, axis=0, **options), budget="750kB")


class Asked:
    """A source that takes 50 ms for each read, by what it says: nobody waits here."""

    footprint = None

    def __init__(self, asking: float = 0.05, behind: Behind | None = None) -> None:
        self.spec = ArraySpec("asked", (1000, 100), np.dtype("f8")).with_storage(asking=asking, behind=behind)

    def read(self, region: Region, out: np.ndarray) -> None:
        out[...] = np.arange(region[1].start, region[1].stop)

    def view(self, region: Region) -> None:
        return None

    def close(self) -> None:
        pass

    def __chunkflow_source__(self) -> Asked:
        return self


def test_a_source_that_is_asked_too_often_says_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CRUMBS", 100_000)
    (message,) = warned(lambda **options: cf.mean(Asked(), **options), budget="6kB")
    found = re.fullmatch(
        r"([\d,]+) blocks of \([\d, ]+\): asking sources for parts of them, each of which takes long however small it "
        r"is, is most of the (\S+) s that the run is predicted to take, since .* kB are left of the budget: "
        r"raise budget= to (.+)",
        message,
    )
    assert found is not None
    assert float(found[2]) >= 0.05 * int(found[1].replace(",", ""))
    assert not warned(lambda **options: cf.mean(Asked(), **options), budget=found[3])
    assert not warned(lambda **options: cf.mean(Asked(0.0), **options), budget="6kB")
    assert message in str(cf.explain(cf.mean, Asked(), budget="6kB", device="cpu"))


def test_fewer_reads_are_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of few rows were read as if a hundred reads cost no more than one."""
    quick, slow = (cf.explain(cf.mean, Asked(n), axis=0, budget="60kB", device="cpu") for n in (0.0, 0.05))
    assert len(slow.grid) <= len(quick.grid)
    assert slow.seconds == pytest.approx(0.05 * len(slow.grid), rel=0.1)


@pytest.mark.parametrize(
    ("chunks", "kept", "number"),
    [
        ((100, 100), 0, lambda edges: sum(-(-stop // 100) - start // 100 for start, stop in edges)),
        ((100, 100), 1, lambda edges: 10),  # the chunk that a block shares with the one before
        ((100, 100), 10, lambda edges: 10),
        ((7,), 0, len),  # of a view
    ],
)
def test_chunks_that_a_library_decodes_for_a_read_count_as_often_as_it_does(
    chunks: Any, kept: int, number: Any
) -> None:
    asked = Asked(0.001, Behind(chunks, 1.0, kept))
    found = cf.explain(cf.mean, asked, axis=1, budget="40kB", device="cpu")
    rows = found.block[0]
    edges = [(start, min(start + rows, 1000)) for start in range(0, 1000, rows)]
    assert len(edges) == len(found.grid) > 15
    assert found.estimate.asking == pytest.approx(number(edges) + 0.001 * len(edges))
    across = cf.explain(cf.map, np.sqrt, asked, chunks=(1000, 10), budget="4MB", device="cpu")
    each = 10 if len(chunks) == 1 or kept == 10 else 100
    assert across.estimate.asking == pytest.approx(each + 0.001 * 10)


def test_a_refusal_names_the_budget_that_asks_less_often_first() -> None:
    message, smallest = refusal(Asked(), axis=0, budget=1)
    assert f"at least {smallest} do, but slowly" in message
    enough = re.search(r"raise budget= to (\d+)", message)
    assert enough is not None
    assert not cf.explain(cf.mean, Asked(), axis=0, budget=int(enough[1]), device="cpu").is_slow


def test_the_docstring_and_the_page_name_the_bounds() -> None:
    for text in (
        SlowRunWarning.__doc__ or "",
        (Path(__file__).parents[2] / "docs/howto/slow.md").read_text(encoding="utf-8"),
    ):
        assert "100,000 blocks" in text
        assert f"{plan.AGAIN} times or more" in text
        assert f"{plan.MUCH >> 20} MiB" in text
        assert f"{plan.LONG:.0f} s or more" in text


def refusal(*args: Any, **options: Any) -> tuple[str, int]:
    """Message of a refused mean, and the smallest budget that it names."""
    with pytest.raises(cf.BudgetError) as caught:
        cf.mean(*args, **options, device="cpu")
    return str(caught.value), caught.value.smallest or 0


def cost_is(planned: Any, blocks: str, read: str) -> bool:
    number = len(planned.grid) == int(blocks.replace(",", ""))
    return number and planned.bytes_in == pytest.approx(parse_bytes(read), rel=0.01)


def test_a_refusal_names_the_budget_that_is_not_slow_first(stored: str) -> None:
    """One that followed the smallest budget had to wait for a thousand times as long."""
    message, smallest = refusal(stored, axis=0, budget="100kB")
    found = re.search(
        r"raise budget= to (\d+), with which ([\d,]+) blocks? reads? (\S+ MB) of arrays of 1.28 MB; "
        r"at least (\d+) do, but slowly: ([\d,]+) blocks read (\S+ [MG]B); \S+ kB of the block hold chunks [a-z ]+\. "
        r"The block is of \S+x.zarr \(200, 40, 40\)$",
        message,
    )
    assert found is not None
    quick, least = (cf.explain(cf.mean, stored, axis=0, budget=int(found[i]), device="cpu") for i in (1, 4))
    assert int(found[4]) == smallest
    assert cost_is(quick, found[2], found[3])
    assert cost_is(least, found[5], found[6])
    assert least.warning
    assert not quick.warning


def test_a_refusal_says_what_the_named_budget_costs_and_a_larger_one(
    stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MUCH", 1 << 40)  # it is not slow
    message, smallest = refusal(stored, axis=0, budget="100kB")
    found = re.search(
        r"at least (\d+); \S+ kB of the block hold chunks [a-z ]+\. "
        r"With \S+ kB ([\d,]+) blocks read (\S+ [MG]B) of arrays of 1.28 MB, "
        r"with (\S+ MB) ([\d,]+) blocks? reads? (\S+ MB)\. The block is of \S+x.zarr \(200, 40, 40\)$",
        message,
    )
    assert found is not None
    least, larger = (cf.explain(cf.mean, stored, axis=0, budget=b, device="cpu") for b in (int(found[1]), found[4]))
    assert int(found[1]) == smallest
    assert cost_is(least, found[2], found[3])
    assert cost_is(larger, found[5], found[6])
    assert larger.bytes_in * 2 <= least.bytes_in


def test_a_refusal_counts_an_array_once_however_many_passes_read_it() -> None:
    x, y = np.ones((100, 50)), np.ones((100, 50))
    for call, times in (
        (lambda **options: cf.median(x, **options), 1),
        (lambda **options: cf.map(np.add, x, y, **options), 2),
    ):
        with pytest.raises(cf.BudgetError, match=rf"of arrays of {times * 40}\.00 kB"):
            call(budget=100, device="cpu")


def test_a_refusal_names_no_larger_budget_where_the_least_reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CRUMBS", 100_000)
    with pytest.raises(cf.BudgetError, match=r"\. With \S+ kB [\d,]+ blocks read 40.00 kB of arrays of 40.00 kB\. "):
        cf.sort(X, axis=0, budget=300, device="cpu")


SEVERAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rechunk": (
        lambda stored, path, **how: cf.rechunk(stored, (200, 5, 5), path, **how),
        lambda stored, **how: cf.explain(cf.rechunk, stored, (200, 5, 5), "x.zarr", **how),
    ),
    "fft": (
        lambda stored, path, **how: cf.fft.fftn(stored, out=path, **how),
        lambda stored, **how: cf.fft.plan("fftn", stored, out="x.zarr", **how),
    ),
    "steps": (
        lambda stored, path, **how: cf.map_overlap(np.copy, stored, depth=1, iterations=3, out=path, **how),
        lambda stored, **how: cf.iteration_plan(np.copy, stored, depth=1, iterations=3, out="x.npy", **how),
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_refusal_of_passes_with_plans_of_their_own_says_what_they_cost(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    run, planned = SEVERAL[name]
    out = "x.npy" if name == "steps" else "x.zarr"
    said = []
    for call in (lambda **how: run(stored, out, **how), lambda **how: planned(stored, **how)):
        with pytest.raises(cf.BudgetError) as caught:
            call(budget=1000, device="cpu")
        said.append(str(caught.value))
        found = re.search(r"at least (\d+)(?!\d|\.\d).*?([\d,]+) blocks? reads? (\S+ [kMG]B)", said[-1])
        assert found is not None, said
    assert said[0] == said[1]
    slow = re.search(r"at least (\d+)[^;]* do, but slowly: ([\d,]+) blocks? reads? (\S+ [kMG]B)", said[0]) or found
    plan = planned(stored, budget=int(slow[1]), device="cpu")
    assert sum(len(each.grid) for each in plan.plans) == int(slow[2].replace(",", ""))
    assert plan.bytes_read == pytest.approx(parse_bytes(slow[3]), rel=0.01)


def test_a_budget_without_its_unit_is_guessed() -> None:
    with pytest.raises(cf.BudgetError) as caught:
        cf.sum(np.ones((100, 100)), budget=4, device="cpu")
    assert caught.value.__notes__ == ["chunkflow: budget=4 is so many bytes; budget='4MB' is so many MB"]


def test_words_that_other_functions_take_name_what_does_it() -> None:
    with pytest.raises(cf.errors.ArgumentTypeError, match=r"chunkflow\.store\(x, path\)"):
        cf.open(np.ones(3)).compute(out="y.npy")
    with pytest.raises(cf.errors.ArgumentTypeError, match=r"x\.astype\(dtype\)"):
        cf.copy(np.ones(3), "y.npy", dtype="u1")


def test_blocks_that_are_mostly_neighbours_are_told_of() -> None:
    x = np.zeros((40, 128, 128), "f4")
    said = r"elements for each of the array's(, which takes \d+ s or more)?, since .* raise budget= to"
    with pytest.warns(SlowRunWarning, match=said):
        cf.map_overlap(
            lambda b: b, x, depth=40, boundary="reflect", budget="10MB", device="cpu", dtype="f4", workspace=0
        )

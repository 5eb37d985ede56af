"""Every operation keeps its budget, by what is measured, and gives what NumPy gives."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import budgets
from support.budgets import MB, SLACK, DriverMemory, traced

import chunkflow as cf
from chunkflow import devices

on_disk, bare_context = budgets.on_disk, budgets.bare_context


def blur(block: Any) -> Any:
    """A 5-point stencil that cuts its halo."""
    return (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4


def _histogram(x: Any, overwrite: bool = False, **options: Any) -> Any:
    return cf.histogram(x, 50, (0, 1), **options)[0]


@dataclass(frozen=True)
class Operation:
    """An operation on a matrix of 3000 x 1024, and the same in NumPy."""

    name: str
    run: Callable[..., Any]
    numpy: Callable[[np.ndarray], Any]
    libraries: bool = False


OPERATIONS = [
    Operation("sum", cf.sum, np.sum),
    Operation("mean of columns", lambda x, **o: cf.mean(x, axis=0, **o), lambda x: x.mean(axis=0, dtype="f8")),
    Operation("var of rows", lambda x, **o: cf.var(x, axis=1, **o), lambda x: x.var(axis=1, dtype="f8")),
    Operation("max of columns", lambda x, **o: cf.max(x, axis=0, **o), lambda x: x.max(axis=0)),
    Operation("argmin", cf.argmin, np.argmin),
    Operation("norm", cf.norm, np.linalg.norm),
    Operation("histogram", _histogram, lambda x: np.histogram(x, 50, (0, 1))[0]),
    Operation("topk", lambda x, **o: cf.topk(x, 3, **o), lambda x: -np.sort(-x, axis=-1)[:, :3]),
    Operation("cumsum of columns", lambda x, **o: cf.cumsum(x, axis=0, **o), lambda x: x.cumsum(axis=0, dtype="f8")),
    Operation("cumsum of rows", lambda x, **o: cf.cumsum(x, axis=1, **o), lambda x: x.cumsum(axis=1, dtype="f8")),
    Operation(
        "stencil",
        lambda x, **o: cf.map_overlap(blur, x, depth=1, boundary="nearest", trim=False, **o),
        lambda x: blur(np.pad(x, 1, mode="edge")),
    ),
    Operation("gram", cf.gram, lambda x: x.T.astype("f8") @ x, libraries=True),
    Operation(
        "matmul", lambda x, **o: cf.matmul(x, np.eye(1024, 8, dtype="f4"), **o), lambda x: x[:, :8], libraries=True
    ),
    Operation("cov", lambda x, **o: cf.cov(x, rowvar=False, **o), lambda x: np.cov(x, rowvar=False), libraries=True),
]

WIDE = np.ones((700, 1024))
MOVES = [
    Operation("repeat rows", lambda x, **o: cf.repeat(x, 2, 0, **o), lambda x: np.repeat(x, 2, 0)),
    Operation("repeat columns", lambda x, **o: cf.repeat(x, 3, 1, **o), lambda x: np.repeat(x, 3, 1)),
    Operation("roll", lambda x, **o: cf.roll(x, 77, **o), lambda x: np.roll(x, 77)),
    Operation("roll rows", lambda x, **o: cf.roll(x, 77, 0, **o), lambda x: np.roll(x, 77, 0)),
    Operation("flip", cf.flip, np.flip),
    Operation("pad", lambda x, **o: cf.pad(x, 50, **o), lambda x: np.pad(x, 50)),
    Operation("pad by edges", lambda x, **o: cf.pad(x, 500, "edge", **o), lambda x: np.pad(x, 500, "edge")),
    Operation("pad by mirrors", lambda x, **o: cf.pad(x, 50, "reflect", **o), lambda x: np.pad(x, 50, "reflect")),
    Operation("dtypes", lambda x, **o: cf.concatenate([x, WIDE], **o), lambda x: np.concatenate([x, WIDE])),
    Operation(
        "dtypes side by side",
        lambda x, **o: cf.concatenate([x, np.ones((3000, 7))], 1, **o),
        lambda x: np.concatenate([x, np.ones((3000, 7))], 1),
    ),
]
"""What is put together from others as it is read; on the CPU, whatever the device."""


LINES: dict[str, Callable[..., Any]] = {
    "mode": lambda x, **o: cf.mode(x, axis=0, **o),
    "median of groups": lambda x, **o: cf.groupby_reduce(
        x, x, func="median", expected_groups=[0, 0.5, 1], isbin=True, axis=0, **o
    ),
    "unique": lambda x, **o: cf.unique(x, **o),
    "a function": lambda x, **o: cf.map(lambda b: np.sort(b, axis=0)[-1], x, drop_axis=0, **o),
}


@pytest.mark.parametrize("operation", LINES)
def test_lines_that_do_not_fit_are_refused_within_the_budget(operation: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((200_000, 2))
    np.save(tmp_path / "x.npy", x)

    def refused(budget: int) -> cf.BudgetError:
        with pytest.raises(cf.BudgetError) as caught:
            LINES[operation](tmp_path / "x.npy", budget=budget, device="cpu")
        return caught.value

    refused(3 * MB // 2)  # imports
    gc.collect()
    with traced() as peak:
        smallest = refused(3 * MB // 2).smallest
        assert peak() <= 3 * MB // 2
    if operation != "a function":
        assert smallest is not None  # of a function that is not called with what it would never see
        refused(smallest - (smallest >> 3))
        LINES[operation](tmp_path / "x.npy", budget=smallest, device="cpu")


@pytest.mark.parametrize("operation", [cf.topk, cf.argtopk], ids=["topk", "argtopk"])
def test_much_that_is_kept_of_each_line_is_within_the_budget(operation: Callable[..., Any], tmp_path: Path) -> None:
    x = np.resize(np.random.default_rng(0).permutation(1 << 16).astype("u2"), (217, 16, 715))
    np.save(tmp_path / "x.npy", x)
    options: dict[str, Any] = {"axis": 0, "budget": 3 * MB, "device": "cpu", "overwrite": True}
    operation(tmp_path / "x.npy", 50, out=tmp_path / "y.npy", **options)  # imports
    gc.collect()
    with traced() as peak:
        found = operation(tmp_path / "x.npy", 50, out=tmp_path / "y.npy", **options)
        assert peak() <= 3 * MB  # what is kept of all lines is 1.1 MB, and of places 4.6 MB more
    largest = found if operation is cf.topk else np.take_along_axis(x, found, 0)
    np.testing.assert_array_equal(largest, -np.sort(-x.astype("i4"), axis=0)[:50])


def test_what_passes_keep_for_later_ones_counts(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((100, 30_000))
    np.save(tmp_path / "x.npy", x)

    def store() -> np.ndarray:
        y = cf.open(tmp_path / "x.npy")
        made = (y - y.mean(axis=0)) / y.max(axis=0) + y.min(axis=0) * y.sum(axis=0)
        return cf.store(made, tmp_path / "y.npy", budget=4 * MB, device="cpu", overwrite=True)

    store()  # imports
    gc.collect()
    with traced() as peak:
        found = store()
        assert peak() <= 4 * MB  # four results of 240 kB each stay in memory
    np.testing.assert_allclose(found, (x - x.mean(0)) / x.max(0) + x.min(0) * x.sum(0), rtol=1e-12)


@pytest.mark.parametrize(("kind", "megabytes"), [("npy", 4), ("zarr", 4), ("npy", 16), ("zarr", 64)])
@pytest.mark.parametrize("operation", [*OPERATIONS, *MOVES], ids=lambda o: o.name)
def test_what_is_allocated_stays_within_the_budget(
    kind: str,
    operation: Operation,
    megabytes: int,
    on_disk: Path,
    tmp_path: Path,
) -> None:
    source = on_disk / f"x.{kind}"
    x = np.load(on_disk / "x.npy")
    out = {} if operation.name == "histogram" else {"out": tmp_path / "y.npy"}
    try:  # imports, and what a result of 1024 x 1024 needs
        with cf.Budget(megabytes * MB):
            operation.run(source, device="cpu", overwrite=True, **out)
    except cf.BudgetError:
        assert megabytes < 64
        assert operation.libraries
        return
    (tmp_path / "y.npy").unlink(missing_ok=True)
    gc.collect()
    with cf.Budget(megabytes * MB) as budget, traced() as peak:
        got = operation.run(source, device="cpu", **out)
        measured = peak()
    np.testing.assert_allclose(got, operation.numpy(x), rtol=1e-4, atol=1e-5)
    assert measured <= budget.limit + SLACK
    assert 0 < budget.peak <= budget.limit


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("operation", "megabytes"),
    [(o, m) for some in (False, True) for m in (64, 256, 1000) for o in OPERATIONS if o.libraries is some],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_what_the_driver_gives_stays_within_the_budget(
    operation: Operation,
    megabytes: int,
    bare_context: int,
) -> None:
    x = np.random.default_rng(0).random((1 << 18, 1024), "f4")
    memory = DriverMemory(bare_context)
    try:
        with cf.Budget(megabytes * MB) as budget, memory.sampled():
            operation.run(x, device="cuda")
    except cf.BudgetError:
        assert megabytes * MB - devices.resolve("cuda").reserve < 64 * MB, "more is left than any of them needs"
        return
    assert 0 < memory.taken <= budget.limit
    assert budget.peak <= budget.limit


@pytest.mark.gpu
@pytest.mark.parametrize("megabytes", [100, 180, 260])
def test_unique_that_begins_again_keeps_the_budget(megabytes: int, bare_context: int) -> None:
    x = np.random.default_rng(0).random(1 << 18).repeat(256)
    memory = DriverMemory(bare_context)
    budget = megabytes * MB + devices.resolve("cuda").reserve  # libraries that earlier tests used keep what they took
    with memory.sampled():
        try:
            assert cf.unique(x, budget=budget, device="cuda").size == 1 << 18
        except cf.BudgetError:
            assert megabytes == 100
    assert memory.taken <= budget

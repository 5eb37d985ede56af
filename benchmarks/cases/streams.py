"""A map from RAM to RAM and a sum by `chunkflow.chunks`, each with a budget of its own and within one `Budget`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import BLOCK, Bench, Case, Group, close_to
from benchmarks.data import in_threads, poison, sample_planes, work
from benchmarks.peers.streams import dask_map, dask_sum, loop_map, loop_sum
from benchmarks.probe import installed

LOOP = "a loop over blocks of 256 MiB"


def cases(bench: Bench) -> Iterator[Case]:
    """The map, then the sum."""
    x = bench.x
    ram = np.array(x)
    missing = installed("dask")[1]
    yield mapped_case(bench, ram, missing)
    yield summed_case(bench, x, missing)


def grouped(bench: Bench, runs: dict[str, Callable[[], Any]], shared: str) -> tuple[Group, ...]:
    """The contender `shared` within one Budget, by itself, after all the others."""
    return (Group(tuple(name for name in runs if name != shared), None), Group((shared,), bench.budget))


def mapped_case(bench: Bench, ram: np.ndarray, missing: tuple[str, ...]) -> Case:
    out = np.empty_like(ram)
    planes, step = sample_planes(ram), max(1, BLOCK // ram[0].nbytes)
    expected = {i: work(ram[i]) for i in planes}

    def check(name: str, _: Any) -> None:
        for i in planes:
            np.testing.assert_allclose(out[i], expected[i], rtol=1e-6)
        assert not np.isnan(out[:, ::97, ::89]).any()
        poison(out)

    def own() -> None:
        cf.map(work, ram, out=out, budget=bench.budget, **bench.options)

    def explain() -> str:
        plan = cf.explain(work, ram, out=out, budget=bench.budget, **bench.options)
        with cf.Profile() as profile:
            own()
        return f"{plan}\n{profile.report}"

    poison(out)
    runs: dict[str, Callable[[], Any]] = {LOOP: loop_map(bench, ram, out, step)}
    if not missing:
        runs["dask, 4 threads, 256 MiB"] = dask_map(bench, ram, out, (step, -1, -1), 4)
        runs["dask, 16 threads, 1 GiB"] = dask_map(bench, ram, out, (4 * step, -1, -1), 16)
        runs["dask, 16 threads, 256 MiB"] = dask_map(bench, ram, out, (step, -1, -1), 16)
    shared = "chunkflow.map, within one Budget"
    runs["chunkflow.map, a budget of its own"] = own
    runs[shared] = lambda: cf.map(work, ram, out=out, **bench.options)
    what, limit, groups = f"RAM to RAM {ram.shape}, each way", ("the link, both ways", bench.both), None
    groups = grouped(bench, runs, shared)
    return Case(
        *("streams, map", what, ram.nbytes / 1e9, runs, check, limit),
        ours=shared,
        groups=groups,
        missing=missing,
        explain=explain,
    )


def summed_case(bench: Bench, x: np.memmap, missing: tuple[str, ...]) -> Case:
    step = max(1, BLOCK // x[0].nbytes)

    def summed(budget: str | None) -> float:
        total = bench.xp.zeros((), "f8")
        for chunk in cf.chunks(x, budget=budget, **bench.options):
            total += chunk.data.sum(dtype="f8")
        return float(total)

    def explain() -> str:
        with cf.Profile() as profile:
            summed(bench.budget)
        return str(profile.report)

    runs: dict[str, Callable[[], Any]] = {LOOP: loop_sum(bench, x, step)}
    if not missing:
        runs["dask, 4 threads, 256 MiB"] = dask_sum(bench, x, (step, -1, -1), 4)
        runs["dask, 16 threads, 256 MiB"] = dask_sum(bench, x, (step, -1, -1), 16)
    shared = "chunkflow.chunks, within one Budget"
    runs["chunkflow.chunks, a budget of its own"] = lambda: summed(bench.budget)
    runs[shared] = lambda: summed(None)
    check = close_to(float(sum(in_threads(lambda i: x[i].sum(dtype="f8"), len(x)))), 1e-9)
    what, limit, groups = f"page-cached memmap {x.shape}", ("the link", bench.link), grouped(bench, runs, shared)
    return Case(
        *("streams, sum", what, x.nbytes / 1e9, runs, check, limit),
        ours=shared,
        groups=groups,
        missing=missing,
        explain=explain,
    )

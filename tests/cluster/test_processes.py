"""chunkflow on workers of dask's that are processes of their own: results, failures, and what goes between them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import zarr
from support.devices import same

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

import cloudpickle  # noqa: E402
import dask.array as da  # noqa: E402

import chunkflow as cf  # noqa: E402
from chunkflow import dask as cd  # noqa: E402
from chunkflow.cluster import tasks  # noqa: E402
from chunkflow.core.units import format_bytes  # noqa: E402
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError  # noqa: E402

# Workers cannot import this file: its functions travel as they are.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# dask warns of what the machine is short of, and of sockets that a killed worker leaves behind.
pytestmark = pytest.mark.filterwarnings("default")
SHAPE = (64, 32, 32)
X = np.random.default_rng(0).integers(-8, 9, SHAPE) / 4
HOW: dict[str, Any] = {"partition": "16kB", "budget": "1MB", "device": "cpu"}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        dask.config.set({"distributed.admin.log-format": "%(message)s"}),
        distributed.LocalCluster(**options, resources={"GPU": 1}, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def path(tmp_path: Path) -> str:
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=SHAPE, chunks=(4, 16, 32), dtype="f8")
    array[...] = X
    return str(tmp_path / "x.zarr")


def until(condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened within thirty seconds")


def test_results_are_numpys_and_dasks(client: Any, path: str) -> None:
    x, d = cf.open(path), da.from_array(X, chunks=(16, 32, 32))
    z = (x - x.mean(axis=0)).map_overlap(lambda u: np.roll(u, 1, 0) - u, depth={0: (1, 0)}, boundary="periodic")
    expected = np.roll(X - X.mean(axis=0), 1, 0) - (X - X.mean(axis=0))
    same(z.to_dask(**HOW).compute(), expected)
    same(((x + d) * 2).to_dask(**HOW).compute(), X * 4)
    total, largest, ones = dask.compute(x.sum(), cf.from_dask(d).max(), d + 1)
    assert (total, largest) == (X.sum(), X.max())
    same(ones, X + 1)
    assert cf.from_dask(d).sum().compute(device="cpu") == X.sum()  # this process asks the cluster for blocks


def test_tasks_ask_for_a_gpu_where_workers_declare_them(client: Any, path: str, tmp_path: Path) -> None:
    asked = {"resources": {"GPU": 1}}
    x = cf.open(path) + 1
    for device, wanted in ((None, asked), ("cpu", None)):
        layers = x.to_dask(**HOW | {"device": device}).__dask_graph__().layers.values()
        assert [layer.annotations for layer in layers] == [wanted] * len(layers)
    with dask.annotate(resources={"disk": 1}):
        layers = x.to_dask("16kB").__dask_graph__().layers.values()
        assert {layer.annotations["resources"]["disk"] for layer in layers} == {1}

    def restrictions(dask_scheduler: Any) -> list[Any]:
        return [task.resource_restrictions for task in dask_scheduler.tasks.values()]

    seen: list[Any] = []
    slow = x.map(lambda u: (time.sleep(0.05), u)[1], dtype="f8")
    thread = Thread(target=lambda: cd.store(slow, str(tmp_path / "y.zarr"), partition="16kB", budget="1MB"))
    thread.start()
    until(lambda: seen.extend(client.run_on_scheduler(restrictions)) or seen)
    thread.join()
    assert all(one == {"GPU": 1} for one in seen)
    same(zarr.open_array(tmp_path / "y.zarr")[...], X + 1)


def test_workers_that_the_client_has_lost_sight_of_are_asked_for(
    client: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dask's client keeps an account of the workers that it replaces, every two seconds, by one without any."""
    monkeypatch.setattr(client, "scheduler_info", lambda n_workers=5: {"workers": {}})
    layers = (cf.open(path) + 1).to_dask("16kB").__dask_graph__().layers.values()
    assert [layer.annotations for layer in layers] == [{"resources": {"GPU": 1}}] * len(layers)


def test_sums_are_the_same_to_the_bit_on_any_number_of_workers(client: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((2000, 50))
    np.save(tmp_path / "x.npy", x)
    d = cf.open(tmp_path / "x.npy").var(axis=0).to_dask(**HOW)
    one = d.compute(scheduler="sync")
    same(d.compute(), one)
    same(d.compute(workers=[next(iter(client.nthreads()))]), one)


@pytest.mark.parametrize("annotations", [{}, {"resources": {"GPU": 1}}], ids=["", "one at a time"])
def test_few_tasks_go_to_all_workers(client: Any, path: str, tmp_path: Path, annotations: dict[str, Any]) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def waiting(u: Any) -> Any:
        """Nothing is done before both workers have a task."""
        (marks / str(os.getpid())).touch()
        until(lambda: len(os.listdir(marks)) == 2)
        return -u

    stealing = client.cluster.scheduler.extensions["stealing"]
    client.cluster.sync(stealing.stop)
    try:
        with dask.annotate(**annotations), dask.config.set({"optimization.fuse.active": False}):
            d = cf.open(path).map(waiting, dtype="f8", workspace=0).to_dask(**{**HOW, "partition": X.nbytes // 4})
            assert d.npartitions == 4
            (persisted,) = dask.persist(d)
            same(persisted.compute(), -X)
    finally:
        client.cluster.sync(stealing.start)


def test_no_task_gives_more_than_its_partial(client: Any, path: str, tmp_path: Path) -> None:
    class Sizes(distributed.diagnostics.plugin.SchedulerPlugin):  # type: ignore[misc]
        def __init__(self) -> None:
            self.nbytes: dict[str, int] = {}

        def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
            if finish == "memory" and "program" not in str(key):
                self.nbytes[str(key)] = kwargs.get("nbytes") or 0

    sizes = Sizes()
    client.cluster.scheduler.add_plugin(sizes, name="sizes")
    try:
        cd.store([cf.open(path) + 1, cf.open(path).sum(axis=0)], [tmp_path / "y.zarr", tmp_path / "s.npy"], **HOW)
    finally:
        client.cluster.scheduler.remove_plugin("sizes")
    partials = [n for key, n in sizes.nbytes.items() if "-part" in key or "-combine" in key]
    others = [n for key, n in sizes.nbytes.items() if "-part" not in key and "-combine" not in key]
    assert partials
    assert max(partials) <= 3 * 8 * 32 * 32
    assert max(others) < 1000  # None, and how many were stored


def test_several_results_are_from_one_read(client: Any, tmp_path: Path) -> None:
    class Runs(distributed.diagnostics.plugin.SchedulerPlugin):  # type: ignore[misc]
        def __init__(self) -> None:
            self.keys: list[Any] = []

        def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
            if (start, finish) == ("processing", "memory"):
                self.keys.append(key)

    marks = tmp_path / "marks"

    def noted(u: Any) -> Any:
        with open(marks, "a") as file:
            file.write(f"{u.size}\n")
        return u

    x = np.random.default_rng(1).standard_normal((2000, 50))
    np.save(tmp_path / "x.npy", x)
    source = cf.open(tmp_path / "x.npy").map(noted, dtype="f8", workspace=0)
    arrays = [f().to_dask("200kB", budget="8MB", device="cpu") for f in (source.mean, source.max, source.std)]
    apart = [array.compute() for array in arrays]
    runs, calls = Runs(), len(marks.read_text().split())
    marks.unlink()
    # What is still there under the same keys the scheduler would take as it is.
    until(lambda: not any("chunkflow_read" in str(key) for key in client.cluster.scheduler.tasks))
    client.cluster.scheduler.add_plugin(runs, name="runs")
    try:
        together = dask.compute(*arrays)
    finally:
        client.cluster.scheduler.remove_plugin("runs")
    for one, other in zip(together, apart, strict=True):
        same(one, other)
    read = [key for key in runs.keys if key[0].startswith("chunkflow_read") and "part" not in key[0]]
    assert len(read) == 4
    assert calls == 3 * len(marks.read_text().split())  # and what they are made of is computed once


def test_quantiles_are_numpys(client: Any, path: str) -> None:
    x = cf.open(path)
    how = {"partition": "200kB", "budget": "100MB", "device": "cpu"}
    same(np.median(x).to_dask(**how).compute(), np.median(X))
    same(np.quantile(abs(x), [0.1, 0.5], axis=0).to_dask(**how).compute(), np.quantile(abs(X), [0.1, 0.5], axis=0))


def test_workers_come_and_go_while_tasks_run(client: Any, path: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def waiting(u: Any) -> Any:
        """The first tasks last until a third worker has one."""
        (marks / str(os.getpid())).touch()
        until(lambda: len(os.listdir(marks)) >= 3)
        return -u

    future = client.compute(cf.open(path).map(waiting, dtype="f8", workspace=0).to_dask(**HOW))
    until(lambda: len(os.listdir(marks)) == 2)
    client.cluster.scale(3)
    try:
        until(lambda: len(os.listdir(marks)) == 3)
    finally:
        client.cluster.scale(2)
    same(future.result(timeout=60), -X)
    until(lambda: len(client.nthreads()) == 2)


def test_a_worker_that_is_killed_is_made_up_for(client: Any, path: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def slow(u: Any) -> Any:
        (marks / str(os.getpid())).touch()
        time.sleep(0.02)
        return u + 1

    lazy = cf.open(path).map(slow, dtype="f8")

    def pids() -> set[Any]:
        return {nanny.pid for nanny in client.cluster.workers.values()}

    killed = []

    def kill() -> None:
        until(lambda: any(marks.iterdir()))
        killed.append(int(next(marks.iterdir()).name))
        os.kill(killed[0], signal.SIGKILL)

    thread = Thread(target=kill)
    thread.start()
    result = cd.store(lazy, tmp_path / "y.zarr", **HOW)
    thread.join()
    same(result[...], X + 1)
    until(lambda: len(client.nthreads()) == len(pids() - {None, *killed}) == 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["marks", "x.zarr", "y.zarr"]


def test_errors_arrive_with_where_they_happened(client: Any, path: str, tmp_path: Path) -> None:
    def picky(u: Any) -> Any:
        raise ZeroDivisionError("here")

    lazy = cf.open(path).map(picky, dtype="f8")
    with pytest.raises(ZeroDivisionError, match="here") as caught:
        cd.store(lazy, tmp_path / "y.zarr", **HOW)
    notes = " ".join(caught.value.__notes__)
    assert "in block" in notes
    assert "in the partition" in notes
    with pytest.raises(BudgetError, match="budget is 100 B") as refused:
        (cf.open(path) + 1).to_dask("16kB", budget=100, device="cpu").compute()
    assert refused.value.smallest > refused.value.limit == 100
    assert [p.name for p in tmp_path.iterdir()] == ["x.zarr"]


def states(dask_worker: Any) -> list[str]:
    return [task.state for task in dask_worker.state.tasks.values()]


def test_what_is_cancelled_stops(client: Any, path: str, tmp_path: Path) -> None:
    calls, cancelled = tmp_path / "calls", tmp_path / "cancelled"
    calls.touch()

    def waiting(u: Any) -> Any:
        with open(calls, "a") as file:
            file.write(".")
        while not cancelled.exists():
            time.sleep(0.01)
        return u

    d = cf.open(path).map(waiting, dtype="f8").sum().to_dask("1GB", budget="200kB", device="cpu")
    future = client.compute(d)
    until(lambda: calls.stat().st_size)
    future.cancel()
    del future
    until(lambda: any("cancelled" in found for found in client.run(states).values()))
    cancelled.touch()
    until(lambda: not any("cancelled" in found for found in client.run(states).values()))
    assert calls.stat().st_size == 1  # not even the trial's second one


def test_one_task_at_a_time_has_the_resource(client: Any, path: str, tmp_path: Path) -> None:
    with dask.annotate(resources={"GPU": 1}), dask.config.set({"optimization.fuse.active": False}):
        d = (cf.open(path) + 1).to_dask(**HOW)
        (persisted,) = dask.persist(d)
        distributed.wait(persisted)
        tasks = [t for key, t in client.cluster.scheduler.tasks.items() if isinstance(key, tuple) and key[0] == d.name]
        assert tasks
        assert all(task.resource_restrictions == {"GPU": 1} for task in tasks)
        same(persisted.compute(), X + 1)
        same(cd.store(cf.open(path) * 2, tmp_path / "y.zarr", **HOW)[...], X * 2)


def test_a_task_has_the_cores_of_its_worker(client: Any) -> None:
    lanes = client.submit(lambda: tasks.device_of("cpu").machine.lanes).result()
    assert lanes == next(iter(client.nthreads().values())) == 1


def test_a_task_has_half_of_its_workers_memory(client: Any) -> None:
    (limit,) = {worker["memory_limit"] for worker in client.sync(client.scheduler.identity)["workers"].values()}
    found = [client.submit(lambda b: tasks.allowed(b, tasks.device_of("cpu")), b).result() for b in (None, "1MB")]
    assert found == [limit // 2, "1MB"]


def test_blocks_are_streamed_by_workers(client: Any) -> None:
    d = da.from_array(X, chunks=(16, 32, 32))
    same(cd.map_blocks(np.negative, d, budget="100kB", device="cpu").compute(), -X)


def test_a_profile_has_the_reports_of_all_workers(client: Any, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = cf.open(path)
    with cd.profile(client, progress=True) as seen:
        total = (x * 2).sum(axis=0).to_dask(**HOW)
        parts = len(total.__dask_graph__().layers[f"{total.name}-part"]) - 1  # without the program
        dask.compute(total, scheduler=client)
    assert f" {parts}/{parts} " in (bar := capsys.readouterr().err)
    assert f"{format_bytes(x.nbytes)} read" in bar
    assert sum(report.runs for report in seen.workers.values()) == seen.report.runs > 0
    assert sum(stage.nbytes for stage in seen.report.stages if stage.name == "read") == x.nbytes
    assert len(str(seen).splitlines()) == 1 + len(seen.workers)
    with cd.profile() as later:
        pass
    assert str(later) == "no task of chunkflow's has run"
    dask.compute(x.max())
    assert not later.workers
    with seen:
        dask.compute(x.max(), scheduler=client)
    assert f" {seen.report.runs}/{seen.report.runs} " in capsys.readouterr().err, "it begins anew"


@pytest.mark.thorough
def test_a_profile_has_each_report_however_many_there_are(client: Any) -> None:
    def work(number: int) -> float:
        return float(dask.compute(cf.open(np.ones((4, 4))).sum(), scheduler="sync")[0])

    with cd.profile(client) as seen:
        client.gather(client.map(work, range(1100)))
    assert seen.report.runs == 1100  # the scheduler itself keeps fewer


def test_a_profile_of_a_client_that_is_closed_meanwhile_hides_no_error() -> None:
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    x = cf.open(np.ones((300, 300)))
    with distributed.LocalCluster(**options, silence_logs=50) as cluster, distributed.Client(cluster) as mine:
        with cd.profile(mine) as seen:
            dask.compute(x.sum(), scheduler="threads")  # none of the cluster's
        assert not seen.workers

        def fail() -> None:
            mine.close()
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"), cd.profile(mine):
            fail()
        with pytest.raises(ArgumentError, match="is closed"):
            cd.profile(mine)
    with pytest.raises(ArgumentTypeError, match="no client"):
        cd.profile(5)

"""What a task asks of its worker."""

from __future__ import annotations

from concurrent.futures import CancelledError
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest

import chunkflow as cf
from chunkflow.cluster import tasks


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task that this thread runs, of a worker that stands in for dask's."""
    found = SimpleNamespace(state="executing")
    state = SimpleNamespace(tasks={"sum-3": found}, nthreads=5)
    memory = SimpleNamespace(memory_limit=4_000_001)
    worker = SimpleNamespace(get_current_task=lambda: "sum-3", state=state, memory_manager=memory)
    monkeypatch.setattr(tasks, "_worker", lambda: worker)
    return found


@pytest.mark.parametrize("state", ["executing", "long-running", "cancelled", "released", "forgotten"])
def test_a_task_ends_if_nobody_wants_it_any_more(task: Any, state: str) -> None:
    check = tasks._cancelled_check()
    assert check is not None
    check()
    task.state = state
    if state in ("executing", "long-running"):
        check()
    else:
        with pytest.raises(CancelledError, match="sum-3 was cancelled"):
            check()


@pytest.mark.usefixtures("task")
def test_a_task_has_its_workers_cores_and_half_of_its_memory() -> None:
    device = tasks.device_of("cpu")
    assert device.machine.lanes == 5
    assert tasks.allowed(None, device) == 2_000_000
    assert tasks.allowed("1MB", device) == "1MB"


def test_without_a_worker_there_is_nothing_to_ask() -> None:
    assert tasks._cancelled_check() is None
    assert tasks.allowed(None, tasks.device_of("cpu")) is None


@pytest.mark.parametrize("how", ["budget", "config", "told", "none"])
@pytest.mark.parametrize("work", [lambda x: x - 1, lambda x: x.mean(axis=0)])
def test_tasks_have_the_budget_that_holds_where_the_graph_is_made(how: str, work: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((64, 64, 64)))
    x = work(cf.open(tmp_path / "x.npy"))
    made: Any = {"budget": lambda: cf.Budget("1MB"), "config": lambda: cf.config.set(budget="1MB")}
    context = made.get(how, nullcontext)
    with context(), cf.Profile() as profile:
        graph = x.to_dask(device="cpu", **({"budget": "1MB"} if how == "told" else {}))
    with profile:
        graph.compute(scheduler="sync")
    assert (profile.report.budget == 1_000_000) == (how != "none")
    if how in ("budget", "config"):
        with context(), profile:
            dask.compute(x, scheduler="threads")
        assert profile.report.budget == 1_000_000

"""A warning of so many small blocks that a run seems to take for ever."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
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

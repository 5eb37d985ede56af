"""`chunkflow.explain` of a call whose arrays are computed: the plan of the expression that the call makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chunkflow as cf

X = np.arange(2000.0).reshape(40, 50)

CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[[Any], Any]]] = {
    "an operation": (cf.std, {"axis": 0}, lambda x: cf.std(x, axis=0)),
    "one of NumPy's": (np.std, {"axis": 0}, lambda x: np.std(x, axis=0)),
    "several passes": (cf.median, {"axis": 0}, lambda x: cf.median(x, axis=0)),
    "a function that is mapped": (abs, {}, lambda x: cf.map(abs, x)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("analyze", [False, True])
def test_as_of_the_expression(name: str, analyze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused: the expression was to be computed first."""
    for module in ("api.operation", "graph.evaluate"):  # what a forecast measures differs from run to run
        monkeypatch.setattr(f"chunkflow.{module}.forecast", lambda run: run.plan)
    fn, how, expression = CALLS[name]
    given: dict[str, Any] = {"budget": "1MB", "device": "cpu"}
    found = cf.explain(fn, cf.open(X) * 2, **how, **given, analyze=analyze)
    if analyze:
        assert found.runs
        return
    assert str(found) == str(cf.explain(expression(cf.open(X) * 2), **given))
    assert found.plans[0].budget == 1_000_000


def test_passes_say_how_often_elements_are_read() -> None:
    """The most of them, by the word that a plan has."""
    plans = cf.explain(cf.open(X) - cf.open(X).mean(), budget="1MB", device="cpu")
    assert plans.rereads == max(plan.rereads for plan in plans.plans) >= 1

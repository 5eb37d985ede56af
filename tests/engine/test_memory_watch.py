"""A function that takes more memory for later blocks than in its trial is named, with both figures and what to do."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.devices import numpy_device

import chunkflow as cf
from chunkflow.core.units import parse_bytes
from chunkflow.devices.cpu import allocations
from chunkflow.engine.trace import Observer, observing
from chunkflow.errors import MemoryUseWarning

X = np.zeros((8000, 500))
X[100:] = 1  # the trial reads the first rows

needs_counts = pytest.mark.skipif(allocations._counted is None, reason="needs the compiled helper")


def greedy(block: Any) -> Any:
    """A temporary of six blocks, but of zeros none."""
    return np.stack([block] * 6).sum(0) if block.any() else block * 1.0


def steady(block: Any) -> Any:
    return block * 2 + 1


def folded(fn: Callable[[Any], Any], **options: Any) -> Any:
    return cf.reduction(
        X, lambda b, axis, keepdims: fn(b).max(axis=axis, keepdims=keepdims), lambda b, axis, keepdims: b.max(
            axis=axis, keepdims=keepdims), **options
    )  # fmt: skip


RUNS: dict[str, Callable[..., Any]] = {
    "map": lambda fn, **o: cf.map(fn, X, **o),
    "stencil": lambda fn, **o: cf.map_overlap(fn, X, depth=1, boundary="nearest", **o),
    "expression": lambda fn, **o: (cf.map(fn, cf.open(X)) + 1).compute(**o),
    "fold": folded,
}


def said_by(run: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """The warnings of a run."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(*args, budget=2_000_000, **options)
    return [str(w.message) for w in seen if w.category is MemoryUseWarning]


@needs_counts
@pytest.mark.parametrize("name", RUNS)
def test_it_is_named_once_with_both_figures(name: str) -> None:
    (said,) = said_by(RUNS[name], greedy, device="cpu")
    found = re.match(
        r"(\S+) took (\S+ \S+) in block .*, region \[.*\], where its trial call let expect (\S+ \S+):", said
    )
    assert found is not None, said
    assert parse_bytes(found[2].replace(" ", "")) > parse_bytes(found[3].replace(" ", ""))
    assert "within the budget of 2.00 MB. Give workspace=" in said
    assert ("greedy" if name in ("map", "expression") else "") in found[1]


@needs_counts
def test_the_workspace_that_it_names_is_enough() -> None:
    (said,) = said_by(RUNS["map"], greedy, device="cpu")
    (workspace,) = re.findall(r"workspace=(\d+)", said)
    assert said_by(RUNS["map"], greedy, device="cpu", workspace=int(workspace)) == []


@pytest.mark.parametrize("name", RUNS)
def test_of_others_nothing_is_said(name: str) -> None:
    assert said_by(RUNS[name], steady, device="cpu") == []


def test_where_the_device_refuses_memory_nothing_is_counted() -> None:
    assert said_by(RUNS["map"], greedy, device=numpy_device("eager", staged=True)) == []


@needs_counts
def test_the_report_has_it_too() -> None:
    notes: list[str] = []

    class Notes(Observer):
        wants_spans = False

        def noted(self, text: str) -> None:
            notes.append(text)

    with observing(Notes()):
        (said,) = said_by(RUNS["map"], greedy, device="cpu")
    assert said in notes


@needs_counts
def test_the_budget_that_it_names_does_without_a_workspace() -> None:
    (said,) = said_by(RUNS["map"], greedy, device="cpu")
    found = re.search(r"To stay within 2\.00 MB without it, as by xarray's methods, give a budget= of (.+)$", said)
    assert found is not None, said
    budget = parse_bytes(found[1].replace(" ", ""))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        cf.map(greedy, X, budget=budget, device="cpu")
    (again,) = [str(w.message) for w in seen if w.category is MemoryUseWarning]
    beyond = re.search(r"may have taken (\S+ \S+) more than was planned", again)
    assert beyond is not None, again
    assert budget + parse_bytes(beyond[1].replace(" ", "")) <= 2_000_000


def turned(block: Any) -> Any:
    """A copy of a block of several lines, and of one line a view of it: xarray's `interp` takes memory in this way."""
    rows, columns, length = block.shape
    lines = block.transpose(1, 0, 2).reshape(rows * columns, length)
    return lines[:, :10].reshape(columns, rows, 10).transpose(1, 0, 2)


@needs_counts
@pytest.mark.parametrize("axes", [(60, 100, 50), (4, 500, 100)])
def test_a_function_of_whole_lines_is_tried_on_several(axes: Any) -> None:
    x, letters = np.ones(axes), (0, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = cf.blockwise(turned, (0, 1, "k"), x, letters, new_axes={"k": 10}, budget=1_500_000, device="cpu")
    assert got.shape == (*axes[:2], 10)

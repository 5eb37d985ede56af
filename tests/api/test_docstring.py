import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import chunkflow
import chunkflow.fft
from chunkflow.api.docstring import documented
from chunkflow.api.operation import is_operation

OPERATIONS = [
    function
    for module in (chunkflow, chunkflow.fft)
    for function in (getattr(module, name) for name in module.__all__)
    if is_operation(function)
]


def entries(function: Callable[..., Any], title: str) -> list[str]:
    """Names that a section of a docstring describes."""
    text = inspect.getdoc(function) or ""
    section = text.partition(f"{title}\n{'-' * len(title)}\n")[2]
    section = re.split(r"\n\n\w+\n---", section)[0]
    heads = [line.partition(" :")[0] for line in section.splitlines() if line and not line.startswith(" ")]
    return [name.strip(" *") for head in heads for name in head.split(",")]


@pytest.mark.parametrize("function", OPERATIONS, ids=lambda f: f.__name__)
def test_each_parameter_of_each_operation_is_described_once(function: Callable[..., Any]) -> None:
    described = entries(function, "Parameters")
    assert len(described) == len(set(described))
    assert set(inspect.signature(function).parameters) - {"options"} <= set(described)


@pytest.mark.parametrize("function", OPERATIONS, ids=lambda f: f.__name__)
def test_each_operation_says_what_a_small_budget_raises(function: Callable[..., Any]) -> None:
    assert "BudgetError" in entries(function, "Raises")


def test_own_text_goes_before_the_familys_and_the_familys_before_that_of_all() -> None:
    own = """Do it.

    Parameters
    ----------
    x, n : int
        Own.
    """
    family = """A family.

    Parameters
    ----------
    x : int
        Family.
    out : int
        Family.

    Returns
    -------
    int
        Family.
    """
    text = documented(own, family, ["x", "n", "out", "overwrite"])
    start = (
        "Do it.\n\nParameters\n----------\nx, n : int\n    Own.\nout : int\n    Family.\noverwrite : bool\n    Whether"
    )
    assert text.startswith(start)
    assert "\n\nReturns\n-------\nint\n    Family.\n\nRaises\n------\nBudgetError\n" in text


def test_examples_that_import_nothing_get_the_usual_imports() -> None:
    text = documented("Do it.\n\n    Examples\n    --------\n    >>> cf.it()\n", "A family.", [])
    assert "Examples\n--------\n>>> import numpy as np, chunkflow as cf\n>>> cf.it()" in text
    own = "Do it.\n\n    Examples\n    --------\n    >>> import os\n"
    assert "Examples\n--------\n>>> import os" in documented(own, "A family.", [])


@pytest.mark.parametrize("function", OPERATIONS, ids=lambda f: f.__name__)
def test_chunks_come_before_what_all_runs_take(function: Callable[..., Any]) -> None:
    keywords = [key for key in inspect.signature(function).parameters if key in ("chunks", "device", "progress")]
    assert "chunks" not in keywords[1:]

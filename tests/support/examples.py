"""How much is tried: few examples and some of the parameters in CI, many and all of them in `make thorough`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def examples(share: float) -> int:
    """Number of a test's examples, as a share of those that the profile asks for.

    A test that runs in ten places draws other ones in each: a quarter for each is more than one place would draw.
    """
    return max(1, round(share * settings().max_examples))


def each(values: Iterable[Any], step: int, first: int = 0) -> list[Any]:
    """Parameters of which CI tries every `step`-th one, and `make thorough` all: those that show much the same."""
    return [
        pytest.param(value, marks=[pytest.mark.thorough] * (number % step != first))
        for number, value in enumerate(values)
    ]

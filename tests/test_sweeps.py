"""What is tried of a `sweep` shows each value, or each pair of values; see ``conftest.py``."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import settings

SIDES = (4, 3, 5)


@pytest.mark.sweep
@pytest.mark.parametrize("a", range(SIDES[0]))
@pytest.mark.parametrize(("b", "same"), [(b, b) for b in range(SIDES[1])])
@pytest.mark.parametrize("c", range(SIDES[2]))
def test_of_three(a: int, b: int, same: int, c: int) -> None:
    assert b == same


@pytest.mark.sweep
@pytest.mark.parametrize("a", range(SIDES[0]))
@pytest.mark.parametrize("b", range(SIDES[1]))
def test_of_two(a: int, b: int) -> None: ...


def tried(request: pytest.FixtureRequest, test: str, names: str) -> list[tuple[int, ...]]:
    found = [item.callspec for item in request.session.items if item.nodeid.partition("[")[0].endswith(test)]  # type: ignore[attr-defined]
    return [tuple(spec.params[name] for name in names) for spec in found]


def test_few_are_tried_that_show_each_pair(request: pytest.FixtureRequest) -> None:
    found = tried(request, "::test_of_three", "abc")
    for i, j in combinations(range(3), 2):
        assert {(test[i], test[j]) for test in found} == set(product(range(SIDES[i]), range(SIDES[j])))
    if settings().derandomize:
        assert len(found) < 0.6 * 4 * 3 * 5


def test_few_are_tried_that_show_each_value(request: pytest.FixtureRequest) -> None:
    found = tried(request, "::test_of_two", "ab")
    assert {a for a, _ in found} == set(range(4))
    assert {b for _, b in found} == set(range(3))
    if settings().derandomize:
        assert len(found) == 4

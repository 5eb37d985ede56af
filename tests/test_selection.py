"""What CI tries of a test shows each value of its parameters, of a contract each place somewhere: ``conftest.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from support.devices import CHECKING, Place, checked

SIDES = (4, 3, 5)
NUMBER = 16


@pytest.mark.parametrize("a", range(SIDES[0]))
@pytest.mark.parametrize(("b", "same"), [(b, b) for b in range(SIDES[1])])
@pytest.mark.parametrize("c", range(SIDES[2]))
def test_of_three(a: int, b: int, same: int, c: int) -> None:
    assert b == same


@pytest.mark.parametrize("a", range(SIDES[0]))
@pytest.mark.parametrize("b", range(SIDES[1]))
def test_of_two(a: int, b: int) -> None: ...


@pytest.mark.combinations
@pytest.mark.parametrize("a", range(SIDES[0]))
@pytest.mark.parametrize("b", range(SIDES[1]))
def test_of_all(a: int, b: int) -> None: ...


@checked
@pytest.mark.combinations
@pytest.mark.parametrize("a", range(NUMBER))
def test_of_places(place: Place, a: int) -> None: ...


def tried(request: pytest.FixtureRequest, test: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    found = [item.callspec for item in request.session.items if item.nodeid.partition("[")[0].endswith(test)]  # type: ignore[attr-defined]
    return [tuple(spec.params[name] for name in names) for spec in found]


@pytest.mark.parametrize(("test", "sides"), [("test_of_three", SIDES), ("test_of_two", SIDES[:2])])
def test_few_are_tried_that_show_each_value(test: str, sides: tuple[int, ...], request: pytest.FixtureRequest) -> None:
    found = tried(request, f"::{test}", "abc"[: len(sides)])
    assert [set(values) for values in zip(*found, strict=True)] == [set(range(side)) for side in sides]
    if settings().derandomize:
        assert len(found) == max(sides)


def test_all_combinations_are_tried_where_they_are_asked_for(request: pytest.FixtureRequest) -> None:
    assert len(tried(request, "::test_of_all", "ab")) == SIDES[0] * SIDES[1]


def test_a_contract_is_tried_in_a_quarter_of_the_places(request: pytest.FixtureRequest) -> None:
    found = tried(request, "test_of_places", ("a", "place"))
    if settings().max_examples >= settings.get_profile("thorough").max_examples:
        assert len(found) == NUMBER * len(CHECKING)
        return
    for a in range(NUMBER):
        places = [place for number, place in found if number == a]
        assert places in [CHECKING[first::4] for first in range(4)]
    assert {str(place) for _, place in found} == set(map(str, CHECKING)), "other places from test to test"

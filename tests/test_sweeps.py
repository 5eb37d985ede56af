"""What is tried of a `sweep` shows each value; see ``conftest.py``."""

from __future__ import annotations

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


@pytest.mark.parametrize(("test", "sides"), [("test_of_three", SIDES), ("test_of_two", SIDES[:2])])
def test_few_are_tried_that_show_each_value(test: str, sides: tuple[int, ...], request: pytest.FixtureRequest) -> None:
    found = tried(request, f"::{test}", "abc"[: len(sides)])
    assert [set(values) for values in zip(*found, strict=True)] == [set(range(side)) for side in sides]
    if settings().derandomize:
        assert len(found) == max(sides)

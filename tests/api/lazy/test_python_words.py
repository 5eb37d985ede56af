"""What Python itself asks of an expression: membership, bytes, powers of a modulus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.devices import Place, on_cpu_and_gpu

import chunkflow as cf
from chunkflow.errors import ArgumentTypeError

DAYS = np.array(["2020-01-01", "NaT", "2020-01-03"], "M8[D]")
HIDDEN = np.ma.masked_equal(np.array([[1, 2], [3, 2]]), 2)

MEMBERS: list[tuple[Any, Any]] = [
    *((value, np.arange(6.0).reshape(2, 3)) for value in (3.0, 9, np.nan)),
    *((value, np.array(3.0)) for value in (3, 4)),
    *((value, np.zeros((0, 2))) for value in (0, 1)),
    *((value, DAYS) for value in (DAYS[0], DAYS[1], DAYS[2] + 1)),
    *((value, HIDDEN) for value in (1, 2, 3, 4)),
]


@on_cpu_and_gpu
@pytest.mark.parametrize(("value", "array"), MEMBERS, ids=repr)
def test_membership_is_equality_with_any_element(value: Any, array: Any, place: Place) -> None:
    with cf.config.set(device=place.device()):
        assert (value in cf.open(array)) is bool(np.any(np.ma.filled(array == value, False)))


def test_membership_takes_one_run() -> None:
    plans: list[Any] = []

    class Runs(cf.Observer):
        wants_spans = False

        def started(self, plan: Any, run: Any = None) -> None:
            plans.append(plan)

    with cf.observing(Runs()):
        assert -1 not in cf.open(np.arange(1000))
    assert len(plans) == 1


@pytest.mark.parametrize("array", [np.arange(3), np.arange(3, dtype="u1"), np.ones((2, 2))])
def test_bytes_are_those_of_the_computed_array(array: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"compute\(\)\.tobytes\(\) has them"):
        bytes(cf.open(array))


@pytest.mark.parametrize("call", [lambda x: pow(x, 2, 5), lambda x: pow(2, x, 5)])
def test_powers_of_a_modulus_are_not_defined_as_in_numpy(call: Callable[[Any], Any]) -> None:
    for x in (np.array(7), cf.open(np.array(7))):
        with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \*\* or pow\(\)"):
            call(x)
    assert pow(cf.open(np.array(7)), 2).compute(device="cpu") == 49

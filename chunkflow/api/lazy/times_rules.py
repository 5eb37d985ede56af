"""What the handlers of functions of times share: which arguments are times, and errors that name the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chunkflow.api.lazy.times_parts import WAYS_OUT, Times, has_times
from chunkflow.errors import UnsupportedError

OF_A_RUN = ("chunks", "budget", "device", "progress")
"""Arguments of chunkflow's operations that are none of NumPy's."""


def refusal(name: str, why: str = "is not supported") -> UnsupportedError:
    """The error of a function that times do not have, with the ways out."""
    return UnsupportedError(f"{name} of times {why}: {WAYS_OUT}")


def takes(name: str, named: Mapping[str, Any], *known: str) -> None:
    """Refuse arguments that a function does not take of times."""
    if strange := named.keys() - set(known):
        raise refusal(name, f"takes no {', '.join(sorted(strange))}")


def only(places: Sequence[Any], at: int = 0) -> Times:
    """The one argument of times, which has this place."""
    if not isinstance(places[at], Times) or has_times([*places[:at], *places[at + 1 :]]):
        raise UnsupportedError(f"an argument is of times that must not be: {WAYS_OUT}")
    found: Times = places[at]
    return found


def first_times(values: Any) -> Times:
    """The first expression of times in lists of arguments: there is one."""
    found = [v if isinstance(v, Times) else first_times(v) for v in values if has_times(v)]
    return found[0]

"""How a program's parts are drawn: the simplest choice comes first, and is what a failure is shrunk to."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tests.fuzz.program import Value

T = TypeVar("T")

MOST = 4000
"""Elements of an array."""


@dataclass
class Drawing:
    """Draws for one program, and the values that it has so far.

    All that is drawn is a list of numbers: first those that are `given`, then random ones, or 0 where nothing is drawn
    `randomly`. Of forms, sources, outs, budgets and operations those `among` are drawn, where that names any.
    """

    given: Sequence[int] = ()
    randomly: random.Random | None = None
    device: str = "cpu"
    among: frozenset[str] = frozenset()
    form: str = "lazy"
    budget: str = "default"
    values: list[Value] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        if low >= high:
            return low
        number = 0
        if len(self.drawn) < len(self.given):
            number = min(self.given[len(self.drawn)], high - low)
        elif self.randomly is not None:
            number = self.randomly.randint(0, high - low)
        self.drawn.append(number)
        return low + number

    def choice(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[self.integer(0, len(options) - 1)]

    def only(self, what: str, options: Sequence[T]) -> T:
        """One of those that are wanted; all are, where none of the kind is named."""
        named = {str(getattr(option, "name", option)): option for option in options}
        wanted = [option for name, option in named.items() if f"{what}={name}" in self.among]
        return self.choice(wanted or options)

    def wanted(self, *names: str) -> bool:
        """Whether operations of these names, or families, are wanted."""
        asked = {name.removeprefix("operation=") for name in self.among if name.startswith("operation=")}
        return not asked or not asked.isdisjoint(names)

    def chance(self, percent: int) -> bool:
        """Yes, that often."""
        return self.integer(0, 99) >= 100 - percent

    def seed(self) -> int:
        """Of a random generator."""
        return self.integer(0, 999)

    # -- Of arrays ------------------------------------------------------------------------------------------------

    def axis(self, x: np.ndarray) -> int:
        """An axis, counted from either end."""
        return self.integer(0, x.ndim - 1) - (x.ndim if self.chance(30) else 0)

    def axes(self, x: np.ndarray) -> Any:
        """All axes, one, or several in any order."""
        kind = self.integer(0, 3)
        if kind == 0 or x.ndim == 0:
            return None
        if kind < 3:
            return self.axis(x)
        order = self.order(x.ndim)
        return tuple(order[: self.integer(1, x.ndim)])

    def order(self, number: int) -> list[int]:
        """The numbers below `number` in any order."""
        left, found = list(range(number)), []
        while left:
            found.append(left.pop(self.integer(0, len(left) - 1)))
        return found

    def sides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape of chunks."""
        return tuple(self.integer(1, max(1, n)) for n in shape)

    def blocks(self, shape: Sequence[int]) -> str:
        """Now and then ``chunks=`` of an operation, in text."""
        if not shape or not self.chance(25):
            return ""
        return f", chunks={tuple(-1 if self.chance(30) else self.integer(1, max(1, n)) for n in shape)}"

    def index(self, shape: Sequence[int]) -> str:
        """A basic index, in text."""
        parts = []
        for n in shape:
            kind = self.integer(0, 5)
            if kind == 5 and n:
                parts.append(str(self.integer(-n, n - 1)))
            elif kind >= 3:
                step = self.choice([1, 2, -1, 3, -2])
                first, last = (self.choice([None, self.integer(-n - 1, n + 1)]) for _ in range(2))
                parts.append(f"{'' if first is None else first}:{'' if last is None else last}:{step}")
            elif kind == 2:
                first = self.integer(0, max(0, n - 1))
                parts.append(f"{first}:{self.integer(first, n)}")
            else:
                parts.append(":")
        while parts and parts[-1] == ":":
            parts.pop()
        if self.chance(20):
            parts.insert(self.integer(0, len(parts)), "None")
        if self.chance(20) and len(parts) > 1:
            parts[self.integer(0, len(parts) - 1)] = "..."
        return ", ".join(parts) or "..."

    def other(self, x: Value, kinds: str = "biufc", same_shape: bool = False) -> Value:
        """Another value that broadcasts against one, or itself."""
        alike = [v for v in self.values if self.form != "eager" or _same_names(v, x)]
        fitting = [v for v in alike if v.array.dtype.kind in kinds and v.exact and fits(v, x, same_shape)]
        return self.choice([x, *fitting]) if fitting else x


def _same_names(one: Value, other: Value) -> bool:
    """Whether two arrays broadcast as NumPy's do: what runs at once broadcasts xarray's by the names of dimensions."""
    labelled, moved = one.labelled or other.labelled, one.moved or other.moved
    return one is other or (one.array.ndim == other.array.ndim and not (labelled and moved))


def fits(one: Value, other: Value, same_shape: bool) -> bool:
    """Whether two arrays broadcast to no more elements than allowed."""
    if same_shape or one.array.shape == other.array.shape:
        return one.array.shape == other.array.shape
    try:
        return math.prod(np.broadcast_shapes(one.array.shape, other.array.shape)) <= MOST
    except ValueError:
        return False

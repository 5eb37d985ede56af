"""What a case is: contenders and their limit, or a table of figures; and what a case is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data import volume, volume_shape
from benchmarks.probe import Accelerator
from benchmarks.timing import Check, Contender, Warm

OURS = "chunkflow"
BLOCK = 256 << 20  # bytes of the blocks of loops by hand


class MissingError(Exception):
    """Something that a case can't do without: a package, or a device."""


@dataclass(frozen=True)
class Goal:
    """What chunkflow should reach: a share of the limit, or a `rate` in the case's unit."""

    share: float | None = None
    rate: float | None = None

    def met(self, rate: float, limit: float) -> bool:
        return rate >= self.rate if self.rate is not None else rate >= (self.share or 0.0) * limit

    def __str__(self) -> str:
        return f"{self.rate:g}" if self.rate is not None else f"{self.share:.2f} of the limit"


class Group(NamedTuple):
    """Contenders that take turns; chunkflow's runs share a `cf.Budget` of these bytes, if any."""

    names: tuple[str, ...]
    budget: str | int | None


@dataclass(frozen=True)
class Case:
    """Work of `amount` (10^9 bytes, or 10^12 operations), and who does it.

    The `limit` is a rate in `unit`, or None for that of the contender of this name; where `bound`, a contender too, is
    slower than it, that one is the limit. Contenders take turns in `groups`,
    by default all in one; where groups are given, the device memory of each contender is watched. `watch` makes the
    uncounted runs instead, and may fill `columns` (head of the column, name of the contender). `apart` is for memory
    that is measured in a process of its own for each contender. `explain` says more for ``--profile``. `reason` says
    why the goal may be missed, by a profile; the page of results has it where less than the goal's share was reached.
    """

    name: str
    what: str
    amount: float
    runs: Mapping[str, Contender]
    check: Check
    limit: tuple[str, float | None] | None
    goal: Goal | None = None
    unit: str = "GB/s"
    missing: tuple[str, ...] = ()
    ours: str = OURS
    bound: str | None = None
    groups: tuple[Group, ...] = ()
    watch: Warm | None = None
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    apart: bool = False
    explain: Callable[[], str] | None = None
    reason: str = ""


@dataclass
class Listing:
    """Figures that are no race: a table, and curves of milliseconds over an amount if there is one to be drawn."""

    name: str
    title: str
    head: list[str]
    rows: list[tuple[object, ...]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, amount: float, *cells: object, **seconds: float | None) -> None:
        """A row of the table, and a point of each curve whose contender was there."""
        self.rows.append(cells)
        for name, took in seconds.items():
            if took is not None:
                self.curves.setdefault(name, []).append((amount, took * 1e3))


@dataclass
class Bench:
    """What cases are told."""

    directory: Path
    device: str
    gib: float
    budget: str = "4GB"
    repeats: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: Sequence[str] = ("",)
    accelerator: Accelerator = field(init=False)
    _known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accelerator = Accelerator(self.device)

    def wanted(self, name: str) -> bool:
        """Whether a case is asked for, by a part of its name: those that are not need not be prepared."""
        return any(part in name for part in self.only)

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """What is made, or measured, once for several cases."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    @property
    def xp(self) -> Any:
        return self.accelerator.xp

    @property
    def is_gpu(self) -> bool:
        return self.accelerator.is_gpu

    @property
    def options(self) -> dict[str, Any]:
        return {"device": self.device}

    @property
    def link(self) -> float:
        """GB/s of one direction."""
        return float(self.once("link", self.accelerator.link))

    @property
    def both(self) -> float:
        """GB/s each way when both directions are at work."""
        return float(self.once("both", self.accelerator.both_ways))

    @property
    def x(self) -> np.memmap:
        """A page-cached volume."""
        return self.once("x", lambda: volume(self.directory / "x.bin", volume_shape(self.gib)))  # type: ignore[no-any-return]

    @property
    def ram(self) -> np.ndarray:
        """The same in memory, half of it at most."""
        return self.once("ram", lambda: np.array(self.x[: max(16, len(self.x) // 2)]))  # type: ignore[no-any-return]

    @property
    def out(self) -> np.ndarray:
        """A place in memory for results of its size."""
        return self.once("out", lambda: np.empty_like(self.ram))  # type: ignore[no-any-return]

    def host(self, block: Any) -> np.ndarray:
        """A block of the device as NumPy's."""
        return block.get() if self.is_gpu else block  # type: ignore[no-any-return]

    def alone(self, runs: Mapping[str, Contender], budget: str | int | None = None) -> tuple[Group, ...]:
        """A group for each contender: device memory is the driver's figure, which the others' memory would change."""
        return tuple(Group((name,), budget or self.budget) for name in runs)


def close_to(expected: float, rtol: float = 1e-6) -> Check:
    """A check of a sum."""

    def check(name: str, got: Any) -> None:
        assert abs(float(got) - expected) <= rtol * abs(expected), f"{name}: {float(got)}, and it is {expected}"

    return check

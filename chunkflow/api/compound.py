"""Handles of several expressions that stand for one array, and are computed together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chunkflow.graph.nodes import PLAIN, Lazy


class Compound(ABC):
    """Several expressions as one array: what computes expressions takes it, and gives what it makes of their results.

    An operation hands its arguments to the first one among them.
    """

    __slots__ = ()

    storable: str
    """What to give to a function that stores expressions of one array, for users."""

    @abstractmethod
    def parts(self) -> tuple[Lazy, ...]:
        """The expressions."""

    @abstractmethod
    def assembled(self, results: Sequence[Any]) -> Any:
        """The result, of the parts' results."""

    def stored_as(self, place: Any) -> tuple[Lazy, Any] | None:
        """The one expression that is stored in its place, and the place with what is said of it; None if none is."""
        return None

    @abstractmethod
    def operated(self, operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one of chunkflow's operations gives with these arguments."""


def first_compound(values: Iterable[Any]) -> Compound | None:
    """The first one among arguments, and in lists of them."""
    for value in values:
        if isinstance(value, PLAIN):  # lists may have millions of them
            continue
        if isinstance(value, Compound):
            return value
        if (found := first_compound(value if isinstance(value, list | tuple) else ())) is not None:
            return found
    return None

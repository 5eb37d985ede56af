"""Tables of handlers: what functions give of arrays that are several expressions, or one that is seen otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkflow.api.lazy import numpy_dispatch
from chunkflow.api.lazy.numpy_signature import bound, check_taken
from chunkflow.errors import refused_by

Function = Callable[..., Any]
Handler = Callable[[Function, list[Any], dict[str, Any]], Any]
"""Given a function for expressions, the arguments that have no default, and the others by name."""


@dataclass(frozen=True)
class Handlers:
    """A handler for each of NumPy's `functions`, and for each of chunkflow's `operations`, that such arrays have.

    `refusal` makes the error of any other one, given its name.
    """

    functions: Mapping[Function, Handler]
    operations: Mapping[Function, Handler]
    refusal: Callable[[str], Exception]

    def function(self, fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one of NumPy's functions gives."""
        name = numpy_dispatch.name_of(fn)
        if fn not in self.functions:
            raise self.refusal(name)
        places, named = bound(fn, name, args, kwargs)
        ours = numpy_dispatch.FUNCTIONS[fn]
        check_taken(ours, name, named)
        with refused_by(name, (*args, *kwargs.values())):
            return self.functions[fn](ours, places, named)

    def operation(self, ours: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one of chunkflow's operations gives."""
        name = f"chunkflow.{ours.__name__}"
        if ours not in self.operations:
            raise self.refusal(name)
        places, named = bound(ours, name, args, kwargs)
        with refused_by(name, (*args, *kwargs.values())):
            return self.operations[ours](ours, places, named)

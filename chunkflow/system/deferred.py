"""Functions of modules that are loaded when they are first called, and classes of those that others have loaded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def at(place: str) -> Callable[..., Any]:
    """A function or class of a module, which is loaded by the first call.

    >>> at("math:sqrt")(4)
    2.0
    """
    module, name = place.split(":")
    return lambda *args, **options: getattr(importlib.import_module(module), name)(*args, **options)


def instance_of(place: str, *names: str) -> Callable[[object], bool]:
    """Whether an object is of these classes of a module. Nobody can have one without having imported the module."""

    def found(obj: object) -> bool:
        module = sys.modules.get(place)
        return module is not None and isinstance(obj, tuple(getattr(module, name) for name in names))

    return found

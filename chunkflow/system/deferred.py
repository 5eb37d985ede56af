"""Functions of modules that are loaded when they are first called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def at(place: str) -> Callable[..., Any]:
    """A function or class of a module, which is loaded by the first call.

    >>> at("math:sqrt")(4)
    2.0
    """
    module, name = place.split(":")
    return lambda *args, **options: getattr(importlib.import_module(module), name)(*args, **options)

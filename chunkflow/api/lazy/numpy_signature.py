"""Arguments of NumPy's functions, bound as NumPy binds them: by its own signatures, not by ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from chunkflow.core.spelling import meant
from chunkflow.errors import ArgumentTypeError, UnsupportedError

Function = Callable[..., Any]

HINTS = frozenset({"overwrite_input", "optimize", "subok"})
"""Parameters that change how NumPy computes a result, and not the result's values."""


def bound(fn: Function, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call of NumPy's function: those without a default in order, the others by name.

    Arguments that equal NumPy's default are left out, so that a function need not have them.

    Raises
    ------
    ArgumentTypeError
        NumPy's function does not take these arguments.
    UnsupportedError
        ``out=`` is given.

    >>> bound(np.mean, "np.mean", ([1, 2], 0, None, None, True), {})
    ([[1, 2]], {'axis': 0, 'keepdims': True})
    """
    signature = _signature(fn)
    if signature is None:  # a NumPy that does not tell the signatures of its compiled functions
        return list(args), {key: value for key, value in kwargs.items() if value is not np._NoValue}
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = [key for key in kwargs if key not in signature.parameters]
        hint = meant(unknown[0], signature.parameters) if unknown else ""
        raise ArgumentTypeError(f"{name}: {error}. It takes {signature}{hint}") from None
    check_no_out(name, given.arguments.get("out"))
    places: list[Any] = []
    named: dict[str, Any] = {}
    for key, value in given.arguments.items():
        parameter = signature.parameters[key]
        if parameter.kind is parameter.VAR_POSITIONAL:
            places += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= value
        elif parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            places.append(value)
        elif key not in HINTS and not _is_default(value, parameter.default):
            named[key] = value
    return places, named


def check_no_out(name: str, out: Any) -> None:
    """Raise if an array is given for the result.

    Raises
    ------
    UnsupportedError
        It says what to use instead.
    """
    if out is not None:
        raise UnsupportedError(
            f"{name}: out= is not for expressions: leave it out, and give the output to store() or to_zarr()"
        )


def check_taken(ours: Function, name: str, named: Mapping[str, Any]) -> None:
    """Raise if a function of ours lacks one of these parameters.

    Raises
    ------
    UnsupportedError
        It names the parameter, and those that there are.
    """
    taken = _parameters(ours)
    lacking = [key for key in named if taken is not None and key not in taken]
    if lacking:
        known = f"of the arguments that have a default it takes {', '.join(taken or ())}" if taken else "leave it out"
        raise UnsupportedError(f"{name} of an expression takes no {' or '.join(lacking)}: {known}")


@cache
def _signature(fn: Function) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except ValueError:
        return None


@cache
def _parameters(fn: Function) -> tuple[str, ...] | None:
    """Parameters with a default, but for those of a run; None for a function that takes whatever comes."""
    parameters = inspect.signature(fn).parameters
    kinds, run = parameters.values(), _OF_A_RUN if "budget" in parameters else frozenset()
    if any(p.kind is p.VAR_KEYWORD and "Unpack" not in str(p.annotation) for p in kinds):  # the latter are a run's
        return None
    return tuple(p.name for p in kinds if p.default is not p.empty and p.name not in run)


_OF_A_RUN = frozenset(
    {"chunks", "out", "budget", "device", "progress", "overwrite", "sync", "resume", "name", "checksum", "precision"}
)


_PLAIN = (bool, np.bool_, int, float, str, tuple)


def _is_default(value: Any, default: Any) -> bool:
    if value is default or value is np._NoValue:
        return True
    return isinstance(value, _PLAIN) and isinstance(default, _PLAIN) and bool(value == default)

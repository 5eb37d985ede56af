"""Keywords that are misspelt, and what was probably meant: one way to say so, for all functions that users call."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from chunkflow.core.elsewhere import hint
from chunkflow.errors import ArgumentTypeError

P = ParamSpec("P")
T = TypeVar("T")


_LIKE = 0.65
"""Likeness of a keyword to another, from which on it may be a misspelling of it: mode is none of decode."""

_NEAR = 0.6
"""The same of names that are asked for: avg is average."""


def meant(name: str, known: Iterable[str]) -> str:
    """A hint at the keyword that is nearly spelt so; empty if there is none.

    >>> meant("bugdet", ["axis", "budget"]), meant("zzz", ["axis"])
    ('; did you mean budget=?', '')
    """
    close = difflib.get_close_matches(name, list(known), 1, _LIKE)
    return f"; did you mean {close[0]}=?" if close else ""


def near(name: str, known: Iterable[str]) -> str:
    """A hint at the attribute that is nearly spelt so; empty if there is none, and for names that programs ask for.

    >>> near("stdev", ["mean", "std"]), near("_repr_png_", ["mean"])
    ('; did you mean std?', '')
    """
    close = [] if name.startswith("_") else difflib.get_close_matches(name, list(known), 1, _NEAR)
    return f"; did you mean {close[0]}?" if close else ""


def check_keywords(function: str, given: Iterable[str], known: Collection[str], beside: str = "") -> None:
    """Refuse keywords that a function does not take; `beside` is said of what it takes.

    >>> check_keywords("mean", ["bugdet"], ["x", "axis", "budget"])
    Traceback (most recent call last):
    chunkflow.errors.ArgumentTypeError: mean got an unexpected keyword argument 'bugdet'; did you mean budget=?
    """
    unknown = [name for name in given if name not in known]
    if unknown:
        name = min(unknown)
        close = "" if beside else meant(name, known)
        raise ArgumentTypeError(
            f"{function} got an unexpected keyword argument {name!r}"
            + (close or f": it takes {', '.join(known)}{beside}{hint(unknown)}")
        )


def misspelt(given: Iterable[str], missing: Collection[str]) -> str:
    """A hint that a keyword may stand for one that is missing; empty if none does.

    >>> misspelt(["dept", "sigma"], ["depth"])
    '; did you mean depth= by dept=?'
    """
    for name in given:
        for close in difflib.get_close_matches(name, list(missing), 1):
            return f"; did you mean {close}= by {name}=?"
    return ""


def spelt(further: Callable[[tuple[object, ...]], str] | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function say of a keyword that it does not take what was probably meant.

    `further` says what to do with more arguments by position than it takes.
    """

    def decorate(fn: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(fn).parameters
        known = [key for key, p in parameters.items() if key != "self" and p.kind is not p.VAR_POSITIONAL]
        places = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

        *_, owner, own = ("", *fn.__qualname__.split("."))
        name = owner if own == "__init__" else own

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if kwargs:
                check_keywords(name, kwargs, known)
            if further is not None and len(args) > len(places):
                raise ArgumentTypeError(
                    f"{name} takes {len(places)} by position, and was given {len(args)}{further(args)}"
                )
            return fn(*args, **kwargs)

        return call

    return decorate


def spelt_class(cls: type[T]) -> type[T]:
    """The same of a class."""
    cls.__init__ = spelt()(cls.__init__)  # type: ignore[method-assign]
    return cls

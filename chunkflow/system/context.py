"""The caller's context, for threads that call his functions: his errstate and variables hold there too."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from typing import TypeVar

T = TypeVar("T")

_inner: list[tuple[ContextVar[object], object]] = []


def run_variable(name: str, default: T) -> ContextVar[T]:
    """A context variable of the library's own, which says something of the present run.

    A function that the run calls does not see it: a run that it starts is one of its own.
    """
    variable: ContextVar[T] = ContextVar(name, default=default)
    _inner.append((variable, default))  # type: ignore[arg-type]
    return variable


def callers_context() -> Context:
    """A copy of the present context without what says something of the run.

    >>> seen = run_variable("seen", 0)
    >>> _ = seen.set(1)
    >>> seen.get(), callers_context().run(seen.get)
    (1, 0)
    """
    context = copy_context()
    for variable, default in _inner:
        context.run(variable.set, default)
    return context

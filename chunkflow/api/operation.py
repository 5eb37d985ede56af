"""From a request to its results: the one way in which every operation runs, is explained, or becomes an expression.

An operation is a function that says what is to be done (a `Request`); the decorator `operation` does it, or where one
of its arrays is an expression gives another expression.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, ParamSpec, overload

from chunkflow.api.labels import Labels, labels_of
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.observe.progress import watching
from chunkflow.engine.options import Options
from chunkflow.engine.prepare import prepared
from chunkflow.engine.run import launched
from chunkflow.engine.trace import Trace
from chunkflow.errors import ArgumentTypeError, UnsupportedError
from chunkflow.graph.evaluate import Evaluation, op_node
from chunkflow.graph.nodes import (
    Lazy,
    MultiPassNode,
    Node,
    check_lazily,
    first_lazy,
    has_lazy,
    interned,
    key_of,
    node_of,
)
from chunkflow.graph.request import Request
from chunkflow.kernels.map import is_scalar
from chunkflow.system import interrupts

__all__ = [
    "Request",
    "check_eager",
    "check_passed",
    "composed",
    "execute",
    "is_operation",
    "operation",
    "plan_of",
    "watching",
]

P = ParamSpec("P")


def execute(request: Request) -> Any:
    """Run a request: the output, or a tuple of them."""
    asking = _asking.get()
    if asking is not None:
        return dispatch(request, *asking)
    watch = watching(request.progress)
    if first_lazy(*request.arrays) is not None:
        result = _evaluated(request, watch)
    else:
        with interrupts.deferred(), prepared(request.declare, request.arrays, request.options) as run:
            results = launched(run, watch)
        result = results if run.is_tuple else results[0]
    return result if request.finish is None else request.finish(result)


def _evaluated(request: Request, watch: Trace) -> Any:
    """Results of a request whose arrays are expressions."""
    node = op_node(request, "result")
    with ExitStack() as stack:
        return Evaluation(request.options, watch).run({node: request.options.out}, stack)[node]


def operation(ask: Callable[P, Request]) -> Callable[P, Any]:
    """Turn a function that returns a `Request` into one that runs it, or makes an expression of it."""

    @functools.wraps(ask)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        labels = labels_of(ask, args, kwargs)
        return dispatch(ask(*args, **kwargs), ask, args, kwargs) if labels is None else labelled(labels, ask, call)

    call.__dict__["asks"] = ask
    call.__annotations__ = {**ask.__annotations__, "return": Any}
    return call


def labelled(labels: Labels, ask: Callable[..., Request], call: Callable[..., Any]) -> Any:
    """What a call on labelled arrays gives, with labels where they hold for the results. `ask` says what is run."""
    request = ask(*labels.args, **labels.kwargs)
    if request.keeps and len(labels.arrays) > 1:
        labels.match()
        request = ask(*labels.args, **labels.kwargs)
    result = call(*labels.args, **labels.kwargs)
    if not request.keeps:
        return result
    arrays = [a for a in request.arrays if not is_scalar(a)]
    return labels.onto(result, op_node(request, ask.__name__).declared, arrays)


def expression(
    kind: Callable[[Node], Any],
    request: Request,
    ask: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The expression of a request: an array of this kind, or a tuple of them if `dtype` says so."""
    name = ask.__name__
    if request.is_view:
        return kind(node_of(request.arrays[0]))
    check_lazily(request.options, request.progress, name)
    # What a path means may change from call to call.
    key = None if any(isinstance(array, str) for array in request.arrays) else key_of(ask, args, kwargs)
    node = op_node(request, name, key)
    node.check()
    if isinstance(request.options.dtype, tuple):
        return tuple(kind(node.item(i)) for i in range(len(request.options.dtype)))
    return kind(node)


def dispatch(request: Request, ask: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call that asks for this gives: results, or an expression where one of its arrays is one."""
    first = first_lazy(*request.arrays)
    return execute(request) if first is None else expression(type(first), request, ask, args, kwargs)


@overload
def composed(fn: Callable[P, Any]) -> Callable[P, Any]: ...


@overload
def composed(
    *,
    gives: Callable[..., ArraySpec] | None = None,
    streams: bool = False,
    once: bool = False,
    plans: Callable[..., Any] | None = None,
    reduces: bool = False,
    unrolls: Callable[..., Node | None] | None = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...


def composed(
    fn: Callable[P, Any] | None = None,
    *,
    gives: Callable[..., ArraySpec] | None = None,
    streams: bool = False,
    once: bool = False,
    plans: Callable[..., Any] | None = None,
    reduces: bool = False,
    unrolls: Callable[..., Node | None] | None = None,
) -> Any:
    """Mark a function that runs several requests, one after another.

    Parameters
    ----------
    gives : callable, optional
        Spec of what it gives, from its arguments: with it, what it gives of an expression is an expression. Without,
        it runs at once.
    streams : bool
        Whether it takes expressions just as sources, so that they need not be stored for it.
    once : bool
        Whether of an expression it runs one request at most, which then is an expression too.
    plans : callable, optional
        Takes its arguments and tells what it would do.
    reduces : bool
        Whether it reduces its first array along its ``axis``, so that the other dimensions keep their names.
    unrolls : callable, optional
        Takes its arguments, of which the first is an expression, and gives a node of passes that are known beforehand.
    """
    if fn is None:
        return functools.partial(
            composed, gives=gives, streams=streams, once=once, plans=plans, reduces=reduces, unrolls=unrolls
        )
    work = fn

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        labels = labels_of(work, args, kwargs)
        if labels is not None:
            result = call(*labels.args, **labels.kwargs)
            axis = inspect.signature(work).bind(*labels.args, **labels.kwargs).arguments.get("axis")
            return labels.reduced(result, axis) if reduces else result
        first = first_lazy(*args, *kwargs.values())
        if first is None:
            return work(*args, **kwargs)
        if once:
            token = _asking.set((work, args, kwargs))
            try:
                return work(*args, **kwargs)
            finally:
                _asking.reset(token)
        if gives is not None:
            return type(first)(later(work, gives(*args, **kwargs), args, kwargs, streams=streams, unrolls=unrolls))
        return work(*args, **kwargs)

    call.__dict__["asks"] = None
    call.__dict__["plans"] = plans
    return call


_asking: ContextVar[tuple[Any, Any, Any] | None] = ContextVar("chunkflow_asking", default=None)
"""The call whose one request is to become an expression."""


def later(
    work: Callable[..., Any],
    spec: ArraySpec,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    streams: bool,
    unrolls: Callable[..., Node | None] | None = None,
) -> Node:
    """The node of a function of several passes."""
    running = ("out", "budget", "device", "progress", "overwrite")
    options = {key: value for key, value in kwargs.items() if key in running}
    progress = options.pop("progress", False)
    check_lazily(Options(**options), progress, work.__name__)
    rest = {key: value for key, value in kwargs.items() if key not in running}
    places = [i for i, a in enumerate(args) if isinstance(a, Lazy)]
    if first_lazy(*rest.values(), *(a for i, a in enumerate(args) if i not in places)) is not None:
        raise UnsupportedError(f"{work.__name__}: expressions are given by position, not by name or in lists")

    def run(*arrays: Any, **given: Any) -> Any:
        filled = list(args)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        return work(*filled, **rest, **given)

    nodes = [node_of(args[i]) for i in places]
    name = work.__name__

    def unroll() -> Node | None:
        return None if unrolls is None else unrolls(*args, **rest)

    return interned(
        key_of(work, args, kwargs), lambda: MultiPassNode(name, run, nodes, spec, streams=streams, unroll=unroll)
    )


def check_eager(name: str, **arguments: Any) -> None:
    """Refuse expressions in arguments that are wanted whole before anything runs.

    Raises
    ------
    UnsupportedError
        It names the first of them: NumPy would compute it in silence.
    """
    for argument, value in arguments.items():
        if has_lazy(value):
            raise UnsupportedError(
                f"{name}: {argument}= is an expression, and what it holds is needed before anything runs: compute() it "
                "first, and give the array or number that it is"
            )


def check_passed(name: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse expressions among the arguments that go to the user's function as they are.

    Raises
    ------
    UnsupportedError
        It names the first of them.
    """
    for argument, value in kwargs.items():
        if has_lazy(value):
            raise UnsupportedError(
                f"{name}: {argument} is an expression, and the function would get it as it is: pass it by position, as "
                "an array, so that the function gets blocks of it, or compute() it first"
            )


def is_operation(fn: Any) -> bool:
    """Whether a function is one of chunkflow's operations."""
    return "asks" in getattr(fn, "__dict__", ())


def plan_of(fn: Callable[..., Any], arrays: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Plan of an operation with these arguments.

    Raises
    ------
    ArgumentTypeError
        It makes several passes, which only their results decide on.
    """
    ask, plans = fn.__dict__["asks"], fn.__dict__.get("plans")
    labels = labels_of(fn, arrays, options)
    if labels is not None:
        arrays, options = labels.args, labels.kwargs
    if plans is not None and (found := plans(*arrays, **options)) is not None:
        return found
    if ask is None:
        raise ArgumentTypeError(
            f"{fn.__name__} makes several passes, each with a plan of its own: there is not one to show"
        )
    request: Request = ask(*arrays, **options)
    with interrupts.deferred(), prepared(request.declare, request.arrays, request.options) as run:
        return run.plan

"""How an operation is called; and the prelude of whoever writes one: a single import line gives what is needed.

Names that it imports under their own (``import Chunks as Chunks``) are for others to import from here.

The life of a call such as ``cumsum(x, axis=0, budget="4GB")``:

1. The function, which `operation` has wrapped, checks its arguments and describes what is to be done. It runs nothing.
   It returns a `Request`, which is one pass, or a `MultiPass`, in which one pass decides on the next.
2. Where xarray's arrays are among the arguments, the function is given plain ones. The result gets their names.
3. Where one of the arrays is an expression, the result is another expression. Nothing runs: a node of the graph keeps
   the request, or the call, until `chunkflow.compute` evaluates it.
4. Otherwise `execute` prepares the request (device, budget, stores, trial call, plan), runs the plan and commits the
   output. A `MultiPass` executes several requests.

`chunkflow.explain` describes the same call (step 1) and shows its plan.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypedDict

import numpy as np

from chunkflow import devices
from chunkflow.api.compound import first_compound
from chunkflow.api.docstring import documented
from chunkflow.api.labels import Labels, labels_of
from chunkflow.core.chunking import Chunks as Chunks
from chunkflow.core.elsewhere import hint
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec as ArraySpec
from chunkflow.core.spelling import check_keywords, meant, misspelt
from chunkflow.core.units import written
from chunkflow.engine import dry_run
from chunkflow.engine.batches import planned_batches, run_batches
from chunkflow.engine.completion import PendingOutput
from chunkflow.engine.observe.analysis import forecast
from chunkflow.engine.observe.progress import watching as watching
from chunkflow.engine.options import BudgetLike as BudgetLike
from chunkflow.engine.options import Options as Options
from chunkflow.engine.options import ProgressLike as ProgressLike
from chunkflow.engine.passes import as_published, call_of_passes, going_on, refuse_left
from chunkflow.engine.prepare import prepared
from chunkflow.engine.resume import check_resume
from chunkflow.engine.run import launched
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError, even
from chunkflow.graph.evaluate import Evaluation
from chunkflow.graph.evaluate import op_node as op_node
from chunkflow.graph.live import pass_of_request, reads_live, refuse_several
from chunkflow.graph.nodes import (
    Lazy,
    MultiPassNode,
    Node,
    as_source,
    check_lazily,
    first_lazy,
    has_lazy,
    interned,
    key_of,
    node_of,
    remembered,
)
from chunkflow.graph.recognition import recognized
from chunkflow.graph.request import Request as Request
from chunkflow.kernels.declare import Declare as Declare
from chunkflow.kernels.declare import Declared as Declared
from chunkflow.kernels.digest import Arguments, outline, without_functions
from chunkflow.kernels.map import is_scalar
from chunkflow.planner.plan import Plan
from chunkflow.stores import checksums, is_new, open_target, spec_of
from chunkflow.stores.checks import check_unmasked
from chunkflow.stores.named import Closed, with_names
from chunkflow.stores.registry import is_hdf5_dataset
from chunkflow.system import interrupts

P = ParamSpec("P")

_OPENING = {"decode", "missing"}
"""Arguments of `chunkflow.open` that say how a source is read."""


def operation(describe: Callable[P, Request | MultiPass], shared: str = "") -> Callable[P, Any]:
    """Turn a function that describes what is to be done into one that does it.

    Where one of the arrays is an expression it makes an expression. Where ``**options`` are `RunOptions`, the signature
    that users see spells them out. The docstring need not describe them, nor their errors, nor what is in `shared`, the
    docstring of a family of operations: `documented` adds it.
    """
    signature = _spelled_out(describe)
    own = inspect.signature(describe).parameters.keys()  # other arguments go to the user's own function
    binding = inspect.signature(describe)
    taken = _keywords(describe)
    needed = [name for name, p in binding.parameters.items() if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    placed = [
        f"*{name}" if p.kind is p.VAR_POSITIONAL else name
        for name, p in binding.parameters.items()
        if p.kind not in named
    ]

    @functools.wraps(describe)
    def ask(*args: P.args, **kwargs: P.kwargs) -> Request | MultiPass:
        if taken is not None:
            there = ", and open takes this one" if kwargs.keys() & _OPENING - taken.keys() else ""
            check_keywords(describe.__name__, kwargs, taken, there)
        try:
            binding.bind(*args, **kwargs)
        except TypeError as error:
            lacking = [name for name in needed if name not in kwargs]
            raise ArgumentTypeError(
                f"{describe.__name__}: {error}: by position it takes {', '.join(placed)}, and all else by name"
                f"{misspelt(kwargs.keys() - own, lacking)}"
            ) from None
        check_unmasked(*args, *(value for key, value in kwargs.items() if key in own))
        with even(describe.__name__, (*args, *kwargs.values())):
            return describe(*args, **kwargs)

    @functools.wraps(describe)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        if (several := first_compound((*args, *kwargs.values()))) is not None:
            return several.operated(call, args, kwargs)
        with interrupts.deferred():  # files are opened from here on
            given = _as_published(args, kwargs, placed) if kwargs.get("resume") else args
            labels = labels_of(describe, given, kwargs)
            return _done(ask(*given, **kwargs), ask, given, kwargs) if labels is None else _labelled(labels, ask)

    if signature is not None:
        call.__dict__["__signature__"] = signature
    call.__annotations__ = {**describe.__annotations__, "return": Any}
    if describe.__doc__:
        names = describe.__annotations__ if signature is None else signature.parameters
        run = ChunkedRunOptions.__annotations__ if "options" in names else ()
        call.__doc__ = documented(describe.__doc__, shared, (*names, *run))
    _DESCRIPTIONS[call] = ask
    ask.__dict__["operation"] = call
    return call


def _as_published(args: tuple[Any, ...], kwargs: dict[str, Any], placed: Sequence[str]) -> Any:
    """The arguments by position, of which ``out`` may be one; by name it is changed in its place."""
    overwrite = bool(kwargs.get("overwrite"))
    if "out" in kwargs:
        kwargs["out"] = as_published(kwargs["out"], overwrite=overwrite)
    elif "out" in placed[: len(args)]:
        at = placed.index("out")
        return (*args[:at], as_published(args[at], overwrite=overwrite), *args[at + 1 :])
    return args


def family(shared: str) -> Callable[[Callable[P, Request | MultiPass]], Callable[P, Any]]:
    """An `operation` for functions that share a part of their docstrings."""
    return lambda describe: operation(describe, shared)


_DESCRIPTIONS: dict[Callable[..., Any], Callable[..., Request | MultiPass]] = {}
"""For each operation what describes its calls."""


# -- What is to be done --------------------------------------------------------------------------------------


class PlacedOptions(TypedDict, total=False):
    """Keywords that say how an operation is run: see `chunkflow.map`. Defaults are `Options`'."""

    budget: BudgetLike
    device: Any
    progress: ProgressLike
    overwrite: bool
    sync: bool | None
    resume: bool
    name: str | None
    checksum: bool | None


class _Output(TypedDict, total=False):
    out: Any


class RunOptions(_Output, PlacedOptions, total=False):
    """Keywords of nearly all operations: where the result goes, and how it is computed."""


class ChunkedRunOptions(RunOptions, total=False):
    """The same, and the chunks of the output that a run creates."""

    chunks: Chunks


_EXPANDED = {f"Unpack[{keywords.__name__}]": keywords for keywords in (PlacedOptions, RunOptions, ChunkedRunOptions)}


def _keywords(describe: Callable[..., Any]) -> dict[str, None] | None:
    """Names of an operation's own parameters, and of those of a run; None if it takes others for a user's function."""
    parameters = inspect.signature(describe).parameters
    kinds = {p.kind: name for name, p in parameters.items()}
    own = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if "options" not in describe.__annotations__:
        return None if inspect.Parameter.VAR_KEYWORD in kinds else dict.fromkeys(own)
    run = _EXPANDED.get(describe.__annotations__["options"], ChunkedRunOptions)
    return dict.fromkeys((*own, *run.__annotations__))


def _spelled_out(describe: Callable[..., Any]) -> inspect.Signature | None:
    """The signature in which the keywords of the run are spelled out; None if the function spells out its own."""
    keywords = _EXPANDED.get(describe.__annotations__.get("options", ""))
    if keywords is None:
        return None
    *own, _ = inspect.signature(describe).parameters.values()
    run = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=vars(Options)[name], annotation=hint)
        for name, hint in keywords.__annotations__.items()
    ]
    run.sort(key=lambda parameter: parameter.name != "chunks")
    return inspect.Signature([*own, *run], return_annotation=Any)


class SeveralPassesPlan(Protocol):
    """A plan of several passes, whose text is for people."""

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        """Specs of the results."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Of each pass."""


@dataclass(frozen=True)
class MultiPass:
    """Several passes over arrays, in which one decides on the next.

    Attributes
    ----------
    arrays : sequence
        The arrays that are read.
    run : callable
        Makes the passes and returns the result.
    options : Options
        The budget and the device.
    spec : callable, optional
        Gives the result's shape and dtype before it runs. With it, an operation on an expression makes an expression;
        without it, it runs at once.
    plan : callable, optional
        Gives what `chunkflow.explain` shows. It plans all passes, so it is also what a dry run of them does.
    unroll : callable, optional
        Gives the result as a node whose passes are known beforehand, for a cluster; or None if there is no such node.
    streams : bool
        Whether `run` can read expressions, so that they need not be stored before.
    once : callable, optional
        Gives the single pass that does where its blocks hold whole lines, for arrays that can be read once only; or
        None if lines are along the axis in whose order they are read.
    alone : bool
        Whether a pass that fits the budget is the only one, as far as can be told before it has read the arrays.
    keeps : bool
        Whether labelled arrays are matched by the names of their dimensions: see `Request.keeps`.
    expressions : callable, optional
        Makes the expressions of several results, where one of the arrays is one, in place of `spec`: it is given what
        makes an array of a node.
    name : callable, optional
        Puts the arrays' labels on the result.
    """

    arrays: Sequence[Any]
    run: Callable[[], Any]
    options: Options
    spec: Callable[[], ArraySpec] | None = None
    plan: Callable[[], SeveralPassesPlan] | None = None
    unroll: Callable[[], Node | None] = lambda: None
    streams: bool = False
    once: Callable[[], Request | None] = lambda: None
    alone: bool = False
    keeps: bool = False
    expressions: Callable[[Callable[[Node], Any]], Any] | None = None
    name: Callable[[Labels, Any], Any] | None = None

    def plan_all(self) -> Any:
        """Plan all passes, in a dry run: what stands in for the result."""
        if self.plan is None:
            return self.run()
        made = self.plan()
        for each in made.plans:
            dry_run.note(each)
        return dry_run.stand_ins(made.outputs)[0]

    def done(self) -> Any:
        """The result. A budget that does not do for all passes is refused before the first one."""

        def all_passes() -> Any:
            refuse_left(self.options.out)
            if self.plan is None and not self.alone:  # a plan is made of all passes before one runs
                nbytes = sum(spec_of(a).nbytes for a in self.arrays if not is_scalar(a))
                dry_run.refuse_ahead(self.plan_all, self.options, nbytes)
            return self.run()

        return dry_run.named(all_passes, self.options, self.plan_all)


# -- Doing it ------------------------------------------------------------------------------------------------


def _done(asked: Request | MultiPass, ask: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call gives: results, or an expression where one of its arrays is one."""
    if asked.options.out is not None and first_lazy(*asked.arrays) is not None:
        asked, args, kwargs = _of_sources(asked, ask, args, kwargs)
    first = first_lazy(*asked.arrays)
    if isinstance(asked, MultiPass) and reads_live(*asked.arrays):
        asked = asked.once() or asked
    if isinstance(asked, MultiPass):
        if not asked.alone and (first is None or (asked.spec is None and asked.expressions is None)):
            refuse_several(ask.__name__, asked.arrays)
        if first is not None and asked.expressions is not None:
            made = asked.expressions(type(first))
            check_lazily(asked.options, ask.__name__, several=isinstance(made, tuple))
            return _remembered(made, asked, ask, args, kwargs)
        if first is None or asked.spec is None:
            return (
                _gone_on_with(asked, ask, args, kwargs)
                if asked.options.resume and not dry_run.is_dry()
                else asked.done()
            )
        made = type(first)(_multi_pass_node(asked, asked.spec(), ask, args, kwargs))
        return _remembered(made, asked, ask, args, kwargs)
    if first is None:
        result = dry_run.named(lambda: execute(asked), asked.options)
        return (result, *asked.beside) if asked.beside else result
    result = _expression(type(first), asked, ask, args, kwargs)
    return _remembered((result, *asked.beside) if asked.beside else result, asked, ask, args, kwargs)


def _of_sources(asked: Request | MultiPass, ask: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """What is asked, and the arguments, with sources in the place of arrays that were opened, or are parts of such.

    As they are if one of the arrays is computed.
    """
    sources = [as_source(array, asked.options.out) for array in asked.arrays]
    if first_lazy(*sources) is not None:
        return asked, args, kwargs
    if isinstance(asked, Request):
        return replace(asked, arrays=sources), args, kwargs
    instead = {id(array): source for array, source in zip(asked.arrays, sources, strict=True)}
    args = [instead.get(id(value), value) for value in args]
    kwargs = {name: instead.get(id(value), value) for name, value in kwargs.items()}
    return ask(*args, **kwargs), args, kwargs


def _remembered(
    result: Any, asked: Request | MultiPass, ask: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Expressions that an operation gives, by which another process knows what call makes them."""
    return remembered(result, ask.operation, args, kwargs, asked.arrays)


def _gone_on_with(asked: MultiPass, ask: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What several passes give, of which some may have been made by an earlier call that has ended early."""
    options = asked.options
    outs = options.out if isinstance(options.out, tuple) else (options.out,)
    targets = [open_target(out, overwrite=options.overwrite) for out in outs]
    check_resume(options.resume, targets)
    device = devices.resolve(options.device)
    named = options.name is not None
    nodes, arrays = recognized((node_of(array) for array in asked.arrays if not is_scalar(array)), named=named)
    said = _without(_own(ask, args, kwargs), [*asked.arrays, options.out])
    said = Arguments(without_functions(said) if named else said)
    function = outline((ask.__name__, options.name, said, nodes))
    with checksums.asked(options.checksum, options.out):
        call = call_of_passes(function, arrays, targets, options.budget, device)
    with interrupts.deferred(), going_on(targets, call, options.budget, device) as budget:
        return ask(*args, **{**kwargs, "budget": budget}).done()


def _own(ask: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """An operation's own arguments by their names, without those that say how it runs."""
    given = inspect.signature(ask).bind(*args, **kwargs).arguments
    given |= given.pop("options", {})
    return {name: value for name, value in given.items() if name not in RunOptions.__annotations__}


def _without(value: Any, arrays: Sequence[Any]) -> Any:
    """Arguments without arrays."""
    for number, array in enumerate(arrays):
        if value is array and not is_scalar(value):
            return f"array {number}"
    if isinstance(value, tuple | list):
        return [_without(part, arrays) for part in value]
    if isinstance(value, dict):
        return {key: _without(part, arrays) for key, part in value.items()}
    return value


def _labelled(labels: Labels, ask: Callable[..., Request | MultiPass]) -> Any:
    """What a call on labelled arrays gives, with labels where they hold for the results."""
    asked = ask(*labels.args, **labels.kwargs)
    if asked.keeps and len(labels.arrays) > 1:
        labels.match()
        asked = ask(*labels.args, **labels.kwargs)
    out = asked.options.out
    if isinstance(asked, Request) and asked.keeps and out is not None:
        arrays = [a for a in asked.arrays if not is_scalar(a)]
        told = labels.outputs(out, op_node(asked, "result").declared, arrays)
        asked = replace(asked, options=replace(asked.options, out=told))
    if isinstance(asked, MultiPass) and asked.name is not None and asked.spec is not None and is_new(out):
        spec = asked.spec()
        dims = asked.name(labels, np.broadcast_to(np.zeros((), spec.dtype), spec.shape)).dims
        labels.kwargs["out"] = with_names(out, [str(name) for name in dims], spec.shape)
        asked = ask(*labels.args, **labels.kwargs)
    result = _done(asked, ask, labels.args, labels.kwargs)
    if isinstance(asked, MultiPass):
        return result if asked.name is None else asked.name(labels, _closed(result, out))
    if asked.name is not None:
        return asked.name(labels, _closed(result, (out, *asked.beside) if asked.beside else out))
    return with_labels(labels, _closed(result, out), asked) if asked.keeps else result


def _closed(result: Any, out: Any) -> Any:
    """Results that get labels, with the files of new datasets closed: xarray's users open these again."""
    if isinstance(result, tuple):
        return tuple(map(_closed, result, out)) if isinstance(out, tuple) else result
    return Closed(result) if is_new(out) and is_hdf5_dataset(result) else result


def with_labels(labels: Labels, result: Any, request: Request) -> Any:
    """The results of a request with the labels of its arrays."""
    arrays = [a for a in request.arrays if not is_scalar(a)]
    return labels.onto(result, op_node(request, "result").declared, arrays)


def execute(request: Request) -> Any:
    """Run a request: the output, or a tuple of them."""
    watch = watching(request.options.progress)
    if first_lazy(*request.arrays) is not None:
        node = op_node(request, "result")
        with ExitStack() as stack:
            result = Evaluation(request.options, watch).run({node: request.options.out}, stack)[node]
    elif (live := pass_of_request(request)) is not None:
        with interrupts.deferred():
            found = run_batches(live, request.options, watch)
        result = found.results if found.is_tuple else found.results[0]
    else:
        with interrupts.deferred(), prepared(request.declare, request.arrays, request.options) as run:
            results = launched(run, watch)
        result = results if run.is_tuple else results[0]
    if request.finish is None:
        return result
    return result.then(request.finish) if isinstance(result, PendingOutput) else request.finish(result)


# -- Expressions ---------------------------------------------------------------------------------------------


def _expression(
    kind: Callable[[Node], Any],
    request: Request,
    ask: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The expression of a request: an array of this kind, or a tuple of them if `dtype` says so."""
    name = ask.__name__
    several = request.number > 1 or isinstance(request.options.dtype, tuple)
    check_lazily(request.options, name, several=several or bool(request.beside))
    if request.is_view:
        return kind(node_of(request.arrays[0]))
    # The array under a path may be another one at the next call.
    key = None if any(isinstance(array, str) for array in request.arrays) else key_of(ask, args, kwargs)
    node = op_node(request, name, key)
    node.check()
    if several:
        return tuple(kind(node.item(i)) for i in range(request.number))
    return kind(node)


def _multi_pass_node(
    asked: MultiPass, spec: ArraySpec, ask: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Node:
    """The node of several passes: it asks once more when its arrays are there."""
    name = ask.__name__
    running = {key: value for key, value in kwargs.items() if key in RunOptions.__annotations__}
    check_lazily(Options(**running), name)
    rest = {key: value for key, value in kwargs.items() if key not in running}
    read = {id(a) for a in asked.arrays if isinstance(a, Lazy) or not (is_scalar(a) or has_lazy(a))}
    places = [i for i, array in enumerate(args) if id(array) in read]
    if first_lazy(*rest.values(), *(a for i, a in enumerate(args) if i not in places)) is not None:
        raise UnsupportedError(f"{name}: an expression is given by name or in a list: give it by position")
    # All arrays are inputs of the node: none may be another one, or overwritten, by the time that it runs.
    given = [Lazy(node_of(array)) if i in places else array for i, array in enumerate(args)]

    def run(*arrays: Any, **options: Any) -> Any:
        filled = list(args)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        described = ask(*filled, **rest, **options)
        return described.plan_all() if dry_run.is_dry() else described.run()

    nodes = [given[i]._node for i in places]
    said = Arguments(_own(ask, [None if i in places else array for i, array in enumerate(args)], rest))
    return interned(
        key_of(ask, given, kwargs),
        lambda: MultiPassNode(name, run, nodes, spec, streams=asked.streams, unroll=asked.unroll, said=said),
    )


# -- What else is asked of operations ------------------------------------------------------------------------


def is_operation(fn: Any) -> bool:
    """Whether a function is one of chunkflow's operations."""
    return inspect.isfunction(fn) and fn in _DESCRIPTIONS


def description_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request | MultiPass:
    """What an operation would do with these arguments. It needs no output to tell."""
    ask = _DESCRIPTIONS[fn]
    labels = labels_of(fn, args, kwargs)
    if labels is not None:
        args, kwargs = labels.args, labels.kwargs
    signature = inspect.signature(ask)
    if "out" in signature.parameters and "out" not in signature.bind_partial(*args, **kwargs).arguments:
        kwargs = {**kwargs, "out": None}
    return ask(*args, **kwargs)


def plan_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Plan of an operation with these arguments."""
    asked = description_of(fn, args, kwargs)
    if isinstance(asked, Request):
        return dry_run.named(lambda: plan_of_request(asked), asked.options)
    if asked.plan is None:
        raise ArgumentTypeError(
            f"{fn.__name__} makes several passes, each with a plan of its own: there is not one to show"
        )
    return dry_run.named(asked.plan, asked.options, asked.plan_all)


def plan_of_request(request: Request) -> Plan:
    """Plan of a single pass, with the seconds that are expected of it."""
    live = pass_of_request(request)
    made = (
        prepared(request.declare, request.arrays, request.options)
        if live is None
        else planned_batches(live, request.options)
    )
    with interrupts.deferred(), made as run:
        dry_run.note(run.plan)
        return forecast(run)


def bare(result: Any, out: Any) -> Any:
    """A result, or several, as NumPy's reductions give it: a scalar if it has no dimensions and there is no output."""
    if isinstance(result, tuple):
        outs = out if isinstance(out, tuple) else (out,) * len(result)
        return tuple(bare(one, place) for one, place in zip(result, outs, strict=True))
    return result[()] if out is None and result.ndim == 0 else result


def check_eager(name: str, **arguments: Any) -> None:
    """Refuse expressions in arguments whose elements are needed before: NumPy would compute them in silence."""
    for argument, value in arguments.items():
        if has_lazy(value):
            raise UnsupportedError(
                f"{name}: {argument}= is an expression, and what it holds is needed before anything runs: compute() it "
                "first, and give the array or number that it is"
            )


def check_stretch(name: str, given: Shape, shape: Shape) -> None:
    """Refuse an argument whose shape does not broadcast to the array's, as NumPy does."""
    sides = zip(reversed(given), reversed(shape), strict=False)
    if len(given) > len(shape) or any(n not in (1, side) for n, side in sides):
        raise ArgumentError(f"{name}= of shape {given} does not broadcast to the array's shape {shape}")


def check_int(name: str, value: Any, least: int | None = None, why: str = "") -> int:
    """An argument that must be an int, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(f"{name} must be an int, not {value!r}")
    if least is not None and value < least:
        raise ArgumentError(f"{name}={value} must be at least {least}{why}")
    return int(value)


def _taken(fn: Any, kwargs: Mapping[str, Any]) -> set[str]:
    """Names of the keyword arguments that a function takes: all, if it does not say."""
    if is_operation(fn) and (known := _keywords(_DESCRIPTIONS[fn])) is not None:
        return set(known)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # ufuncs and some built-ins have no signature
        return set(kwargs)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(kwargs)
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def check_passed(name: str, kwargs: Mapping[str, Any], fn: Any = None) -> None:
    """Refuse expressions among the arguments that go to the user's function, and arguments that it does not take."""
    for argument, value in kwargs.items():
        if has_lazy(value):
            raise UnsupportedError(
                f"{name}: {argument} is an expression, and the function would get it as it is: pass it by position, as "
                "an array, so that the function gets blocks of it, or compute() it first"
            )
    for argument in sorted(kwargs.keys() - _taken(fn, kwargs)):
        said = meant(argument, _known(name, fn)) or hint([argument])
        called = getattr(fn, "__name__", fn)
        if (other := _other_door(name, argument)) is not None:
            words = written({key: value for key, value in kwargs.items() if key not in _taken(fn, kwargs)})
            said = (
                f", but chunkflow.{other} has: write chunkflow.{other}({called}, ..., {words}), and to plan it "
                f"chunkflow.explain(chunkflow.{other}, {called}, ..., {words})"
            )
        elif argument == "signature" and name != "apply_gufunc":
            said = f": write chunkflow.apply_gufunc({called}, {kwargs[argument]!r}, ...)"
        raise ArgumentTypeError(f"{name} has no argument {argument}=, and neither has its function {called}{said}")


def check_delegated(name: str, options: Mapping[str, Any], to: Callable[..., Any], fn: Any) -> None:
    """Refuse options of a function that passes them on to an operation, which would name itself.

    What goes to the user's function stands in ``kwargs=`` there.
    """
    known = [key for key in _known(to.__name__, None) if key not in _OF_BLOCKWISE]
    for option in options:
        if option in known:
            continue
        if option in _taken(fn, {}):
            called = getattr(fn, "__name__", fn)
            said = f": its function {called} has, and is given it by kwargs={{{option!r}: ...}}"
        else:
            said = meant(option, known) or hint([option]) or f": it takes {', '.join(dict.fromkeys(known))}"
        raise ArgumentTypeError(f"{name} has no argument {option}={said}")


def delegated(name: str, to: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What an operation gives to which a function passes all on. Options of a run are refused in its own name."""
    try:
        return to(*args, **options)
    except ArgumentError as error:
        own = to.__name__
        if str(error).startswith(f"{own} of an expression"):
            said = str(error).replace(f"{own}(...)", f"{name}(...)").replace(own, name, 1)
            error.args = (said, *error.args[1:])
        raise


_OF_BLOCKWISE = ("combine", "new_axes")
"""Arguments that those who call `chunkflow.blockwise` for a user choose themselves."""


def _known(name: str, fn: Any) -> list[str]:
    """Keywords of an operation that is given a function, of a run, and of the function."""
    doors = [inspect.signature(each).parameters for each in _DESCRIPTIONS if each.__name__ == name]
    own = [p.name for door in doors for p in door.values() if p.kind is p.KEYWORD_ONLY]
    return [*own, *RunOptions.__annotations__, *_taken(fn, {})]


def _other_door(name: str, argument: str) -> str | None:
    """Another function of the package that is given a function, and has an argument of this name; None without one."""
    for operation in _DESCRIPTIONS:
        first, *others = inspect.signature(operation).parameters.values()
        named = [p.name for p in others if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if first.name == "fn" and operation.__name__ != name and argument in named:
            return operation.__name__
    return None

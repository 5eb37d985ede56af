"""Runs Fourier transforms pass by pass, through temporary arrays in memory or on disk, which are always removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow.api.fourier.passes import plan_transform
from chunkflow.api.fourier.plan import PassPlan, TransformPass, TransformPlan
from chunkflow.api.operation import (
    ArraySpec,
    BudgetLike,
    Chunks,
    Declared,
    MultiPass,
    Options,
    Request,
    execute,
    plan_of_request,
)
from chunkflow.core import chunking
from chunkflow.engine.budget import Budget
from chunkflow.engine.dry_run import is_dry, named, stand_ins
from chunkflow.engine.passes import current as current_passes
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.fourier import LineTransform, all_steps, one_step, result_of, transformed
from chunkflow.kernels.map import MapKernel
from chunkflow.stores import open_target, scratch_array, spec_of
from chunkflow.stores.paths import remove_directory
from chunkflow.stores.publication.scratch import Scratch
from chunkflow.system.host import available_memory

NAMES = ("fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn")
"""Names of the transforms."""

HOST_SHARE = 0.5
"""Share of the host's free memory that the result and the arrays between passes may take."""


def transform(name: str, x: Any, lengths: Any, axes: Any, norm: Any, options: Options) -> MultiPass:
    """Describe a transform; the arguments are those of NumPy's function of that name."""

    def spec() -> ArraySpec:
        given = spec_of(x)
        return ArraySpec(name, *result_of(given.shape, given.dtype, _steps(name, given, lengths, axes, norm)))

    def plan() -> TransformPlan:
        return planned(name, x, lengths, axes, norm, options)

    def expected() -> TransformPlan:
        made = plan()
        return made if is_dry() else _forecast(made, x, options)

    def once() -> Request:
        given = spec_of(x)
        return _request(_steps(name, given, lengths, axes, norm), given, x, options)

    return MultiPass((x,), lambda: _transformed(plan(), x, options, execute), options, spec, expected, once=once)


def _forecast(plan: TransformPlan, x: Any, options: Options) -> TransformPlan:
    """A plan with the seconds of each pass that a few calls of its parts let expect.

    Later passes are tried on zeros. A plan whose arrays between passes are files stays as it is: none are made.
    """
    seconds: list[float] = []

    def tried(request: Request) -> Any:
        expected = plan_of_request(request)
        seconds.append(expected.seconds)
        return stand_ins(expected.outputs)[0]

    if len(plan.passes) > 1 and plan.on_disk:
        return plan
    _transformed(plan, x, options, tried)
    passes = zip(plan.passes, seconds, strict=True)
    return replace(plan, passes=tuple([replace(each, seconds=found) for each, found in passes]))


def _transformed(plan: TransformPlan, x: Any, options: Options, do: Callable[[Request], Any]) -> Any:
    # What is free changes: all passes keep to what is planned for.
    budget = options.budget if isinstance(options.budget, Budget) else plan.limit
    first = replace(options, budget=budget, out=None, chunks=None, overwrite=False)
    created = open_target_of(options).footprint is None
    last = replace(options, budget=budget, chunks=plan.passes[-1].result.chunks if created else None)
    scratch, current, passes = Scratch(open_target_of(options).name, "fft"), x, current_passes()
    places: list[Any] = []
    try:
        for number, each in enumerate(plan.passes):
            if number + 1 == len(plan.passes):
                chosen = last if last.out is not None else replace(last, out=_reused(current, each, number))
            elif _is_like(options.out, each.result):
                chosen = replace(first, out=options.out)  # the output takes the intermediate array as well
            elif passes is not None:
                chosen = replace(first, out=passes.place(each.result))
                places.append(chosen.out)
            elif plan.on_disk:
                chosen = replace(first, out=_scratch(scratch.folder, number, each.result))
            else:
                chosen = replace(first, out=_reused(current, each, number))
            current = do(_request(each.steps, each.source, current, replace(chosen, workspace=each.workspace)))
            if passes is not None and number:
                passes.has_read(places[number - 1])
            if scratch.is_made and number:  # this array has been read
                remove_directory(os.path.join(scratch.folder, str(number - 1)))
        return current
    finally:
        scratch.end()


def planned(name: str, x: Any, lengths: Any, axes: Any, norm: Any, options: Options) -> TransformPlan:
    """The plan of a transform. All that can be refused is refused here."""
    spec = spec_of(x)
    steps = _steps(name, spec, lengths, axes, norm)
    shape, dtype = result_of(spec.shape, spec.dtype, steps)
    if not spec.size and 0 not in shape:
        raise ArgumentError(f"an array of shape {spec.shape} has no element to make a transform of shape {shape} from")
    target = open_target_of(options)
    entries = chunking.lengths(options.chunks, len(shape))
    chunking.check_sums(options.chunks, shape)
    wish = chunking.wish(entries, shape)
    strict = wish is not None or target.footprint is not None
    if wish is None and spec.chunks is not None and spec.shape == shape:
        wish = spec.chunks
    found = target.describe(shape, dtype, wish)
    between = ArraySpec(name, *result_of(spec.shape, spec.dtype, steps[:1]))
    resumes = bool(options.resume) or current_passes() is not None
    on_disk = resumes or not (
        _is_like(options.out, between) or (found.storage.in_memory and _room_for(steps, spec, options))
    )
    return plan_transform(name, steps, spec, found, options.budget, options.device, on_disk=on_disk, strict=strict)


def _steps(name: str, spec: ArraySpec, lengths: Any, axes: Any, norm: Any) -> tuple[LineTransform, ...]:
    """The transforms along single axes that make up a transform."""
    return (all_steps if name.endswith("n") else one_step)(name, spec.shape, spec.dtype, lengths, axes, norm)


def plan(
    transform: str | Callable[..., Any],
    x: Any,
    lengths: Any = None,
    axes: Any = None,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    overwrite: bool = False,
) -> TransformPlan:
    """Plan of a transform, to be printed. Nothing of `x` is read.

    Parameters
    ----------
    transform : str or callable
        One of the transforms here, or its name.
    lengths, axes
        Its `n` or `s`, and its `axis` or `axes`.
    x, norm, chunks, out, budget, device, overwrite
        As for `fft` and `fftn`.

    Returns
    -------
    TransformPlan
        The passes with their axes, blocks and bytes, and the arrays between them with their chunks and bytes.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError
        As for the transform; `transform` is none.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import plan, rfftn
    >>> len(plan(rfftn, np.zeros((64, 64, 64), "f4"), budget="400kB", device="cpu").passes)
    2
    """
    name = transform if isinstance(transform, str) else getattr(transform, "__name__", repr(transform))
    if name not in NAMES:
        raise ArgumentError(f"transform={name!r} is unknown: use one of {', '.join(NAMES)}")
    if axes is None and not name.endswith("n"):
        axes = -1
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    asked = MultiPass((x,), tuple, options, plan=lambda: planned(name, x, lengths, axes, norm, options))
    return named(lambda: planned(name, x, lengths, axes, norm, options), options, asked.plan_all)


def open_target_of(options: Options) -> Any:
    """The target of the result, checked."""
    if isinstance(options.out, tuple | list):
        raise ArgumentTypeError(f"out must be one array or path, not a {type(options.out).__name__}")
    return open_target(options.out, overwrite=options.overwrite)


def _request(steps: tuple[LineTransform, ...], source: ArraySpec, x: Any, options: Options) -> Request:
    """One pass of some steps. Where the options tell the workspace, there is no trial call."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op, axes = TransformPass(steps, specs[0].shape, specs[0].dtype).nest()
        kernel = MapKernel(transformed, args, {"steps": steps}, axes)
        # The chunks are the result's, and do not fix the blocks.
        block = None if options.chunks is None else (None,) * len(op.extents)
        return Declared(op, kernel, axes, block)

    dtype = TransformPass(steps, source.shape, source.dtype).result[1]
    return Request(declare, (x,), replace(options, dtype=dtype))


def _is_like(out: Any, spec: ArraySpec) -> bool:
    """Whether an output is an array, in memory or mapped, of this shape and dtype. A failed run may change it."""
    return isinstance(out, np.ndarray) and (out.shape, out.dtype) == (spec.shape, spec.dtype)


def _reused(current: Any, each: PassPlan, number: int) -> np.ndarray | None:
    """The array that a pass reads, if it is temporary and has the result's shape and dtype: to work in place."""
    return current if number > 0 and _is_like(current, each.result) else None


def _scratch(folder: str, number: int, spec: ArraySpec) -> Any:
    """Place for the result of a pass, in a directory of its own."""
    own = os.path.join(folder, str(number))
    os.mkdir(own)
    if spec.chunks is None:
        return os.path.join(own, "between.npy")
    return scratch_array(os.path.join(own, "between.zarr"), spec.shape, spec.dtype, spec.chunks)


def _room_for(steps: Sequence[LineTransform], spec: ArraySpec, options: Options) -> bool:
    """Whether host memory holds the arrays between passes, and the result if there is no output."""
    shape, dtype, sizes = spec.shape, spec.dtype, []
    for step in steps:
        shape, dtype = result_of(shape, dtype, (step,))
        sizes.append(float(np.prod(shape, dtype=float)) * dtype.itemsize)
    room = available_memory()
    needed = (sizes[-1] if options.out is None else 0) + 2 * max(sizes[:-1], default=0)
    return room is None or needed <= HOST_SHARE * room

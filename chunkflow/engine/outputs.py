"""The outputs of a run: their number, shapes, chunks and memory order, and the check that they overlap no source."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from chunkflow.core import chunking
from chunkflow.core.chunking import Length
from chunkflow.core.grid import Shape
from chunkflow.core.nest import Along, LoopNest, Operand, Output, outputs_like
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.options import Options
from chunkflow.engine.trial import Trial
from chunkflow.errors import ArgumentError, ResultError
from chunkflow.kernels.declare import Declared
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.protocol import Source, Target

SMALL_CHUNK = 64 << 10
"""Bytes of a chunk from which on it keeps its last sides: shorter runs would be read and written slowly."""


JOINED_CHUNK = 1 << 20
"""Bytes up to which chunks of a result that is smaller than its source are joined."""


def check_number(targets: Sequence[Target], seen: Trial, options: Options) -> None:
    """Refuse an `out` that does not match the number of results."""
    number = len(seen.shapes)
    if len(targets) == number and (options.out is None or isinstance(options.out, tuple) == seen.is_tuple):
        return
    if seen.is_tuple:
        returns, wanted = f"a tuple of {number} arrays", f"a tuple of {number}"
    else:
        returns, wanted = "one array", "one array or path"
    raise ArgumentError(f"fn returns {returns}, so out must be {wanted}, not a {type(options.out).__name__}")


def with_outputs(op: LoopNest, declared: Declared, seen: Trial, options: Options) -> LoopNest:
    """The nest with the outputs that the trial call showed."""
    outputs = []
    for number, shape in enumerate(seen.shapes):
        axes = declared.axes_of(number)
        if len(shape) != len(axes):
            raise ResultError(
                f"fn returned {len(shape)} dimensions; expected {len(axes)} for a block of {seen.box}. If it "
                "removes or adds axes, say so with drop_axis= or new_axis="
            )
        lengths: list[Along | int | None] = []
        for i, (axis, n) in enumerate(zip(axes, shape, strict=True)):
            if axis is None:
                lengths.append(n)
            elif n == seen.box[axis]:
                lengths.append(None)
            elif options.chunks is None or n == 0:
                raise ResultError(
                    f"fn turned {seen.box[axis]} elements along axis {axis} into {n} along axis {i} of its result. "
                    "If it resizes its blocks, fix their shape with chunks="
                )
            else:
                lengths.append(Along(axis, Fraction(n, seen.box[axis])))
        outputs.append(outputs_like(axes, lengths))
    return replace(op, outputs=tuple(outputs))


def describe_outputs(
    op: LoopNest,
    targets: Sequence[Target],
    sources: Sequence[Source],
    seen: Trial,
    lengths: Sequence[Length],
    block: Sequence[int | None] | None,
    options: Options,
) -> tuple[list[ArraySpec], float]:
    """Specs of the sinks, and the workspace: that of the function or of the casts to the dtypes of the sinks."""
    specs = []
    casts = 0.0
    for target, output, dtype in zip(targets, op.outputs, seen.dtypes, strict=True):
        shape = output.shape(op.extents)
        own = lengths if options.out_chunks is None else chunking.lengths(options.out_chunks, len(shape))
        wish = chunking.wish(own, shape) if options.out_chunks is None or "auto" not in own else None
        if wish is None:
            alike = [s.spec for s in sources if s.spec.chunks is not None and s.spec.shape == shape]
            wish = alike[0].chunks if alike else None
        if wish is None and block is not None and output.dims:
            wish = tuple(
                min(n, (block[d.axis] or n) if isinstance(d, Along) else n) or 1
                for d, n in zip(output.dims, shape, strict=True)
            )
        if wish is None:
            wish = _followed(op, output, sources, shape, dtype.itemsize)
        spec = target.describe(shape, dtype, wish)
        if options.out_chunks is not None and spec.chunks is not None and "auto" in own:
            free = zip(own, spec.chunks, shape, strict=True)
            sides = [side if e == "auto" else max(n, 1) if e == "whole" else min(e, max(n, 1)) for e, side, n in free]
            spec = target.describe(shape, dtype, tuple(sides))
        if spec.chunks is None and getattr(target, "takes_order", False):
            spec = replace(spec, order=_order(op, output, spec, sources))
        specs.append(spec)
        if spec.dtype != dtype or (options.dtype is not None and not op.views):
            size = math.prod(output.shape(seen.box)) / max(math.prod(seen.box), 1)
            casts += size * max(spec.dtype.itemsize, dtype.itemsize)
    return specs, max(seen.workspace, casts)


def _followed(
    op: LoopNest, output: Output, sources: Sequence[Source], shape: Shape, itemsize: int
) -> tuple[int, ...] | None:
    """Chunks that begin where a source's do, along the axes that the output follows; small ones are joined.

    So a block of whole chunks of the source fills whole chunks of the output. None if no source has such chunks.
    """
    for source, operand in zip(sources, op.operands, strict=True):
        known = dict(zip(operand.axes, source.spec.chunks or (), strict=False))
        if not known or any(isinstance(d, Along) and d.axis not in known for d in output.dims):
            continue
        own = [d if isinstance(d, int) else d(known[d.axis]) for d in output.dims]
        sides = [min(side, n) or 1 for side, n in zip(own, shape, strict=True)]
        for i in reversed(range(len(sides))):
            short = -(-JOINED_CHUNK // (math.prod(sides) * itemsize))
            sides[i] = max(1, min(shape[i], sides[i] * short))
        return tuple(sides)
    return None


def _order(op: LoopNest, output: Output, spec: ArraySpec, sources: Sequence[Source]) -> Shape:
    """Memory order of a new array. It is that of the sources where they agree on one, as with NumPy's results."""
    straight = tuple(range(len(op.extents)))
    alike = {s.spec.order for s in sources if s.spec.shape == spec.shape and s.spec.chunks is None}
    if len(alike) == 1 and output.dims == tuple(Along(a) for a in straight):
        (order,) = alike
        if order == straight[::-1]:
            return order
    return spec.order


def said_of_chunks(spec: ArraySpec, lengths: Sequence[Length], options: Options) -> tuple[Length, ...]:
    """What ``chunks=`` says of the chunks of an output; "auto" along axes where the run may choose."""
    ndim = len(spec.shape)
    if options.out_chunks is not None:
        return chunking.lengths(options.out_chunks, ndim)
    is_said = len(lengths) == ndim and chunking.wish(lengths, spec.shape) is not None
    return tuple(lengths) if is_said else chunking.lengths(None, ndim)


def with_smaller_chunks(
    op: LoopNest, targets: Sequence[Target], outputs: list[ArraySpec], free: Sequence[Collection[int]], *, kept: bool
) -> list[ArraySpec]:
    """Specs with a side of each chunk halved, along one of its `free` axes, if that lets blocks be smaller.

    Where it is `kept` what is said of a target, its chunks are not among those.

    Of a large chunk it is the longest side, so that the chunk stays about as long as wide; of a small one the first, as
    blocks are cut.
    """
    found = []
    for target, spec, output, axes in zip(targets, outputs, op.outputs, free, strict=True):
        chunks = list(spec.chunks or ())
        cut = [i for i, side in enumerate(chunks) if i in axes and side > 1 and _is_cut(op, output.dims[i])]
        if target.footprint is None and cut:
            is_small = math.prod(chunks) * spec.dtype.itemsize <= SMALL_CHUNK
            side = cut[0] if is_small else max(cut, key=chunks.__getitem__)
            chunks[side] = -(-chunks[side] // 2)
            smaller = replace(spec, chunks=tuple(chunks))
            spec = target.describe(spec.shape, spec.dtype, smaller.chunks) if kept else smaller
        found.append(spec)
    return found


def with_chunks_of(
    op: LoopNest, targets: Sequence[Target], outputs: Sequence[ArraySpec], block: Shape
) -> tuple[list[ArraySpec], Shape]:
    """Specs of new outputs with chunks no longer than before, and a block about like `block` that holds whole ones.

    Outputs of which it is said what chunks they have keep them.
    """
    found, fitting = [], list(block)
    for target, spec, output in zip(targets, outputs, op.outputs, strict=True):
        if target.footprint is None and spec.chunks is not None:
            sides = list(spec.chunks)
            for i, dim in enumerate(output.dims):
                if isinstance(dim, Along) and (side := max(int(dim(block[dim.axis])), 1)) < spec.shape[i]:
                    parts = -(-side // sides[i])
                    sides[i] = side // parts
                    if dim.ratio == 1:
                        fitting[dim.axis] = sides[i] * parts
            spec = target.describe(spec.shape, spec.dtype, tuple(sides))
        found.append(spec)
    return found, tuple(fitting)


def without_chunks(targets: Sequence[Target], outputs: Sequence[ArraySpec]) -> list[ArraySpec]:
    """Specs of the outputs as if new ones had no chunks."""
    return [replace(s, chunks=None) if t.footprint is None else s for t, s in zip(targets, outputs, strict=True)]


def _is_cut(op: LoopNest, dim: Along | int) -> bool:
    """Whether blocks may be shorter than a dimension of an output."""
    return isinstance(dim, Along) and dim.axis not in op.whole


def check_overlap(declared: Declared, sources: Sequence[Source], targets: Mapping[int, Target]) -> None:
    """Refuse outputs that overlap each other, or a source that they do not replace element by element.

    `targets` has the results' numbers as keys. The error is an `ArgumentError`.
    """
    every, whole = list(range(len(declared.nest.extents))), declared.nest.whole
    each = declared.each or (declared.axes,) * len(targets)
    seen: list[tuple[str, Footprint]] = []
    for number, target in targets.items():
        place = target.footprint
        if place is None:
            continue
        for source, operand in zip(sources, declared.nest.operands, strict=True):
            other = source.footprint
            if other is None or not (place.overlaps(other) and place.overlaps(other.within(source.spec.shape))):
                continue
            axes = each[number] if number < len(each) else ()
            # What a block gives takes the place of what it is made from: elements, or whole lines for whole lines.
            alike = len(axes) == len(operand.axes) and all(
                given == own or (given is None and own in whole) for given, own in zip(axes, operand.axes, strict=True)
            )
            plain = operand == Operand(operand.axes) and sorted(a for a in operand.axes if a is not None) == every
            if not (place == other and plain and alike):
                raise ArgumentError(
                    f"the output {target.name} overlaps the input {source.spec.name} without being the same "
                    "elements in the same order: results would overwrite data that are still to be read. Write to "
                    "another array, or give the very same one to work in place"
                )
        for name, taken in seen:
            if place.overlaps(taken):
                raise ArgumentError(f"the outputs {name} and {target.name} overlap: give each its own place")
        seen.append((target.name, place))

"""The plan of a Fourier transform: its passes. Touches no data, knows no device or store."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.markup import Printed
from chunkflow.core.nest import LoopNest, nest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.kernels.fourier import LineTransform, result_of
from chunkflow.planner.plan import Plan


@dataclass(frozen=True)
class TransformPass:
    """Steps that are taken in one pass, on an array of known shape and dtype."""

    steps: tuple[LineTransform, ...]
    shape: Shape
    dtype: np.dtype

    @property
    def axes(self) -> Shape:
        """Axes that are transformed. No block cuts them."""
        return tuple(step.axis for step in self.steps)

    @property
    def result(self) -> tuple[Shape, np.dtype]:
        """Shape and dtype of the result."""
        return result_of(self.shape, self.dtype, self.steps)

    def nest(self) -> tuple[LoopNest, tuple[int, ...]]:
        """The loop nest, and for each axis of the result the nest's axis that it follows.

        An axis whose length changes is a further axis of the nest, and is not cut either.
        """
        op = nest([self.shape], self.axes)
        extents, axes = list(self.shape), list(range(len(self.shape)))
        for axis in self.axes:
            n = self.result[0][axis]
            if n != self.shape[axis]:
                axes[axis] = len(extents)
                extents.append(n)
        whole = op.whole | set(range(len(self.shape), len(extents)))
        return replace(op, extents=tuple(extents), whole=whole), tuple(axes)

    def smaller(self, most: int) -> TransformPass:
        """The same pass with shorter lines: at most `most` elements along all transformed axes together."""
        sides, points = list(self.shape), {step.axis: step.points for step in self.steps}
        while math.prod(max(sides[a], points[a]) for a in points) > most:
            longest = max(points, key=lambda a: max(sides[a], points[a]))
            sides[longest], points[longest] = -(-sides[longest] // 2), -(-points[longest] // 2)
        return TransformPass(tuple(replace(s, points=points[s.axis]) for s in self.steps), tuple(sides), self.dtype)

    @property
    def held(self) -> float:
        """Bytes of the steps' intermediate arrays, for each element of the source."""
        before, peak, last = 0, 0, 0
        shape, dtype = self.shape, self.dtype
        for step in self.steps:
            shape, dtype = result_of(shape, dtype, (step,))
            last = math.prod(shape) * dtype.itemsize
            before, peak = last, max(peak, before + last)
        return (peak - last) / max(math.prod(self.shape), 1)


@dataclass(frozen=True)
class PassPlan(Printed):
    """One pass of a transform.

    Attributes
    ----------
    steps : tuple of Step
        Its steps, in order.
    source, result : ArraySpec
        Specs of the arrays that it reads and writes.
    block : tuple of int
        Shape of its blocks of the source.
    bytes_read, bytes_written : int
        Bytes of all its blocks; whole chunks are counted as often as they are touched.
    workspace : float
        Bytes that its steps take besides the result, for each element of its loop nest.
    seconds : float
        Predicted by the bytes that it moves, or in `chunkflow.explain` as those of other passes.
    plan : Plan
        What it takes and does, as of any pass.
    """

    steps: tuple[LineTransform, ...]
    source: ArraySpec
    result: ArraySpec
    block: Shape
    bytes_read: int
    bytes_written: int
    workspace: float
    seconds: float = 0.0
    plan: Plan | None = field(default=None, repr=False, compare=False)

    @property
    def axes(self) -> Shape:
        """Axes that it transforms."""
        return tuple(sorted(step.axis for step in self.steps))

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.axes))
        return (
            f"axes {listed}: {self.source.shape} of {self.source.dtype} -> {self.result.shape} of {self.result.dtype} "
            f"in blocks of {self.block}, {format_bytes(self.bytes_read)} read and "
            f"{format_bytes(self.bytes_written)} written"
        )


@dataclass(frozen=True)
class TransformPlan(Printed):
    """Plan of a Fourier transform. ``str(plan)`` describes it for people.

    Attributes
    ----------
    name : str
        Name of the transform.
    passes : tuple of PassPlan
        Its passes, in order.
    on_disk : bool
        Whether arrays between passes are kept in files. Otherwise they are in host memory, or in the output array.
    limit : int
        Bytes of the device that a pass may take.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> plan = cf.fft.plan("fftn", np.ones((64, 64)), budget="8MB", device="cpu")
    >>> len(plan.passes), plan.on_disk
    (1, False)
    """

    name: str
    passes: tuple[PassPlan, ...]
    on_disk: bool
    limit: int

    @property
    def intermediates(self) -> tuple[ArraySpec, ...]:
        """Specs of the arrays between passes, with chunks if they are on disk."""
        return tuple(p.result for p in self.passes[:-1])

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        """Spec of the result."""
        return (self.passes[-1].result,)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Of each pass, as of those of other operations."""
        return tuple(p.plan for p in self.passes if p.plan is not None)

    @property
    def bytes_read(self) -> int:
        """Bytes that are read in all."""
        return sum(p.bytes_read for p in self.passes)

    @property
    def bytes_written(self) -> int:
        """Bytes that are written in all."""
        return sum(p.bytes_written for p in self.passes)

    @property
    def seconds(self) -> float:
        """Predicted time of all passes."""
        return sum(p.seconds for p in self.passes)

    def __str__(self) -> str:
        number = "1 pass" if len(self.passes) == 1 else f"{len(self.passes)} passes"
        lines = [f"{self.name} in {number} within {format_bytes(self.limit)}, {self.seconds:.3g} s by the model"]
        for i, each in enumerate(self.passes, 1):
            lines.append(f"  {i}. {each}")
            if i < len(self.passes):
                chunks = each.result.chunks
                stored = "in a plain file" if chunks is None else f"on the disk in chunks of {chunks}"
                where = stored if self.on_disk else "in memory, or in the output itself"
                lines.append(f"     between: {format_bytes(each.result.nbytes)} {where}")
        return "\n".join(lines)

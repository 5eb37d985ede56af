"""Reductions with NumPy's names, arguments and results, over arrays of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.budget import Budget
from chunkflow.declare import Declared
from chunkflow.ops.map import nest, normalize_axes
from chunkflow.ops.reduce import Reduction
from chunkflow.prepare import Options
from chunkflow.progress import ProgressLike
from chunkflow.run import Request, operation
from chunkflow.spec import ArraySpec

Axis = int | Sequence[int] | None


@operation
def sum(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    chunks: Sequence[int | None] | None = None,
    out: Any = None,
    budget: Budget | str | int | float | None = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """Sum (prototype)."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op = nest([s.shape for s in specs])
        ndim = len(op.extents)
        axes = tuple(range(ndim)) if axis is None else normalize_axes(axis, ndim, "axis")
        result = np.dtype(dtype or np.add.reduce(np.empty(0, specs[0].dtype)).dtype)
        wide = np.result_type(result, "f8") if result.kind in "fc" else result

        def chunk(block: Any, axes: tuple[int, ...], box: Any) -> tuple[Any, ...]:
            return (block.sum(axis=axes, dtype=wide, keepdims=True),)

        kernel = Reduction(
            axes, chunk, lambda a, b: (a[0] + b[0],), lambda v: v[0].astype(result, copy=False), keepdims
        )
        kept = tuple(a if a not in axes else None for a in range(ndim) if keepdims or a not in axes)
        return Declared(op, kernel, kept, block=None if chunks is None else tuple(chunks))

    options = Options(out=out, budget=budget, device=device, overwrite=overwrite)
    return Request(declare, (x,), options, progress, lambda r: r[()] if out is None and r.ndim == 0 else r)

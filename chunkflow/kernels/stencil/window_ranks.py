"""Order statistics of short windows, by minima and maxima of shifted arrays: no window is copied to a line and sorted.

Of sorted sequences a and b, the element of rank r in both together is the least of ``max(a[i], b[r - 1 - i])`` for all
i, where an element before the first one is less than all. So the order statistics of windows follow from those of two
parts of them, by the doubling of `chunkflow.kernels.stencil.windows`, and just those that are needed are found. Each
has a part in every minimum or maximum above it, so all of a window with a NaN are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.windows import Windows, strided
from chunkflow.kernels.protocol import is_trial
from chunkflow.kernels.statistics.quantile import WholeLines

LONGEST = 32
"""Elements of a window up to which this is quicker than to sort lines."""


@dataclass(frozen=True, eq=False)
class ByRank:
    """Quantiles of windows of at most `LONGEST` elements, by those of lines: which say what is taken of NaN too."""

    lines: WholeLines
    windows: Windows

    data_independent = False

    @property
    def size(self) -> int:
        """Elements of an array for which it takes memory, for one of a part; windows with NaN may be copied."""
        return 2 if self.lines.of_lines is None else max(2, math.prod(self.windows.widths) // 4)

    def __call__(self, x: Any) -> Any:
        """Quantiles of an array's windows, along a first axis if they are several."""
        rule = replace(self.lines.rule, nans=False)  # all order statistics of a window with a NaN are
        found = _ordered(x.astype(x.dtype.newbyteorder("="), copy=False), self.windows, rule.ranks().tolist())
        result = rule.result(lambda ranks: np.stack([found[rank] for rank in ranks.tolist()]))
        if self.lines.of_lines is not None and x.dtype.kind == "f":
            some = np.isnan(found[min(found)]) | is_trial()
            if some.any():
                every = strided(x, self.windows, self.windows.widths)[some]
                lines = replace(self.lines, axes=tuple(range(1, every.ndim)), scalar=False)
                result[:, some] = lines(every)
        return result[0] if self.lines.scalar else result


def _ordered(x: Any, windows: Windows, ranks: Sequence[int]) -> dict[int, Any]:
    """Order statistics of these ranks, counted from 0, of an array's windows."""
    found = {0: x}
    last = len(windows.axes) - 1
    for i, (axis, width) in enumerate(zip(windows.axes, windows.widths, strict=True)):
        found = _along(found, axis, width, ranks if i == last else range(len(found) * width))
    return found


def _along(single: dict[int, Any], axis: int, width: int, ranks: Sequence[int]) -> dict[int, Any]:
    """Order statistics of `width` windows side by side along an axis, from all those of each one."""
    if width == 1:
        return single
    first = 1 if width % 2 else width // 2
    n, m = first * len(single), (width - first) * len(single)
    pairs = {r: [(i - 1, r - i) for i in range(max(0, r + 1 - m), min(r + 1, n) + 1)] for r in ranks}
    wanted = {b for found in pairs.values() for _, b in found if b >= 0}
    if 2 * first == width:
        wanted |= {a for found in pairs.values() for a, _ in found if a >= 0}
    rest = _along(single, axis, width - first, sorted(wanted))
    here = rest if 2 * first == width else single
    number = single[0].shape[axis] - width + 1
    before = (slice(None),) * axis
    left, right = (*before, slice(0, number)), (*before, slice(first, first + number))
    result: dict[int, Any] = {}
    for rank, places in pairs.items():
        found = None
        for a, b in places:
            most = rest[b][right] if a < 0 else here[a][left] if b < 0 else np.maximum(here[a][left], rest[b][right])
            found = most if found is None else np.minimum(found, most)
        result[rank] = found
    return result

"""The kernel that fills a block's halo beyond the array's edges, all of it at once.

To fill it slice by slice (`chunkflow.core.halo.assign`) takes two calls for each axis. For thin blocks these keep the
host busy for as long as the upload of the block takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from chunkflow.core import halo
from chunkflow.core.grid import Region, Shape, permuted
from chunkflow.core.halo import Boundary
from chunkflow.kernels.fusion.codegen import Elementwise, Parameters

FIXED = "a constant"

# Thread i makes one element of the rim. First come elements whose first coordinate lies in the rim, then those of the
# others whose second one does, and so on. So no element comes twice. Each is a copy of an element within the array.
BODY = """
const long long shape[] = {{{shape}}}, first[] = {{{first}}}, last[] = {{{last}}};
long long left = i, at[{axes}];
int rim = 0;
for (;; rim++) {{
    long long number = 1;
    for (int a = 0; a < {axes}; a++) {{
        const long long inside = last[a] - first[a];
        number *= a < rim ? inside : a == rim ? shape[a] - inside : shape[a];
    }}
    if (left < number) break;
    left -= number;
}}
for (int a = {axes} - 1; a >= 0; a--) {{
    const long long inside = last[a] - first[a];
    const long long side = a < rim ? inside : a == rim ? shape[a] - inside : shape[a];
    at[a] = left % side;
    left /= side;
    if (a < rim) at[a] += first[a];
    else if (a == rim && at[a] >= first[a]) at[a] += inside;
}}
long long from = 0, to = 0;
int fixed = -1;
{sources}
block[to] = {value};
"""

# Beyond several edges with constants, that of the last axis counts, as if the axes were filled one after another.
SOURCE = """
{{
    const bool before = at[{a}] < first[{a}], behind = at[{a}] >= last[{a}];
    long long source = at[{a}];
    if (before || behind) {source};
    from = from * shape[{a}] + source;
    to = to * shape[{a}] + at[{a}];
}}
"""
SOURCES = {
    FIXED: "fixed = fixed > {rank} ? fixed : {rank}",
    "nearest": "source = before ? first[{a}] : last[{a}] - 1",
    "reflect": "source = 2 * (before ? first[{a}] : last[{a}]) - 1 - at[{a}]",
    "mirror": "source = 2 * (before ? first[{a}] : last[{a}] - 1) - at[{a}]",
    "periodic": "source += before ? last[{a}] - first[{a}] : first[{a}] - last[{a}]",
}


@lru_cache(64)
def text(kinds: tuple[str, ...], order: Shape, dtype: str) -> tuple[Parameters, Parameters, str]:
    """Inputs, outputs and body of the kernel, for axes in memory order `order`."""
    axes = range(len(kinds))
    names = {word: [f"{word}{a}" for a in axes] for word in ("shape", "first", "last")}
    constants = [f"fixed{rank}" for rank in sorted(order[a] for a in axes if kinds[a] == FIXED)]
    value = "block[from]"
    for name in constants:
        value = f"fixed == {name.removeprefix('fixed')} ? {name} : {value}"
    sources = [SOURCE.format(a=a, source=SOURCES.get(kinds[a], "").format(a=a, rank=order[a])) for a in axes]
    body = BODY.format(
        axes=len(kinds),
        sources="".join(sources),
        value=value,
        **{word: ", ".join(made) for word, made in names.items()},
    )
    inputs = [("int64", name) for made in names.values() for name in made] + [(dtype, name) for name in constants]
    return tuple(inputs), ((f"raw {dtype}", "block"),), body


def filler(make: Elementwise) -> Callable[[Any, Region, Shape, Sequence[Boundary]], None]:
    """`chunkflow.core.halo.fill` for arrays of a device that compiles kernels with `make`."""

    def fill(block: Any, region: Region, extents: Shape, boundary: Sequence[Boundary]) -> None:
        order = tuple(sorted(range(block.ndim), key=lambda axis: -block.strides[axis]))
        lying = block.transpose(order)
        if not lying.flags.c_contiguous:
            halo.assign(block, region, extents, boundary)
            return
        kinds, first, last, fixed = [], [], [], []
        for side, extent, kind in zip(region, extents, boundary, strict=True):
            before, behind = halo.beyond(side, extent, kind)
            first.append(before)
            last.append(side.stop - side.start - behind)
            kinds.append(kind if isinstance(kind, str) else FIXED)
            if not isinstance(kind, str):
                fixed.append(np.asarray(kind).astype(block.dtype)[()])
        number = block.size - math.prod(b - a for a, b in zip(first, last, strict=True))
        if number > 0:
            kernel = make(*text(tuple([kinds[axis] for axis in order]), order, block.dtype.name))
            sides = [permuted(sizes, order) for sizes in (block.shape, first, last)]
            kernel(*(np.int64(n) for side in sides for n in side), *fixed, lying.reshape(-1), size=number)

    return fill

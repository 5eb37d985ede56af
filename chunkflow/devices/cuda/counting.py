"""The kernels that count integers: `chunkflow.kernels.statistics.counting.counted` on a GPU.

Threads of a block count together, in the memory that they share, as long as the counts fit there; then they add these
to the counts of all. More counts are added to at once. Each element's count is an integer, so their order is no matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.kernels.fusion.codegen import Elementwise, Parameters

SHARED = 8 << 10
"""Most counts in the memory that a block of threads shares: a quarter of it, so that several blocks run at a time."""

TOGETHER, BLOCKS = 512, 528
"""Threads of a block, and blocks: four on each of an H100's multiprocessors."""

IN_PARTS = """
__shared__ unsigned int part[ROOM];
for (unsigned int at = threadIdx.x; at < number; at += blockDim.x) part[at] = 0;
__syncthreads();
for (long long at = i; at < elements; at += threads) {
    const unsigned long long place = (unsigned long long)places[at];
    if (place < number) atomicAdd(part + place, 1u);
}
__syncthreads();
for (unsigned int at = threadIdx.x; at < number; at += blockDim.x)
    if (part[at]) atomicAdd((unsigned long long*)&counts[at], (unsigned long long)part[at]);
"""

# A warp whose elements are all one integer adds them in one step: that spares a queue at one address.
AT_ONCE = """
for (long long at = i; at - threadIdx.x % 32 < elements; at += threads) {
    const unsigned long long place = at < elements ? (unsigned long long)places[at] : ~0ull;
    int same = 0;
    __match_all_sync(0xffffffff, place, &same);
    if (place < number && (!same || threadIdx.x % 32 == 0))
        atomicAdd((unsigned long long*)&counts[place], same ? 32ull : 1ull);
}
"""


INPUTS: Parameters = (("raw T", "places"), ("int64", "elements"), ("uint64", "number"), ("int64", "threads"))
OUTPUTS: Parameters = (("raw int64", "counts"),)


def counter(make: Elementwise) -> Callable[[Any, int], Any]:
    """`counted` for arrays of a device that compiles kernels with `make`."""

    def counted(places: Any, number: int) -> Any:
        flat = places.reshape(-1)
        counts = np.zeros_like(flat, dtype=np.intp, shape=(number,))
        threads = TOGETHER * max(1, min(BLOCKS, flat.size // (TOGETHER * 4)))
        if flat.size and number:
            room = 1 << (number - 1).bit_length()
            kernel = make(INPUTS, OUTPUTS, IN_PARTS.replace("ROOM", str(room)) if room <= SHARED else AT_ONCE)
            kernel(flat, flat.size, number, threads, counts, size=threads, block_size=TOGETHER)
        return counts

    return counted

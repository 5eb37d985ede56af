"""The kernel that gathers keys in some intervals, and counts those below: `among` on a GPU.

Each thread counts in registers, threads of a block add their counts up in the memory that they share, and blocks add
theirs to the counts of all. Each key that is gathered asks one counter for its place, so their order is no matter, and
what follows must sort them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.kernels.fusion.codegen import Elementwise, Parameters
from chunkflow.kernels.statistics import gathered

TOGETHER, BLOCKS, LEAST = 256, 1056, 8
"""Threads of a block, blocks, eight on each of an H100's multiprocessors, and the fewest keys of a thread."""

INPUTS: Parameters = (("raw T", "keys"), ("raw T", "ends"), ("int64", "elements"), ("int64", "threads"))
OUTPUTS: Parameters = (("raw T", "found"), ("raw uint64", "counts"))

# `ends` are the low ones, then the high ones; counts are those below each, of less than the greatest key, of all found.
CODE = """
__shared__ unsigned long long part[NUMBER + 1];
for (int at = threadIdx.x; at <= NUMBER; at += blockDim.x) part[at] = 0;
__syncthreads();
T low[NUMBER], high[NUMBER];
unsigned int below[NUMBER + 1] = {0};
#pragma unroll
for (int j = 0; j < NUMBER; j++) low[j] = ends[j], high[j] = ends[NUMBER + j];
for (long long at = i; at < elements; at += threads) {
    const T key = keys[at];
    bool inside = false;
    #pragma unroll
    for (int j = 0; j < NUMBER; j++) {
        below[j] += key < low[j];
        inside |= key >= low[j] && key <= high[j];
    }
    below[NUMBER] += key != (T)~(T)0;
    if (inside) found[atomicAdd((unsigned long long*)&counts[NUMBER + 1], 1ull)] = key;
}
#pragma unroll
for (int j = 0; j <= NUMBER; j++) if (below[j]) atomicAdd(part + j, (unsigned long long)below[j]);
__syncthreads();
for (int at = threadIdx.x; at <= NUMBER; at += blockDim.x)
    if (part[at]) atomicAdd((unsigned long long*)&counts[at], part[at]);
"""


def gatherer(make: Elementwise) -> Callable[[Any, np.ndarray, np.ndarray], tuple[Any, Any]]:
    """`among` for arrays of a device that compiles kernels with `make`."""
    plainly = gathered.among.dispatch(object)

    def among(keys: Any, lows: np.ndarray, highs: np.ndarray) -> tuple[Any, Any]:
        number = len(lows)
        if number > gathered.FEW or not keys.size:
            return plainly(keys, lows, highs)
        threads = TOGETHER * max(1, min(BLOCKS, keys.size // (TOGETHER * LEAST)))
        found, counts = np.empty_like(keys), np.zeros_like(keys, dtype=np.uint64, shape=(number + 2,))
        ends = np.asarray(np.concatenate((lows, highs)), like=keys)
        kernel = make(INPUTS, OUTPUTS, CODE.replace("NUMBER", str(number)))
        kernel(keys, ends, keys.size, threads, found, counts, size=threads, block_size=TOGETHER)
        return found[: int(counts[-1])], counts[:-1].astype(np.intp)

    return among

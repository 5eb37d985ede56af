"""The kernels that count integers: `counted` and `distinct` of `chunkflow.kernels.statistics.counting` on a GPU.

A block of threads counts in the memory that its threads share, and adds what it has found to the counts of all at the
end. Where that memory holds not all counts it is a cache: an integer keeps the slot that it was the first to take, and
others that belong there are added to the counts of all at once. So integers that come often, which come early, do not
queue for one address. Counts are integers: the order in which they are added is no matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.kernels.fusion.codegen import Elementwise, Parameters
from chunkflow.kernels.statistics import counting

SHARED = 8 << 10
"""Most counts that a block of threads holds: a seventh of its memory, so that several blocks run at a time."""

TOGETHER, BLOCKS = 512, 528
"""Threads of a block, and blocks: four on each of an H100's multiprocessors."""

TABLE, PROBES = 1 << 17, 64
"""Slots for distinct integers, of which about half are to be taken, and how many are looked at for one of these."""

CACHE = 2 << 10
"""Slots for counts that a block of threads holds of more than it has room for."""

INPUTS: Parameters = (("raw T", "places"), ("int64", "elements"), ("uint64", "number"), ("int64", "threads"))
COUNTS: Parameters = (("raw int64", "counts"),)
FOUND: Parameters = (("raw uint64", "names"), *COUNTS, ("raw int32", "full"))

ALL_SHARED = """
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

# Fibonacci hashing, with linear probing (D. E. Knuth, The Art of Computer Programming, vol. 3, section 6.4). The
# name `NONE` stands for an empty slot; what has that name itself is counted behind the table.
SHARED_CACHE = f"""
typedef unsigned long long Name;
const Name NONE = ~0ull;

__device__ inline unsigned int hashed(Name name) {{
    return (name ^ name >> 29) * 0x9E3779B97F4A7C15ull >> 32;
}}

struct Row {{
    Name *counts, number;
    __device__ bool add(Name name, Name times) const {{
        if (name < number) atomicAdd(counts + name, times);
        return true;
    }}
}};

struct Table {{
    Name *names, *counts, number;
    __device__ bool add(Name name, Name times) const {{
        Name to = number;
        if (name != NONE) {{
            to = hashed(name) % number;
            for (int probe = 0;; probe++, to = (to + 1) % number) {{
                if (probe == {PROBES}) return false;
                Name owner = ((volatile Name*)names)[to];
                if (owner == NONE) owner = atomicCAS(names + to, NONE, name);
                if (owner == NONE || owner == name) break;
            }}
        }}
        atomicAdd(counts + to, times);
        return true;
    }}
}};

template <typename Element, typename Into>
__device__ bool count(const Element* places, long long elements, long long first, long long threads, Into into) {{
    __shared__ Name names[{CACHE}];
    __shared__ unsigned int part[{CACHE}];
    for (unsigned int at = threadIdx.x; at < {CACHE}; at += blockDim.x) names[at] = NONE, part[at] = 0;
    __syncthreads();
    bool room = true;
    for (long long at = first; room && at < elements; at += threads) {{
        const Name name = (Name)places[at];
        const unsigned int slot = hashed(name) % {CACHE};
        Name owner = ((volatile Name*)names)[slot];
        if (owner == NONE) {{
            owner = atomicCAS(names + slot, NONE, name);
            if (owner == NONE) owner = name;
        }}
        if (owner == name && name != NONE) atomicAdd(part + slot, 1u);
        else room = into.add(name, 1);
    }}
    __syncthreads();
    for (unsigned int at = threadIdx.x; at < {CACHE}; at += blockDim.x)
        if (part[at]) room = into.add(names[at], part[at]) && room;
    return room;
}}
"""
IN_ROW = "count(&places[0], elements, i, threads, Row{(Name*)&counts[0], number});"
IN_TABLE = """
if (!count(&places[0], elements, i, threads, Table{(Name*)&names[0], (Name*)&counts[0], number})) full[0] = 1;
"""


def _threads(elements: int) -> int:
    return TOGETHER * max(1, min(BLOCKS, elements // (TOGETHER * 4)))


def counter(make: Elementwise) -> Callable[[Any, int], Any]:
    """`counted` for arrays of a device that compiles kernels with `make`."""

    def counted(places: Any, number: int) -> Any:
        flat, threads = places.reshape(-1), _threads(places.size)
        counts = np.zeros_like(flat, dtype=np.intp, shape=(number,))
        if flat.size and number:
            room = 1 << (number - 1).bit_length()
            if room <= SHARED:
                kernel = make(INPUTS, COUNTS, ALL_SHARED.replace("ROOM", str(room)))
            else:
                kernel = make(INPUTS, COUNTS, IN_ROW, SHARED_CACHE)
            kernel(flat, flat.size, number, threads, counts, size=threads, block_size=TOGETHER)
        return counts

    return counted


def distinct_finder(make: Elementwise) -> Callable[..., tuple[Any, Any]]:
    """`distinct` for arrays of a device that compiles kernels with `make`: by a hash table, or by sorting."""
    by_sorting = counting.distinct.dispatch(object)

    def distinct(keys: Any, known: int = 0) -> tuple[Any, Any]:
        if known > TABLE // 2 or keys.dtype.itemsize <= 2:
            return by_sorting(keys, known)
        flat, threads = keys.reshape(-1), _threads(keys.size)
        table = np.full_like(flat, ~np.uint64(0), dtype="u8", shape=(TABLE + 1,))
        counts, full = np.zeros_like(table, dtype="i8"), np.zeros_like(table, dtype="i4", shape=(1,))
        kernel = make(INPUTS, FOUND, IN_TABLE, SHARED_CACHE)
        kernel(flat, flat.size, TABLE, threads, table, counts, full, size=threads, block_size=TOGETHER)
        if bool(full[0]):
            del table, counts
            return by_sorting(keys, known)
        some = counts.nonzero()[0]
        found = table[some]
        order = np.argsort(found)
        return found[order].astype(keys.dtype), counts[some[order]]

    return distinct

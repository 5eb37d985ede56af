"""The kernels that order elements: `to_keys` and `short_lines` of `chunkflow.kernels.statistics` on a GPU.

A block of threads sorts as many lines at a time as fit in the memory that its threads share, by the bitonic network of
K. E. Batcher, "Sorting networks and their applications" (1968), in the form in which each comparison puts the smaller
element first. Lines are filled up to a power of two with elements that come last. A line is read and written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.devices.cuda.lines import lying_order
from chunkflow.kernels.fusion.codegen import Elementwise, Parameters
from chunkflow.kernels.statistics.radix_keys import key_dtype

SHARED = 48 << 10
"""Bytes that a block of threads shares without being asked for more."""

TOGETHER, BLOCKS = 512, 1056
"""Threads of a block, and most blocks: eight for each of an H100's multiprocessors."""

PLACE = 2
"""Bytes of an element's place in its line."""

# Keys have the order of the elements as unsigned integers; those of NaN are the greatest.
KEYS = {
    "b": ("const A key = bits;", "const A bits = key;"),
    "u": ("const A key = bits;", "const A bits = key;"),
    "i": ("const A key = bits ^ TOP;", "const A bits = key ^ TOP;"),
    "f": (
        "const A key = (A)(bits & ~TOP) > INFINITE ? (A)~(A)0 : bits & TOP ? (A)~bits : (A)(bits ^ TOP);",
        "const A bits = key & TOP ? (A)(key ^ TOP) : (A)~key;",
    ),
}

KEYED = """
const A bits = x[i];
KEY
out[i] = key;
"""

# Threads of a warp work on 64 neighbouring elements where these are compared over at most 32.
SORTED = """
__shared__ A keys[ROOM];
PLACES
for (long long first = i / blockDim.x * PER; first < lines; first += threads / blockDim.x * PER) {
    for (int at = threadIdx.x; at < ROOM; at += blockDim.x) {
        const long long line = first + at / LENGTH;
        const int column = at % LENGTH;
        keys[at] = (A)~(A)0;
        if (line < lines && column < length) {
            A bits = x[line * length + column];
            LOADED
            KEY
            keys[at] = key;
        }
        PLACED
    }
    __syncthreads();
    for (int run = 2; run <= LENGTH; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            for (int pair = threadIdx.x; pair < ROOM / 2; pair += blockDim.x) {
                const int place = pair & (step - 1), low = 2 * pair - place;
                const int high = step == run / 2 ? low + run - 1 - 2 * place : low + step;
                const A a = keys[low], b = keys[high];
                if (LATER) {
                    keys[low] = b;
                    keys[high] = a;
                    SWAPPED
                }
            }
            if (step > 32 || (step == 1 && run > 32)) __syncthreads();
            else __syncwarp();
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < ROOM; at += blockDim.x) {
        const long long line = first + at / LENGTH;
        const int column = at % LENGTH;
        if (line < lines && column < length) {
            STORED
        }
    }
    __syncthreads();
}
"""
VALUES = {
    "PLACES": "",
    "LOADED": "",
    "PLACED": "",
    "LATER": "a > b",
    "SWAPPED": "",
    "STORED": "const A key = keys[at];\nBITS\nout[line * length + column] = bits;",
}
# Equal elements keep their order, zeros of both signs too.
INDEXES = {
    "PLACES": "__shared__ unsigned short places[ROOM];",
    "LOADED": "ZERO",
    "PLACED": "places[at] = column;",
    "LATER": "a > b || (a == b && places[low] > places[high])",
    "SWAPPED": "const unsigned short other = places[low];\nplaces[low] = places[high];\nplaces[high] = other;",
    "STORED": "indexes[line * length + column] = places[at];",
}

INPUTS: Parameters = (("raw T", "x"),)
LINES: Parameters = (*INPUTS, ("int64", "lines"), ("int64", "length"), ("int64", "threads"))
FOUND: Parameters = (("raw A", "out"),)
AT: Parameters = (("raw int64", "indexes"), *FOUND)


def _filled(text: str, dtype: np.dtype, words: dict[str, str]) -> str:
    """A kernel's text for elements of a dtype, which it is given as unsigned integers."""
    key, bits = KEYS[dtype.kind]
    top = 1 << (8 * dtype.itemsize - 1)
    infinite = int(np.array(np.inf, dtype).view(key_dtype(dtype))) if dtype.kind == "f" else 0
    zero = "if (bits == TOP) bits = 0;" if dtype.kind == "f" else ""
    numbers = {"TOP": f"((A){top}ull)", "INFINITE": f"((A){infinite}ull)"}
    for word, meaning in (words | {"KEY": key, "BITS": bits, "ZERO": zero} | numbers).items():
        text = text.replace(word, meaning)
    return text


def keyer(make: Elementwise) -> Callable[[Any], Any]:
    """`to_keys` for arrays of a device that compiles kernels with `make`."""

    def to_keys(x: Any) -> Any:
        keys = x.view(key_dtype(x.dtype))
        if x.dtype.kind in "bu":
            return keys
        order = lying_order(keys)
        lying = keys.transpose(order)
        found = np.empty_like(lying, order="C")
        make(INPUTS, FOUND, _filled(KEYED, x.dtype, {}))(lying, found, size=found.size)
        return found.transpose(np.argsort(order).tolist())

    return to_keys


def sorter(make: Elementwise) -> Callable[..., Any]:
    """`short_lines` for arrays of a device that compiles kernels with `make`."""

    def short_lines(x: Any, axis: int, *, places: bool) -> Any:
        dtype, axis = x.dtype, axis % max(x.ndim, 1)
        if dtype.kind not in KEYS or x.size == 0:
            return None
        longest = SHARED // (dtype.itemsize + PLACE * places)
        length, lying = x.shape[axis], np.moveaxis(x, axis, -1)
        if length > longest:
            return None
        padded = 1 << (length - 1).bit_length()
        room = max(padded, 2 * TOGETHER)
        if room > longest:
            return None
        bits = lying.view(key_dtype(dtype))
        bits = bits if bits.flags.c_contiguous else bits.copy(order="C")
        lines, per = x.size // length, room // padded
        blocks = min(BLOCKS, math.ceil(lines / per))
        words = (INDEXES if places else VALUES) | {"ROOM": str(room), "LENGTH": str(padded), "PER": str(per)}
        shape = (lines, length, blocks * TOGETHER)
        kernel = make(LINES, AT if places else FOUND, _filled(SORTED, dtype, words))
        if places:
            found = np.empty_like(bits, dtype="i8")
            kernel(bits, *shape, found, bits[:0], size=shape[-1], block_size=TOGETHER)
            return np.moveaxis(found, -1, axis)
        found = np.empty_like(bits)
        kernel(bits, *shape, found, size=shape[-1], block_size=TOGETHER)
        return np.moveaxis(found.view(dtype), -1, axis)

    return short_lines

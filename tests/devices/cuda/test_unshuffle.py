"""The kernel that puts chunks together, run as C where there is a compiler: the same text as on a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.core.encoded_chunks import BITS, BYTES, PLAIN
from chunkflow.devices.cuda.unshuffle import BODY
from chunkflow.testing.devices import shuffle

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

READ = "((const unsigned char*)sources[place / item])[place % item]"
SOURCE = f"""
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define min(a, b) ((a) < (b) ? (a) : (b))
void words(uint64_t where, uint64_t facts, uint32_t nbytes, uint32_t* outs, ptrdiff_t n) {{
    for (ptrdiff_t i = 0; i < n; i++) {{
        uint32_t out;
        {BODY}
        outs[i] = out;
    }}
}}
void places(uint64_t where, uint64_t facts, uint32_t nbytes, uint64_t* seen, ptrdiff_t i) {{
    uint32_t out;
    {BODY.replace(READ, "(*seen++ = (uint64_t)(sources + place / item), *seen++ = place % item, 0u)")}
}}
"""


@cache
def kernel() -> Any:
    with TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
        found = ctypes.CDLL(str(library))
    for function in (found.words, found.places):
        function.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_ssize_t]
    return found


@given(data=st.data(), words=st.integers(1, 700), number=st.integers(1, 3))
def test_chunks_are_what_they_were(data: st.DataObject, words: int, number: int) -> None:
    nbytes = 4 * words
    plain = np.random.default_rng(words).integers(0, 256, (number, nbytes), "u1")
    items: list[np.ndarray] = []
    facts = []
    for row in plain:
        width = data.draw(st.sampled_from([1, 2, 3, 4, 8, 16, 24, 255]))
        shuffled = data.draw(st.sampled_from([PLAIN, BYTES, BITS]))
        side = 4 * data.draw(st.integers(1, words))
        cut = width if side % width == 0 and data.draw(st.booleans()) else 1
        facts.append([len(items), side, cut, width, shuffled])
        for at in range(0, nbytes, side):
            block = shuffle(row[at : at + side], width, shuffled)
            items += [part.copy() for part in block.reshape(cut if len(block) == side else 1, -1)]
    where, table = np.array([item.ctypes.data for item in items], "u8"), np.array(facts, "u8")
    out = np.zeros((number, words), "u4")
    kernel().words(where.ctypes.data, table.ctypes.data, nbytes, out.ctypes.data, out.size)
    np.testing.assert_array_equal(out.view("u1"), plain)


@pytest.mark.parametrize("shuffled", [PLAIN, BYTES, BITS])
@pytest.mark.parametrize("side", [1 << 32, 1 << 31, 1 << 20])
@pytest.mark.parametrize("chunk", [0, 3000])
def test_chunks_of_almost_four_gibibytes(shuffled: int, side: int, chunk: int) -> None:
    nbytes, width, first = (1 << 32) - 64, 8, 1 << 33
    side = min(side, nbytes)
    items = width if nbytes > side else 1
    facts, seen = np.zeros((chunk + 1, 5), "u8"), np.zeros((32, 2), "u8")
    facts[-1] = first, side, items, width, shuffled
    for at in (0, 4, nbytes // 2, nbytes - 4):
        kernel().places(0, facts.ctypes.data, nbytes, seen.ctypes.data, chunk * (nbytes // 4) + at // 4)
        block, begin = divmod(at, side)
        size = min(side, nbytes - block * side)
        element, byte = divmod(begin, width)
        place = begin
        if shuffled == BYTES:
            place = byte * (size // width) + element
        if shuffled == BITS:
            place = 8 * byte * (size // width // 8) + element // 8
        item = size // (items if size == side else 1)
        assert seen[0].tolist() == [8 * (first + block * items + place // item), place % item]

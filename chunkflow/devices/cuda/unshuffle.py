"""The kernel that joins the items of chunks, and undoes the byte or bit shuffle of their elements.

It undoes C-Blosc's filters. In a block of n elements, byte j of element i is stored as byte j * n + i (byte shuffle),
or bit k of that byte as bit i % 8 of byte (8 * j + k) * (n / 8) + i / 8 (bit shuffle). Bits are not shuffled if n is no
multiple of 8. What follows the last whole element of a block is not shuffled either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.core.encoded_chunks import BITS, BYTES, FACTS
from chunkflow.kernels.fusion.codegen import Elementwise

INPUTS = (("uint64", "where"), ("uint64", "facts"), ("uint32", "nbytes"))
OUTPUTS = (("uint32", "out"),)

# Each thread makes four bytes of one block. Chunks have less than 2**32 bytes.
BODY = f"""
const unsigned int at = 4 * (unsigned int)(i % (nbytes / 4));
const unsigned long long* fact = (const unsigned long long*)facts + {FACTS} * (i / (nbytes / 4));
const unsigned int side = fact[1], shuffled = fact[4];
const unsigned int block = at / side, begin = at - block * side;
const unsigned int size = min(side, nbytes - block * side);
const unsigned int items = size == side ? (unsigned int)fact[2] : 1, item = size / items;
const unsigned long long* sources = (const unsigned long long*)where + fact[0] + (unsigned long long)block * fact[2];
const unsigned int whole = size / (unsigned int)fact[3];
const bool bits = shuffled == {BITS} && whole % 8 == 0;
const unsigned int width = bits || shuffled == {BYTES} ? (unsigned int)fact[3] : 1;
const unsigned int elements = size / width;
unsigned int element = begin / width, byte = begin - element * width, word = 0;
for (unsigned int k = 0; k < 4; k++) {{
    unsigned int value = 0;
    if (element >= elements || !bits) {{
        const unsigned int place = element < elements ? byte * elements + element : begin + k;
        value = ((const unsigned char*)sources[place / item])[place % item];
    }} else {{
        for (unsigned int bit = 0; bit < 8; bit++) {{
            const unsigned int place = (8 * byte + bit) * (elements / 8) + element / 8;
            const unsigned int found = ((const unsigned char*)sources[place / item])[place % item];
            value |= (found >> (element % 8) & 1u) << bit;
        }}
    }}
    word |= value << (8 * k);
    if (++byte == width) {{
        byte = 0;
        element++;
    }}
}}
out = word;
"""


def unshuffler(make: Elementwise) -> Callable[[int, int, int, Any], None]:
    """`Device.unshuffle` of a device that compiles kernels with `make`; the first call compiles this one."""

    def unshuffle(where: int, facts: int, nbytes: int, out: Any) -> None:
        make(INPUTS, OUTPUTS, BODY)(np.uint64(where), np.uint64(facts), np.uint32(nbytes), out)

    return unshuffle

"""Copies that Python enqueues for one piece, with the CPU's memory in the place of a GPU's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.core.pieces import LEAST_ROW, pieces
from chunkflow.devices.cuda.memcpy import TO_DEVICE, TO_HOST, copied
from chunkflow.testing import filled

STREAM = 7


class Runtime:
    """The two calls of CUDA's runtime, and how often they were made."""

    def __init__(self) -> None:
        self.calls = 0

    def memcpyAsync(self, to: int, of: int, nbytes: int, kind: int, stream: int) -> None:  # noqa: N802 (CuPy's name)
        self.memcpy2DAsync(to, nbytes, of, nbytes, nbytes, 1, kind, stream)

    def memcpy2DAsync(  # noqa: N802
        self, to: int, pitch: int, of: int, distance: int, width: int, height: int, kind: int, stream: int
    ) -> None:
        assert kind in (TO_DEVICE, TO_HOST)
        assert stream == STREAM
        assert width <= min(pitch, distance)
        self.calls += 1
        for row in range(height):
            ctypes.memmove(to + row * pitch, of + row * distance, width)


@given(data=st.data(), landing=st.booleans())
def test_pieces_come_and_go_unless_they_have_to_land(data: st.DataObject, landing: bool) -> None:
    shape = (*data.draw(st.lists(st.integers(1, 6), max_size=3).map(tuple)), data.draw(st.integers(1, 400)))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    units = tuple(data.draw(st.integers(1, n)) for n in shape)
    x = filled(shape, "f8")
    lying = np.ascontiguousarray(x.transpose(order))
    block, back, seen = np.zeros_like(lying), np.zeros(x.size), np.zeros(shape, "?")
    natural: Any = block.transpose(np.argsort(order))
    for piece in pieces(shape, order, data.draw(st.integers(1, x.size)), units):
        runtime = Runtime()
        slot = np.ascontiguousarray(x[piece.region].transpose(order))
        ends = block.ctypes.data, slot.ctypes.data, TO_DEVICE, STREAM
        if not copied(runtime, piece, 8, *ends, landing=landing):
            assert runtime.calls == 0
            assert piece.rows is None or (landing and (piece.rows.width * 8 < LEAST_ROW or len(piece.rows.starts) > 1))
            continue
        seen[piece.region] = True
        host = back[: piece.size]
        host[...] = np.nan
        assert copied(runtime, piece, 8, block.ctypes.data, host.ctypes.data, TO_HOST, STREAM, landing=landing)
        np.testing.assert_array_equal(host, slot.ravel())
    np.testing.assert_array_equal(natural, np.where(seen, x, 0))

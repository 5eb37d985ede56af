"""Copies of a piece between a host buffer and a block on a GPU, enqueued from Python where no compiled loop does it."""

from __future__ import annotations

from typing import Any

from chunkflow.core.pieces import Piece

TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind


def copied(
    runtime: Any, piece: Piece, item: int, device: int, host: int, kind: int, stream: int, *, landing: bool
) -> bool:
    """Copy a piece if it is one run on the device, or rows that are copied directly; return whether it was copied.

    An element has `item` bytes. At address `device` lies the block, at `host` the piece, without gaps. `kind` is
    `TO_DEVICE` or `TO_HOST`. `landing` says whether there is scratch memory on the device for scattered pieces.
    """
    if piece.offset is not None:
        there = device + piece.offset * item
        ends = (there, host) if kind == TO_DEVICE else (host, there)
        runtime.memcpyAsync(*ends, piece.size * item, kind, stream)
        return True
    if piece.rows is None or piece.lands(item, landing=landing):
        return False
    width, pitch = piece.rows.width * item, piece.rows.pitch * item
    for start in piece.rows.all_starts:
        there = device + start * item
        places = (there, pitch, host, width) if kind == TO_DEVICE else (host, width, there, pitch)
        runtime.memcpy2DAsync(*places, width, piece.rows.height, kind, stream)
        host += width * piece.rows.height
    return True

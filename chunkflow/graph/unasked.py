"""Expressions that are computed because an array is needed at once: as an index, or by another library."""

from __future__ import annotations

import os

from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.errors import UnsupportedError

ASARRAY = "1GB"
"""Bytes of an array up to which it is made unasked: who needs more does so by mistake."""


def check_unasked(what: str, nbytes: int, why: str) -> None:
    """Refuse to make an array in memory that is larger than `ASARRAY`, or than ``CHUNKFLOW_ASARRAY`` says."""
    most = parse_bytes(os.environ.get("CHUNKFLOW_ASARRAY", ASARRAY))
    if nbytes > most:
        raise UnsupportedError(
            f"{what} of {format_bytes(nbytes)} would be computed into memory, {why}. Up to {format_bytes(most)} is "
            "computed unasked; CHUNKFLOW_ASARRAY in the environment sets another limit"
        )

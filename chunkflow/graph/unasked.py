"""Expressions that are computed because an array is needed at once: as an index, or by another library."""

from __future__ import annotations

from chunkflow.core.settings import setting
from chunkflow.core.units import format_bytes
from chunkflow.errors import UnsupportedError


def check_unasked(what: str, nbytes: int, why: str) -> None:
    """Refuse to make an array in memory that is larger than the setting ``array_limit``."""
    most = setting("array_limit")
    if nbytes > most:
        raise UnsupportedError(
            f"{what} of {format_bytes(nbytes)} would be computed into memory, {why}. Up to {format_bytes(most)} is "
            "computed unasked; chunkflow.config.set(array_limit=) sets another limit"
        )

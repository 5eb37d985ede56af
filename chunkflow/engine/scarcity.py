"""Device memory that a budget allows and the device no longer has, because others have taken it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device, Pool
from chunkflow.errors import BudgetError, ChunkflowError

TOLERANCE = 0.02
"""Share of a budget that may be missing without a word: drivers give memory in pages."""


@contextmanager
def explained(device: Device, pool: Pool) -> Iterator[None]:
    """Make a `BudgetError` of the device's error for want of memory, and say what is free if it is less than allowed.

    What runs out while a function works is a `BudgetError` already: then the figures are a note.
    """
    try:
        yield
    except BudgetError as error:
        if missing := _missing(device, pool):
            error.add_note(f"chunkflow: {missing}")
        raise
    except BaseException as error:
        if isinstance(error, ChunkflowError) or not device.is_out_of_memory(error):
            raise
        asked, limit = device.bytes_asked(error), pool.limit
        wanted = "" if asked is None else f" for {format_bytes(asked)} ({asked} bytes)"
        found = BudgetError(
            f"{device.name} has no memory{wanted}, within the budget of {format_bytes(limit)} ({limit} bytes): "
            f"{_missing(device, pool) or 'it may be in pieces, none of which is large enough. Give a smaller budget='} "
            f"({error})",
            needed=asked,
            limit=limit,
        )
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
        raise found from error


def _missing(device: Device, pool: Pool) -> str:
    """What the device lacks of the budget, and what to do; empty if it lacks nothing."""
    limit, used, free = pool.limit, pool.used + device.reserve, device.free_memory()
    if used + free >= limit * (1 - TOLERANCE):
        return ""
    return (
        f"of the budget of {format_bytes(limit)} the run has {format_bytes(used)}, and {format_bytes(free)} are free "
        f"on {device.name} now. Others may have taken the rest since the run began: give a budget= of at most "
        f"{used + free}, or wait until they give it back"
    )

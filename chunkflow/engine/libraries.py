"""Libraries that take memory of their own on a device: they are loaded before a run is planned, and count then."""

from __future__ import annotations

from collections.abc import Iterable

from chunkflow.core.units import format_bytes
from chunkflow.engine.budget import LEAST_PAGES, Lease
from chunkflow.engine.dry_run import is_dry
from chunkflow.errors import BudgetError
from chunkflow.kernels.protocol import Library


def load(libraries: Iterable[Library], leased: Lease) -> int:
    """Load libraries that the calling thread has not used yet, if the budget holds them.

    Returns
    -------
    int
        Bytes that they would take and have not: in a dry run nothing is loaded.

    Raises
    ------
    BudgetError
        The budget does not hold them.
    """
    device, missing = leased.device, 0
    for library in sorted(libraries):
        nbytes = device.to_load(library)
        if not nbytes:
            continue
        limit, pool = leased.left, leased.pool
        least = device.reserve + missing + nbytes + LEAST_PAGES * device.machine.page
        if limit < least:
            raise BudgetError(
                f"the library for {library} takes up to {format_bytes(nbytes)} of {device.name}, and "
                f"{format_bytes(limit)} are left of the budget ({limit} bytes), of which libraries have taken "
                f"{format_bytes(device.reserve)} already: raise budget= to at least {least}",
                needed=least,
                limit=limit,
                smallest=least,
            )
        if is_dry():
            missing += nbytes
        else:
            pool.trim()
            device.load(library)
    return missing

"""Libraries that take memory of their own on a device: they are loaded before a run is planned, and count then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device
from chunkflow.engine.budget import LEAST_PAGES, Lease
from chunkflow.engine.dry_run import is_dry, supposed
from chunkflow.errors import BudgetError
from chunkflow.kernels.protocol import Library


def load(libraries: Iterable[Library], leased: Lease) -> int:
    """Load libraries that the calling thread has not used yet, if the budget holds them.

    Returns
    -------
    int
        Bytes that these, and those of earlier passes, would take and have not: in a dry run nothing is loaded.

    Raises
    ------
    BudgetError
        The budget, or the device, does not hold them.
    """
    device, known = leased.device, supposed()
    for library in sorted(libraries):
        nbytes = device.to_load(library)
        if not nbytes or (device.name, library) in known:
            continue
        limit, pool = leased.left, leased.pool
        least = device.reserve + _of(device, known) + nbytes + LEAST_PAGES * device.machine.page
        if limit < least:
            raise _refusal(library, nbytes, device, limit, least)
        if is_dry():
            known[device.name, library] = nbytes
            continue
        pool.trim()
        try:
            device.load(library)
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            raise _refusal(library, nbytes, device, min(limit, device.free_memory()), None) from error
    return _of(device, known)


def _of(device: Device, known: Mapping[tuple[str, str], int]) -> int:
    return sum(nbytes for (name, _), nbytes in known.items() if name == device.name)


def _refusal(library: Library, nbytes: int, device: Device, limit: int, least: int | None) -> BudgetError:
    remedy = "the device has no more memory free" if least is None else f"raise budget= to at least {least}"
    return BudgetError(
        f"the library for {library} takes up to {format_bytes(nbytes)} of {device.name}, and {format_bytes(limit)} are "
        f"left of the budget ({limit} bytes), of which libraries have taken {format_bytes(device.reserve)} already: "
        + remedy,
        needed=least,
        limit=limit,
        smallest=least,
    )

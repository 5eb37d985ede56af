"""A limit in bytes for all runs on a device, enforced by a private memory pool that they share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass

from chunkflow.core import markup
from chunkflow.core.settings import origin, setting
from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.devices.common import WORKER
from chunkflow.devices.protocol import Device, Pool
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError
from chunkflow.system.context import run_variable

DEFAULT = "80%"
"""Share of the free memory that a run may take by default."""

LEAST_PAGES = 8
"""Pages of device memory that a small run needs, beside what libraries take."""

NOT_LOADED_YET = 32 << 20
"""Bytes that libraries may take between a refusal and the run in the budget that it names: kernels are loaded when they
are first used."""


class Budget:
    """Bytes of device memory that runs may take, shared by every run within a ``with`` block.

    Leaving the block returns the device memory of blocks, results and functions, whatever happened inside. Runs within
    it reuse what earlier ones took. What stays with the process: on a GPU CUDA's context, and what streams, kernels and
    libraries took (`kept`), which only the end of the process gives back; and up to 256 MiB of pinned host memory.

    Parameters
    ----------
    limit : int, str or float
        Bytes: an int, ``"4GB"``, ``"4GiB"``; or a share of what is free on the device when the budget is first
        used there: ``"80%"``, 0.8.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `limit` is not a positive number of bytes, its unit is unknown, or it is no fraction.

    Notes
    -----
    On a GPU the limit is hard: blocks and everything that the function allocates come from a private pool
    with that limit, less what streams, kernels and libraries are known to have taken outside it. On the CPU
    blocks are planned within the limit by the function's measured use; NumPy offers no way to refuse a
    function more, and `peak` counts blocks and results, not the function's own temporaries.

    The budget holds for runs of the thread (and context) that entered it; hand it to others as ``budget=``.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = np.arange(1_000_000.0)
    >>> with cf.Budget("2MB") as budget:
    ...     y = cf.map(np.sqrt, x, device="cpu")
    ...     z = cf.map(np.negative, y, device="cpu")
    >>> budget.limit, 0 < budget.peak <= budget.limit
    (2000000, True)
    """

    def __init__(self, limit: str | int | float = DEFAULT) -> None:
        self._spec, self._is_default = limit, False
        self._limits: dict[str, int] = {}
        self._pools: dict[str, Pool] = {}
        self._peak = 0
        self._tokens: list[Token[Budget | None]] = []
        self._lock = threading.RLock()
        self._reserved: dict[str, int] = {}
        self._devices: dict[str, Device] = {}
        parse_bytes(limit, whole=1 << 62)  # a mistake is reported here, not at the first run
        relative = isinstance(limit, float) or (isinstance(limit, str) and "%" in limit)
        self._fixed = None if relative else parse_bytes(limit)

    @property
    def limit(self) -> int:
        """Bytes allowed on each device (on the first one used, for a share of the free memory)."""
        if self._fixed is not None:
            return self._fixed
        if self._limits:
            return next(iter(self._limits.values()))
        raise ArgumentTypeError(
            f"the limit {self._spec!r} is a share of a device's memory, and no run has used a device yet: ask after "
            "the first run, or give bytes"
        )

    @property
    def peak(self) -> int:
        """Most bytes taken on a device so far."""
        return max([self._peak, *(pool.peak for pool in self._pools.values())])

    @property
    def kept(self) -> int:
        """Bytes that libraries have on the devices used, outside the pools: they stay until the process ends.

        They count in the budget. The bare context of CUDA, of some hundred megabytes, comes on top and counts nowhere.
        """
        return sum(device.reserve for device in self._devices.values())

    def limit_on(self, device: Device) -> int:
        """Bytes allowed on a device."""
        if device.name not in self._limits:
            self._devices[device.name] = device
            limit = parse_bytes(self._spec, whole=device.free_memory())
            self._limits[device.name] = steady(limit) if self._is_default and self._fixed is None else limit
        return self._limits[device.name]

    def pool(self, device: Device) -> Pool:
        """The budget's pool on a device."""
        if device.name not in self._pools:
            limit = self.limit_on(device)
            with_libraries = device.machine.staged and device.reserve
            least = device.reserve + LEAST_PAGES * device.machine.page if with_libraries else 0
            if limit < least:
                least += NOT_LOADED_YET
                raise BudgetError(
                    f"the budget is {format_bytes(limit)} ({limit} bytes), and libraries have taken "
                    f"{format_bytes(device.reserve)} on {device.name} already: raise budget= to at least {least}",
                    needed=least,
                    limit=limit,
                    smallest=least,
                )
            self._pools[device.name] = device.pool(limit)
        return self._pools[device.name]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the budget: of the runs that share it, one works at a time.

        `ArgumentError` if a function that runs under the budget starts a run under it: neither could go on.
        """
        inside = threading.current_thread().name == WORKER
        if not self._lock.acquire(blocking=not inside):
            raise ArgumentError(
                "a run inside fn cannot share the budget of the run that calls fn: give it a budget= of its own"
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def reserved(self, device: Device, nbytes: int) -> Iterator[None]:
        """Reserve memory for a loop over blocks, whether or not all of it is in use."""
        self._reserved[device.name] = self._reserved.get(device.name, 0) + nbytes
        try:
            yield
        finally:
            self._reserved[device.name] -= nbytes

    def left(self, device: Device, cap: int | None) -> int:
        """Bytes that a run may still take; `cap` is a limit of its own."""
        limit = self.limit_on(device) if cap is None else min(self.limit_on(device), cap)
        return max(0, limit - max(self.pool(device).used, self._reserved.get(device.name, 0)))

    def rest(self) -> None:
        """End the calling thread's work under the budget. The memory stays for later runs."""
        for pool in list(self._pools.values()):
            pool.rest()

    def close(self) -> None:
        """Return the memory. The budget can be used again."""
        self._peak = self.peak
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def __enter__(self) -> Budget:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *raised: object) -> None:
        if self._tokens:
            _current.reset(self._tokens.pop())
        if not self._tokens:
            self.close()

    def _repr_html_(self) -> str:
        limits = [(f"limit on {name}", format_bytes(limit)) for name, limit in self._limits.items()]
        taken = [("peak", format_bytes(self.peak)), ("kept by libraries", format_bytes(self.kept))]
        return markup.table((), [("budget", str(self._spec)), *limits, *taken])

    def __repr__(self) -> str:
        kept = f", of which {format_bytes(self.kept)} stay with libraries until the process ends" if self.kept else ""
        return f"Budget({self._spec!r})" + (f" with a peak of {format_bytes(self.peak)}{kept}" if kept else "")


_current: ContextVar[Budget | None] = run_variable("chunkflow_budget", None)
_imposed: ContextVar[Budget | None] = run_variable("chunkflow_imposed_budget", None)


@contextmanager
def imposed(budget: Budget | None) -> Iterator[None]:
    """Lend this budget to whoever asks for any, within the context; None for what is asked for."""
    before = _imposed.set(budget)
    try:
        yield
    finally:
        _imposed.reset(before)


@dataclass(frozen=True)
class Lease:
    """What one run may take of a budget on one device. One of its own (`is_own`) is closed when the lease ends."""

    budget: Budget
    device: Device
    is_own: bool = False
    _cap: str | int | float | None = None

    @property
    def cap(self) -> int | None:
        """Bytes that the run itself was limited to, within a budget that it shares; None without such a limit."""
        return None if self._cap is None else parse_bytes(self._cap, whole=self.device.free_memory())

    @property
    def pool(self) -> Pool:
        """The budget's pool on the device."""
        return self.budget.pool(self.device)

    @property
    def left(self) -> int:
        """Bytes that the run may still take."""
        return self.budget.left(self.device, self.cap)


def steady(nbytes: int) -> int:
    """A number without its bits after the first six: at most a thirtieth less.

    What is free varies from run to run, and so they have the same budget by default, and one plan.

    >>> steady(1000), steady(1015), steady(40)
    (992, 1008, 40)
    """
    bits = max(nbytes.bit_length() - 6, 0)
    return nbytes >> bits << bits


@contextmanager
def lease(budget: Budget | str | int | float | None, device: Device) -> Iterator[Lease]:
    """Lend a run the budget that it asks for, or the one that it runs under; close a budget of its own at the end.

    Examples
    --------
    >>> from chunkflow.devices import resolve
    >>> with Budget("1GB"), lease("1MB", resolve("cpu")) as leased:
    ...     leased.left, leased.is_own
    (1000000, False)
    """
    shared, instead = _current.get(), _imposed.get()
    if instead is not None:
        yield Lease(instead, device)
    elif isinstance(budget, Budget):
        yield Lease(budget, device)
    elif shared is not None:
        yield Lease(shared, device, _cap=budget)
    else:
        own = Budget(setting("budget") if budget is None else budget)
        own._is_default = budget is None
        try:
            yield Lease(own, device, is_own=True)
        except BudgetError as error:
            if budget is None and (said := setting("budget")) != DEFAULT:
                note = f"chunkflow: the setting budget={said!r} holds ({origin('budget')}), as no budget= is given"
                if note not in getattr(error, "__notes__", ()):
                    error.add_note(note)
            raise
        finally:
            own.close()


def said() -> str | int | float | None:
    """The budget of runs that are given none, as it was said: by `Budget`, or by the configuration; None by default.

    >>> with Budget("4MB"):
    ...     said()
    '4MB'
    """
    shared = _current.get()
    if shared is not None:
        return shared._spec
    configured: str | int | float = setting("budget")
    return None if configured == DEFAULT else configured


def bytes_left(budget: Budget | str | int | float | None, device: Device) -> int:
    """Bytes that a run may still take on a device."""
    with lease(budget, device) as leased:
        return leased.left

"""A byte budget: what runs may take on each device, enforced by a private pool that they share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.devices.common import WORKER
from chunkflow.devices.protocol import Device, Pool
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError

DEFAULT = "80%"
"""Share of the free memory that a run may take where nothing else is said."""


LEAST_PAGES = 8
"""Pages of device memory with which a small run can begin, beside what libraries take."""


class Budget:
    """Bytes of device memory that runs may take, shared by every run within a ``with`` block.

    Leaving the block returns all the device memory, whatever happened inside. Runs within it reuse what earlier ones
    took. Up to 256 MiB of pinned host memory stay with the process, for any later run.

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
        self._spec = limit
        self._limits: dict[str, int] = {}
        self._pools: dict[str, Pool] = {}
        self._peak = 0
        self._tokens: list[Token[Budget | None]] = []
        self._lock = threading.RLock()
        self._reserved: dict[str, int] = {}
        parse_bytes(limit, whole=1 << 62)  # a mistake is reported here, not at the first run
        if not self._relative:
            self._fixed = parse_bytes(limit)

    @property
    def _relative(self) -> bool:
        return isinstance(self._spec, float) or (isinstance(self._spec, str) and "%" in self._spec)

    @property
    def limit(self) -> int:
        """Bytes allowed on each device (on the first one used, for a share of the free memory)."""
        if not self._relative:
            return self._fixed
        if self._limits:
            return next(iter(self._limits.values()))
        raise ArgumentTypeError(f"the limit {self._spec!r} is a share of a device's memory, and no run used one yet")

    @property
    def peak(self) -> int:
        """Most bytes taken on a device so far."""
        return max([self._peak, *(pool.peak for pool in self._pools.values())])

    def limit_on(self, device: Device) -> int:
        """Bytes allowed on a device."""
        if device.name not in self._limits:
            self._limits[device.name] = parse_bytes(self._spec, whole=device.free_memory())
        return self._limits[device.name]

    def pool(self, device: Device) -> Pool:
        """The budget's pool on a device."""
        if device.name not in self._pools:
            limit = self.limit_on(device)
            least = device.reserve + LEAST_PAGES * device.machine.page if device.reserve else 0
            if limit < least:
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
        """Let one run of those that share the budget take its turn.

        Raises
        ------
        ArgumentError
            A function that runs under the budget starts a run under it: neither could go on.
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
        """Keep memory for a loop over blocks, however much of it is in use at a time."""
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
        """End the calling thread's work under the budget, and keep the memory for what follows."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tokens:
            _current.reset(self._tokens.pop())
        if not self._tokens:
            self.close()

    def __repr__(self) -> str:
        return f"Budget({self._spec!r})"


_current: ContextVar[Budget | None] = ContextVar("chunkflow_budget", default=None)


def borrow(budget: Budget | str | int | float | None) -> tuple[Budget, bool, Any]:
    """Budget for a run, whether the run itself must close it, and a cap that the run adds to a shared one."""
    shared = _current.get()
    if isinstance(budget, Budget):
        return budget, False, None
    if shared is not None:
        return shared, False, budget
    return Budget(DEFAULT if budget is None else budget), True, None

"""As much of CuPy as a memory pool takes, over a driver that hands out pages: to count on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import chunkflow.devices

PAGE = 2 << 20
ALIGNMENT = 512


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class Driver:
    """Buffers of more than half a page have pages of their own; smaller ones lie in the first page with room."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.own = self.libraries = 0
        self.shared: list[list[int]] = []
        """Of each such page, what is left, and how many buffers are in it."""

    @property
    def given(self) -> int:
        return self.own + self.libraries + PAGE * len(self.shared)

    def malloc(self, nbytes: int) -> Any:
        if nbytes > PAGE // 2:
            pages = -(-nbytes // PAGE) * PAGE
            if self.given + pages > self.total:
                raise CUDARuntimeError(2)
            self.own += pages
            return pages
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        page = next((page for page in self.shared if page[0] >= size), None)
        if page is None:
            if self.given + PAGE > self.total:
                raise CUDARuntimeError(2)
            self.shared.append(page := [PAGE, 0])
        page[0] -= size
        page[1] += 1
        return page, size

    def free(self, what: Any) -> None:
        if isinstance(what, int):
            self.own -= what
            return
        page, size = what
        page[0] += size
        page[1] -= 1
        if not page[1]:
            self.shared = [other for other in self.shared if other is not page]


class _Handle:
    """What Cython's ``__dealloc__`` gives back, after all that Python has done."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self._driver, self._what = driver, driver.malloc(nbytes)

    def __del__(self) -> None:
        if hasattr(self, "_what"):
            self._driver.free(self._what)


class _Pointer:
    """A buffer that goes back to its pool."""

    def __init__(self, pool: Any, nbytes: int, mem: Any) -> None:
        self._pool, self._nbytes, self.mem = pool, nbytes, mem

    def __del__(self) -> None:
        self._pool.used -= self._nbytes
        self._pool.spare.setdefault(self._nbytes, []).append(self.mem)


class _Pool:
    """CuPy's, but that a buffer is used again for its own size only."""

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator
        self.spare: dict[int, list[Any]] = {}
        self.total = self.used = self.limit = 0

    def malloc(self, nbytes: int) -> _Pointer:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        mem = self.spare[size].pop() if self.spare.get(size) else self._new(size)
        self.used += size
        return _Pointer(self, size, mem)

    def _new(self, size: int) -> Any:
        if self.limit and self.total + size > self.limit:
            raise OutOfMemoryError
        for again in (True, False):
            try:
                mem = self._allocator(size).mem
            except CUDARuntimeError:  # for want of memory: this driver knows no other error
                self.free_all_blocks()
                if not again:
                    raise OutOfMemoryError from None
                continue
            self.total += size
            return mem

    def free_all_blocks(self) -> None:
        self.total -= sum(size * len(mems) for size, mems in self.spare.items())
        self.spare.clear()

    def used_bytes(self) -> int:
        return self.used

    def total_bytes(self) -> int:
        return self.total

    def set_limit(self, size: int) -> None:
        self.limit = size

    def get_limit(self) -> int:
        return self.limit


@contextmanager
def cupy_over(driver: Driver) -> Iterator[ModuleType]:
    """The module `chunkflow.devices.cuda.device`, with this in the place of CuPy."""

    class Memory:
        def __init__(self, nbytes: int) -> None:
            self._handle = _Handle(driver, nbytes)

    def pointer(mem: Any, offset: int) -> Any:
        return SimpleNamespace(mem=mem)

    fake = MagicMock()
    fake.ndarray = type("ndarray", (), {})
    fake.cuda.Memory, fake.cuda.MemoryPointer = Memory, pointer
    fake.cuda.MemoryPool = lambda allocator=None: _Pool(allocator or (lambda nbytes: pointer(Memory(nbytes), 0)))
    fake.cuda.memory.OutOfMemoryError, fake.cuda.runtime.CUDARuntimeError = OutOfMemoryError, CUDARuntimeError
    fake.cuda.using_allocator = lambda allocator: nullcontext()
    names = {"cupy": fake, "cupy.cublas": fake.cublas, "cupy.cuda": fake.cuda}
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        where = Path(chunkflow.devices.__file__).parent / "cuda" / "device.py"
        spec = importlib.util.spec_from_file_location("chunkflow_devices_cupy_over_nothing", where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        for name, known in before.items():
            if known is None:
                del sys.modules[name]
            else:
                sys.modules[name] = known


class FakeDevice:
    """As much of a GPU as its pools ask for; `reserve` bytes are in libraries' hands when it is made."""

    pinned = SimpleNamespace(take=None, keep=None)

    def __init__(self, driver: Driver, reserve: int) -> None:
        self._driver, self.reserve = driver, reserve
        driver.libraries += reserve

    def attach(self) -> Any:
        return nullcontext()

    def taken(self) -> int:
        return self._driver.given

    def note_growth(self, nbytes: int) -> None:
        self.reserve += max(0, nbytes)

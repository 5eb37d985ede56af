"""The peak memory of NumPy's allocations during a call.

If `_transfer` was built, it counts what the calling thread allocates, and nothing else is affected. Without it Python's
tracemalloc counts the allocations of all threads, and Python's own objects too.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from chunkflow.system.native import staging

T = TypeVar("T")

_RAW = 0  # PYMEM_DOMAIN_RAW


class _Allocator(ctypes.Structure):
    """PyMemAllocatorEx."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


class _Call:
    """A call that is measured; `most` is its peak until another call began."""

    __slots__ = ("most",)

    def __init__(self) -> None:
        self.most = 0


_lock = threading.Lock()
_calls: set[_Call] = set()
_own = False
"""Whether tracing was started here; it ends after the last of the calls, or after a later one."""

_counted = getattr(staging, "counted", None)


def peak(fn: Callable[[], T], limit: int | None = None) -> tuple[T, int]:
    """Call `fn`; return its result and the peak of its allocations in bytes.

    Calls may overlap or be nested: each counts what is allocated during it. With tracing these are the allocations of
    all threads; otherwise those of NumPy in the calling thread, which has a `MemoryError` where they pass the limit.
    """
    if _counted is not None:
        found: tuple[T, int] | None = _counted(fn) if limit is None else _counted(fn, limit)
        if found is not None:  # else `_transfer` does not know the functions of this NumPy
            return found
    return _traced(fn)


def counted(fn: Callable[[], T]) -> tuple[T, int | None]:
    """The same of NumPy in the calling thread, where that costs next to nothing; else the result and None."""
    if _counted is not None:
        found: tuple[T, int] | None = _counted(fn)
        if found is not None:
            return found
    return fn(), None


def _traced(fn: Callable[[], T]) -> tuple[T, int]:
    """The same with tracemalloc. No call ends the tracing of another, or resets its peak."""
    global _own
    call = _Call()
    try:
        with _lock:
            if not _calls and not tracemalloc.is_tracing():
                _steady()
                _own = True
                tracemalloc.start()
            before, most = tracemalloc.get_traced_memory()
            for other in _calls:
                other.most = max(other.most, most)
            _calls.add(call)
            tracemalloc.reset_peak()
        result = fn()
        with _lock:
            most = max(call.most, tracemalloc.get_traced_memory()[1])
        return result, max(0, most - before)
    finally:
        with _lock:
            _calls.discard(call)
            if _own and not _calls and _may_stop():
                _own = False
                tracemalloc.stop()


def _may_stop() -> bool:
    """Whether tracing can end without harm to other threads.

    A thread may wait for Python's lock within an allocation that was made without it (`os.getcwd` makes such). It then
    writes to memory that `tracemalloc` has freed, and the process dies (python/cpython#128679). So tracing ends later,
    with a call while there are no other threads.
    """
    broken = sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
    return not broken or len(sys._current_frames()) == 1


def _steady() -> None:
    """Make it safe that tracing begins or ends while a thread ends.

    Such a thread frees memory without Python's lock. It may call tracemalloc's function with the context of the one
    before, which is NULL, and the process dies (python/cpython#131566). Python's own functions ignore their context. So
    it can be a table of these functions, as tracemalloc's expect: then any mix of old and new does the same.
    """
    with suppress(AttributeError):  # not CPython
        form = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Allocator))
        get, put = [form((f"PyMem_{name}Allocator", ctypes.pythonapi)) for name in ("Get", "Set")]
        now = _Allocator()
        get(_RAW, now)
        if not now.context:  # else this was done before, or these are functions of the debugger, which need it
            own = _Allocator.from_buffer_copy(now)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(own))  # threads may read it until the process ends
            now.context = ctypes.addressof(own)
            put(_RAW, now)

"""What a trial call allocates on the CPU: measured while threads end, and while others measure."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import CFUNCTYPE, POINTER, c_char, c_size_t, c_uint8, c_void_p, py_object
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compiled import BUILT

from chunkflow.devices.cpu import allocations
from chunkflow.devices.cpu.device import NumpyDevice

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20

built = pytest.mark.skipif(not BUILT, reason="built without a C compiler")

Peak = Callable[[Callable[[], Any]], tuple[Any, int]]


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls are traced by Python, which does so neither before nor after."""
    monkeypatch.setattr(allocations, "_counted", None)
    monkeypatch.setattr(allocations, "_own", False)
    tracemalloc.stop()
    yield
    tracemalloc.stop()


@pytest.fixture(params=[pytest.param("counted", marks=built), "traced"])
def peak(request: pytest.FixtureRequest) -> Peak:
    """The measurement with the compiled helper, and without it."""
    if request.param == "traced":
        request.getfixturevalue("untraced")
    return allocations.peak


def run(code: str, *, compiled: bool = True, cwd: Path = ROOT) -> None:
    """See a fresh process through to its end."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONMALLOC", "PYTHONDEVMODE", "CHUNKFLOW_COMPILED")}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | ({} if compiled else {"CHUNKFLOW_COMPILED": "0"})
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- Beside other threads ------------------------------------------------------------------------------------

MIXED = """
import ctypes, tracemalloc
from chunkflow.devices.cpu import allocations as traced

class Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]

def allocator():
    found = Allocator()
    ctypes.pythonapi.PyMem_GetAllocator(0, ctypes.byref(found))
    return found

traced.peak(lambda: None)
malloc = ctypes.pythonapi.PyMem_RawMalloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
before = allocator()
tracemalloc.start()
during = allocator()
assert during.free != before.free
for tracing in (True, False):
    for context in (before.context, during.context):
        for free in (before.free, during.free):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(free)(context, malloc(100))
    tracemalloc.stop()
"""


def test_a_thread_that_ends_may_see_tracing_half_begun() -> None:
    """It reads without a lock which function frees its memory, and with what: one from before, the other from after."""
    run(MIXED, compiled=False)


OTHERS = """
import os, sys, threading, numpy as np, chunkflow as cf
sys.setswitchinterval(1e-3)
over = threading.Event()
def other():
    while not over.is_set():
        os.getcwd()
threads = [threading.Thread(target=other) for _ in range(3)]
for thread in threads:
    thread.start()
for i in range(40):
    cf.map(lambda b: b * i, np.ones((300, 200)), device="cpu", budget=300_000)
over.set()
for thread in threads:
    thread.join()
"""

TOGETHER = """
import numpy as np, chunkflow as cf
from concurrent.futures import ThreadPoolExecutor
x = np.random.default_rng(0).random((300, 200))
np.save("x.npy", x)
def median(i):
    return cf.median("x.npy", axis=0, budget=300_000, device="cpu")
with ThreadPoolExecutor(8) as pool:
    for found in pool.map(median, range(16)):
        np.testing.assert_array_equal(found, np.median(x, axis=0))
"""


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=built), pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("code", [OTHERS, TOGETHER], ids=["others", "together"])
def test_threads_that_allocate_outside_pythons_lock_live_on(code: str, compiled: bool, tmp_path: Path) -> None:
    """What they write to is freed when tracing ends (python/cpython#128679): few of these processes saw their end."""
    run(code, compiled=compiled, cwd=tmp_path)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(
    ("version", "broken"),
    [((3, 11, 7), True), ((3, 12, 8), True), ((3, 12, 9), False), ((3, 13, 0), True), ((3, 13, 2), False)],
)
def test_tracing_goes_on_until_a_call_is_alone_where_python_may_die_of_its_end(
    version: tuple[int, ...], broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = {0: None}
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)
    monkeypatch.setattr(sys, "version_info", (*version, "final", 0))
    allocations.peak(lambda: None)
    assert not tracemalloc.is_tracing()
    frames[1] = None
    for _ in range(2):
        assert allocations.peak(lambda: np.empty(MIB, np.uint8))[1] >= MIB
        assert tracemalloc.is_tracing() is broken
    del frames[1]
    assert allocations.peak(lambda: np.empty(MIB, np.uint8))[1] >= MIB
    assert not tracemalloc.is_tracing()


@pytest.mark.usefixtures("untraced")
def test_tracing_that_somebody_else_began_goes_on() -> None:
    tracemalloc.start()
    assert allocations.peak(lambda: np.empty(MIB, np.uint8))[1] >= MIB
    assert tracemalloc.is_tracing()


# -- Calls beside and within one another -----------------------------------------------------------------------


def test_a_call_that_ends_leaves_the_others_measured(peak: Peak) -> None:
    begun, ended, found = threading.Event(), threading.Event(), []

    def later() -> None:
        begun.set()
        assert ended.wait(60)
        np.empty(MIB, np.uint8)

    thread = threading.Thread(target=lambda: found.append(peak(later)[1]))
    peak(lambda: (thread.start(), begun.wait(60)))
    ended.set()
    thread.join()
    assert found[0] >= MIB // 2


def test_a_call_within_another_takes_nothing_from_its_peak(peak: Peak) -> None:
    inner = []

    def outer() -> None:
        np.empty(MIB, np.uint8)
        inner.append(peak(lambda: np.empty(1 << 16, np.uint8).nbytes)[1])

    assert peak(outer)[1] >= MIB
    assert 1 << 16 <= inner[0] < 1 << 17


def test_what_a_call_within_another_allocates_counts_for_both(peak: Peak) -> None:
    inner = []

    def outer() -> Any:
        held = np.empty(MIB, np.uint8)
        kept, most = peak(lambda: np.empty(2 * MIB, np.uint8))
        inner.append(most)
        del held
        return kept, np.empty(4 * MIB, np.uint8)

    assert 6 * MIB <= peak(outer)[1] < 6.5 * MIB
    assert 2 * MIB <= inner[0] < 2.5 * MIB


@built
def test_calls_of_several_threads_count_what_is_their_own() -> None:
    number = 8
    barrier = threading.Barrier(number)

    def call(i: int) -> int:
        def work() -> None:
            kept = []
            for n in range(1, 20):
                barrier.wait(60)
                kept.append(np.empty((i + 1) * n * 1000, np.uint8))

        return allocations.peak(work)[1]

    with ThreadPoolExecutor(number) as pool:
        assert list(pool.map(call, range(number))) == [(i + 1) * sum(range(1, 20)) * 1000 for i in range(number)]


@built
def test_threads_that_a_function_starts_are_not_seen() -> None:
    """As `workspace` says in `chunkflow.map`."""

    def work() -> None:
        thread = threading.Thread(target=lambda: np.empty(MIB, np.uint8))
        thread.start()
        thread.join()

    assert allocations.peak(work)[1] == 0


# -- What is counted -------------------------------------------------------------------------------------------


def test_temporaries_count_until_they_are_freed(peak: Peak) -> None:
    def fn() -> Any:
        first = np.ones(MIB, np.uint8)
        second = first + first
        third = first * second
        del first, second
        return third + third

    result, most = NumpyDevice().pool(1 << 30).measure(fn)
    assert result.nbytes == MIB
    assert 3 * MIB <= most < 3.1 * MIB
    assert peak(fn)[1] == pytest.approx(most, abs=10_000)


def shrunk() -> Any:
    x = np.empty(MIB, np.uint8)
    x.resize(100, refcheck=False)
    return x, np.empty(MIB // 2, np.uint8)


def grown() -> Any:
    x = np.ones(1000, np.uint8)
    for n in (2000, MIB, 3 * MIB):
        x.resize(n, refcheck=False)
    return x


def too_large() -> None:
    with pytest.raises(MemoryError):
        np.empty(1 << 62, np.uint8)
    with pytest.raises(MemoryError):
        np.zeros(1 << 62, np.uint8)


CASES: list[tuple[str, Callable[[], Any], int]] = [
    ("nothing", lambda: [bytearray(MIB)], 0),
    ("empty", lambda: np.empty(12345, np.uint8), 12345),
    ("zeros", lambda: np.zeros((1000, 100)), 800_000),
    ("small zeros", lambda: [np.zeros(n, np.uint8) for n in range(1, 1100)], 1099 * 1100 // 2),
    ("resize", shrunk, MIB),
    ("resize to more", grown, 3 * MIB),
    ("sort", lambda: np.sort(np.zeros(100_000)), 1_600_000),
    ("too large", too_large, 0),
]


@built
@pytest.mark.parametrize(("fn", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bytes_are_counted_to_the_last(fn: Callable[[], Any], wanted: int) -> None:
    assert allocations.peak(fn)[1] == wanted
    assert allocations.peak(fn)[1] == wanted


@built
def test_memory_runs_out_at_a_limit() -> None:
    def doubled() -> Any:
        x, y = np.ones(MIB, np.uint8), np.ones(MIB, np.uint8)
        return x + y

    assert allocations.peak(doubled, 3 * MIB)[1] == 3 * MIB
    for fn, limit in [(doubled, 3 * MIB - 1), (lambda: np.zeros((4, MIB)), 3 * MIB), (grown, 3 * MIB - 1)]:
        with pytest.raises(MemoryError):
            allocations.peak(fn, limit)
    assert doubled()[0] == 2, "there is none outside of the call"


@built
def test_arrays_that_grow_as_they_are_made_count_what_they_came_to() -> None:
    result, most = allocations.peak(lambda: np.fromiter((float(i) for i in range(100_000)), float))
    np.testing.assert_array_equal(result, np.arange(100_000.0))
    assert result.nbytes <= most <= 2 * result.nbytes


@built
@pytest.mark.parametrize("nbytes", [1, 100, 1023, 1024, 5000, MIB, 8 * MIB])
def test_blocks_are_aligned_as_well_as_elsewhere(nbytes: int) -> None:
    def addresses() -> list[int]:
        kept = [(np.empty(nbytes, np.uint8), np.zeros(nbytes, np.uint8)) for _ in range(5)]
        for _, zeros in kept:
            zeros.resize(3 * nbytes, refcheck=False)
        return [x.ctypes.data for pair in kept for x in pair]

    assert all(address % 16 == 0 for address in allocations.peak(addresses)[0])


# -- The handler -----------------------------------------------------------------------------------------------


def handler(array: np.ndarray | None = None) -> str:
    found: str = np._core.multiarray.get_handler_name(*([] if array is None else [array]))  # type: ignore[attr-defined]
    return found


@built
def test_the_handler_is_there_for_the_call_only() -> None:
    before = handler()
    assert allocations.peak(handler)[0] == "chunkflow"
    assert allocations.peak(lambda: allocations.peak(handler) and handler())[0] == "chunkflow"
    assert handler() == handler(np.empty(3)) == before
    with pytest.raises(ZeroDivisionError):
        allocations.peak(lambda: np.empty(3).size // 0)
    assert handler() == before
    with ThreadPoolExecutor(1) as pool:
        assert allocations.peak(lambda: pool.submit(handler).result(60))[0] == "default_allocator"


@built
def test_arrays_outlive_the_call() -> None:
    """They are freed through its handler, by other threads and in any order, and resized too."""
    kept = [allocations.peak(partial(allocations.peak, partial(np.arange, n)))[0][0] for n in (1, 30, 100, 10_000, MIB)]
    views = [x[::-1] for x in kept]
    assert {handler(x) for x in kept} == {"chunkflow"}
    gc.collect()
    with ThreadPoolExecutor(2) as pool:
        for x in pool.map(lambda x: x.copy(), views):
            np.testing.assert_array_equal(x, np.arange(len(x))[::-1])
        del views
        for x in kept:
            n = len(x)
            x.resize(2 * n + 1, refcheck=False)
            np.testing.assert_array_equal(x[:n], np.arange(n))
        del x
        while kept:
            pool.submit(kept.pop, 0).result(60)
    assert allocations.peak(lambda: np.empty(100))[1] == 800


@built
def test_arrays_last_until_the_interpreter_ends() -> None:
    run(
        "import builtins, sys, threading, numpy as np\n"
        "from chunkflow.devices.cpu import allocations as traced\n"
        "x = builtins.x = sys.x = traced.peak(lambda: [np.ones(n) for n in (1, 1000, 1 << 20)])[0]\n"
        "np.x, traced.x, threading.x = (traced.peak(lambda: np.ones(1 << 16))[0] for _ in range(3))\n"
        "x.append(x)\n"
        "del x, builtins.x\n"
    )


class _Handler(ctypes.Structure):
    """PyDataMem_Handler."""

    MALLOC = CFUNCTYPE(c_void_p, c_void_p, c_size_t)
    CALLOC = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
    REALLOC = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
    FREE = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)

    _fields_ = [
        ("name", c_char * 127),
        ("version", c_uint8),
        ("context", c_void_p),
        ("malloc", MALLOC),
        ("calloc", CALLOC),
        ("realloc", REALLOC),
        ("free", FREE),
    ]


@built
def test_a_handler_of_the_users_own_goes_on_to_allocate() -> None:
    libc, log = ctypes.CDLL(None), []
    for name, types in (("aligned_alloc", [c_size_t] * 2), ("realloc", [c_void_p, c_size_t]), ("free", [c_void_p])):
        getattr(libc, name).argtypes, getattr(libc, name).restype = types, None if name == "free" else c_void_p

    def malloc(context: int, nbytes: int) -> int:
        log.append(nbytes)
        return libc.aligned_alloc(64, -(-nbytes // 64) * 64)

    def calloc(context: int, number: int, each: int) -> int:
        return ctypes.memset(malloc(context, number * each), 0, number * each)

    def realloc(context: int, block: int, nbytes: int) -> int:
        log.append(nbytes)
        return libc.realloc(block, nbytes)

    def free(context: int, block: int, nbytes: int) -> None:
        log.append(-nbytes)
        libc.free(block)

    own = _Handler(
        b"own", 1, 5, _Handler.MALLOC(malloc), _Handler.CALLOC(calloc), _Handler.REALLOC(realloc), _Handler.FREE(free)
    )
    api = ctypes.pythonapi
    api.PyCapsule_New.restype, api.PyCapsule_New.argtypes = py_object, [c_void_p, ctypes.c_char_p, c_void_p]
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = POINTER(c_void_p), [py_object, c_void_p]
    table = api.PyCapsule_GetPointer(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    swap = ctypes.PYFUNCTYPE(py_object, py_object)(table[304])
    capsule = api.PyCapsule_New(ctypes.addressof(own), b"mem_handler", None)
    before = swap(capsule)
    try:
        (kept, address), most = allocations.peak(lambda: ((x := np.empty(1000, np.uint8)), x.ctypes.data))
        assert handler() == "own"
        assert handler(kept) == "chunkflow"
        assert most == 1000
        assert address % 64 == 0
        (taken,) = log
        assert taken >= 1000
        kept.resize(3000, refcheck=False)
        assert log[1:] == [taken + 2000]
        assert allocations.peak(lambda: np.zeros(500).any())[0] == False  # noqa: E712
        del kept
        assert sum(log[2:]) == -taken - 2000
    finally:
        swap(before)
    assert handler() != "own"

"""An NVIDIA GPU as a device, through CuPy, which only this file imports. All memory is device memory, never managed.

The hot path is a few runtime calls on raw pointers. Streams, events and pinned memory are made beforehand and kept.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, TypeVar
from weakref import WeakSet

import cupy
import cupy.cublas
import numpy as np
from cupy.cuda import cublas, runtime

from chunkflow.core.halo import fill
from chunkflow.core.machine import Machine
from chunkflow.core.memory import Projection, rounded, uncounted
from chunkflow.core.pieces import Piece
from chunkflow.core.settings import setting
from chunkflow.devices import rates
from chunkflow.devices.common import DeviceDefaults, Done
from chunkflow.devices.cuda import hints, nvcomp
from chunkflow.devices.cuda.counting import counter, distinct_finder
from chunkflow.devices.cuda.gathering import gatherer
from chunkflow.devices.cuda.halo_fill import filler
from chunkflow.devices.cuda.lines import accumulator, weigher, window_momenter
from chunkflow.devices.cuda.memcpy import TO_DEVICE, TO_HOST, copied
from chunkflow.devices.cuda.ordering import keyer, sorter
from chunkflow.devices.cuda.pinned import pinned_buffers
from chunkflow.devices.cuda.segments import momenter, reducer
from chunkflow.devices.cuda.taken import LibraryMemory, taken_here
from chunkflow.devices.cuda.unshuffle import unshuffler
from chunkflow.devices.job_queue import JobQueue
from chunkflow.devices.measured_rates import kept
from chunkflow.devices.mover import BufferAddresses, Mover, cuda_driver, wait_all
from chunkflow.devices.protocol import Block, Decoder, Edge, Event, HostBuffer, Lane, Loan, shaped
from chunkflow.errors import DeviceError
from chunkflow.kernels.fusion.codegen import Parameters
from chunkflow.kernels.linalg import gemm
from chunkflow.kernels.protocol import Library
from chunkflow.kernels.scan import accumulated
from chunkflow.kernels.statistics.counting import counted, distinct
from chunkflow.kernels.statistics.gathered import among
from chunkflow.kernels.statistics.radix_keys import to_keys
from chunkflow.kernels.statistics.segments import moments, segmented
from chunkflow.kernels.statistics.sorting import short_lines
from chunkflow.kernels.stencil.windows import weighted, window_moments

T = TypeVar("T")

LIBRARIES: dict[Library, int] = {"BLAS": 80 << 20, "FFT": 24 << 20}
"""Bytes that cuBLAS takes at most in each thread, and cuFFT in a process, when they are loaded. On an H100 with CUDA 13
they took 68 and 14 MiB."""

LATER = 4 << 20
"""Bytes for kernels that they load later, for other sizes."""

TF32_MATH, OUT_OF_MEMORY = 3, 2  # CUBLAS_TF32_TENSOR_OP_MATH, cudaErrorMemoryAllocation


class CupyEvent:
    """A CUDA event. A timed one has its time on the host's clock."""

    __slots__ = ("_clock", "_event", "pointer")

    def __init__(self, clock: _DeviceClock | None) -> None:
        self._clock, self._event = clock, cupy.cuda.Event(disable_timing=clock is None)
        self.pointer = self._event.ptr

    def synchronize(self, edge: Edge) -> None:
        runtime.eventSynchronize(self.pointer)

    def seconds(self) -> float:
        clock = self._clock
        return float(clock.start + cupy.cuda.get_elapsed_time(clock.event, self._event) / 1e3) if clock else 0.0


class _DeviceClock:
    """Ties the device's clock to the host's: by the event, of several, that the host waited for the shortest time.

    A first one on a new stream is seen milliseconds after the device has reached it.
    """

    def __init__(self) -> None:
        stream, found = cupy.cuda.Stream(non_blocking=True), []
        for _ in range(5):
            event, begin = cupy.cuda.Event(), time.perf_counter()
            event.record(stream)
            event.synchronize()
            found.append((time.perf_counter() - begin, begin, event))
        waited, begin, self.event = min(found, key=itemgetter(0))
        self.start = begin + waited / 2


class CupyLane:
    """A CUDA stream."""

    def __init__(self, stream: Any, give_back: Callable[[], None]) -> None:
        self._stream, self.pointer, self._give_back = stream, stream.ptr, give_back

    def upload(self, buffer: HostBuffer, block: Block, piece: Piece, scratch: Any) -> None:
        """Copy a piece to the device. A scattered piece lands in `scratch`, and is spread from there."""
        array, item = block.array, block.array.dtype.itemsize
        ends = (array.data.ptr, buffer.pointer, TO_DEVICE, self.pointer)
        if not copied(runtime, piece, item, *ends, landing=scratch is not None):
            runtime.memcpyAsync(scratch.data.ptr, buffer.pointer, piece.size * item, TO_DEVICE, self.pointer)
            with self._stream:
                array[piece.region] = shaped(scratch, array.dtype, piece.shape, block.inverse)

    def download(self, block: Block, piece: Piece, buffer: HostBuffer, scratch: Any) -> None:
        """Copy a piece to the host. A scattered piece is gathered in `scratch` first."""
        array, item = block.array, block.array.dtype.itemsize
        ends = (array.data.ptr, buffer.pointer, TO_HOST, self.pointer)
        if not copied(runtime, piece, item, *ends, landing=scratch is not None):
            with self._stream:
                shaped(scratch, array.dtype, piece.shape, block.inverse)[...] = array[piece.region]
            runtime.memcpyAsync(buffer.pointer, scratch.data.ptr, piece.size * item, TO_HOST, self.pointer)

    def call(self, fn: Callable[[], T], reads: Sequence[object] = (), writes: Sequence[object] = ()) -> Done:
        """Call `fn` now, with this stream as the current one. What it launches is enqueued there."""
        with self._stream:
            try:
                return Done(fn(), None)
            except BaseException as error:
                return Done(None, error)

    def record(self, event: Event) -> None:
        runtime.eventRecord(event.pointer, self.pointer)  # type: ignore[attr-defined]

    def wait(self, events: Sequence[Event], edge: Edge) -> None:
        wait_all(self.pointer, [e.pointer for e in events], runtime.streamWaitEvent)  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        runtime.streamSynchronize(self.pointer)

    def close(self) -> None:
        self.synchronize()
        self._give_back()


class _Paged(cupy.cuda.Memory):  # type: ignore[misc]
    """Memory from the driver, in whole pages or parts of one. `held` counts its bytes until it is freed."""

    def __init__(self, nbytes: int, held: list[int]) -> None:
        self._held, self._own = held, rounded(nbytes, rates.PAGE)
        held[0] += self._own
        super().__init__(nbytes)

    def __del__(self) -> None:
        self._held[0] -= self._own


class CupyPool:
    """A private memory pool with a hard limit, and the pinned memory that goes with it."""

    def __init__(self, device: CupyDevice, limit: int) -> None:
        self.limit, self._device = limit, device
        self._pool = cupy.cuda.MemoryPool()
        self._trial = cupy.cuda.MemoryPool(self._for_trial)  # trial calls leave no odd chunks in the other pool
        self._tried = [0]  # see `_Paged`
        self._measuring, self._sizes = False, Projection(0, 0, 0, 0, 0, 0)
        self._taken = self._drawn = self._measured = 0
        self.host_buffers, self.release_host = device.pinned.take, device.pinned.keep

    def _for_trial(self, nbytes: int) -> Any:
        before, size = self._device.taken(), rounded(nbytes, rates.PAGE)
        try:
            if self._pool.total_bytes() + size > self._left():
                self._free_spare()
                if self._pool.total_bytes() + size > self._left():
                    raise runtime.CUDARuntimeError(OUT_OF_MEMORY)
            return cupy.cuda.MemoryPointer(_Paged(nbytes, self._tried), 0)
        finally:
            self._drawn += self._device.taken() - before  # only the driver knows which pages are shared

    @property
    def used(self) -> int:
        return int(self._pool.used_bytes())

    @property
    def peak(self) -> int:
        """Most bytes taken from the driver, with those of libraries."""
        return self._taken + (self._device.reserve if self._taken else 0)

    def _malloc(self, nbytes: int) -> Any:
        if self._measuring:
            memory = self._trial.malloc(nbytes)
            self._measured = max(self._measured, int(self._trial.used_bytes()))
        else:  # the driver gives whole pages: less would be counted too low
            try:
                memory = self._pool.malloc(rounded(nbytes, rates.PAGE))
            except cupy.cuda.memory.OutOfMemoryError:  # it keeps memory for other streams and sizes
                self._free_spare()
                self._pool.set_limit(size=max(self._left(), 1))
                memory = self._pool.malloc(rounded(nbytes, rates.PAGE))
        self._taken = max(self._taken, int(self._pool.total_bytes() + self._tried[0]))
        return memory

    def begin(self, memory: Projection) -> None:
        """Free the memory of trials; and of runs of other sizes, if this one does not fit beside it."""
        self._trial.free_all_blocks()
        if memory != self._sizes and self._pool.total_bytes() + memory.total > self.limit:
            self._pool.free_all_blocks()
        self._sizes = memory

    def claim(self, apart: Sequence[int], nbytes: int, most: int) -> None:
        """See `Pool.claim`. To free memory and take it in other sizes, the driver waits for all work.

        There is half as much again: blocks at edges are smaller, and what they leave behind holds none of the next.
        """
        with self.active(), suppress(cupy.cuda.memory.OutOfMemoryError):
            held = [self._malloc(size) for size in apart]
            left = min(most - sum(apart), self._pool.get_limit() - self._pool.used_bytes())
            held.append(self._malloc(min(nbytes + nbytes // 2 - sum(apart), left) // rates.PAGE * rates.PAGE))

    def allocate(self, nbytes: int) -> Any:
        with self.active():
            return cupy.empty((nbytes,), np.uint8)

    def adopt(self, array: Any) -> None:
        """Nothing to do: the function's arrays come from the pool, and return to it with their last reference."""

    free = adopt

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._device.attach(), cupy.cuda.using_allocator(self._malloc):
            self._pool.set_limit(size=max(self._left(), 1))
            yield

    def _left(self) -> int:
        """Limit less the bytes of trials, libraries, which may have taken more, and what nobody counts."""
        return self.limit - self._device.reserve - uncounted(rates.PAGE) - self._tried[0]

    def measure(self, fn: Callable[[], T], most: int | None = None) -> tuple[T, int]:
        """Peak of the pool's use during a call, with the tables of FFT plans, which lie outside and go with the plans.

        What stays outside is added to the device's reserve.
        """
        with self._device.attach():
            before, start = self._device.taken() - self._drawn, int(self._trial.used_bytes())
            self._measuring, self._measured = True, start
            try:
                result = fn()
                runtime.deviceSynchronize()
            finally:
                self._measuring = False
                with_plans = self._device.taken()
                self.rest()
                tables = with_plans - self._device.taken()
                self._device.note_growth(self._device.taken() - self._drawn - before)  # whether it failed or not
                if self._pool.total_bytes() > self._left():  # libraries took more
                    self._free_spare()
            return result, self._measured - start + max(tables, 0)

    def trim(self) -> None:
        with self._device.attach():
            self._free_spare()

    def _free_spare(self) -> None:
        """Give back what earlier runs and calls left."""
        for pool in (self._pool, self._trial):
            pool.free_all_blocks()

    def rest(self) -> None:
        """Drop the thread's FFT plans, whose work areas may be in this pool."""
        with self._device.attach():
            drop_plans()

    def close(self) -> None:
        self.rest()
        self.trim()
        if self._pool.total_bytes() or self._trial.total_bytes():
            self._device.note_unreturned(self)


def drop_plans() -> None:
    """Drop the thread's FFT plans one by one: to clear the cache collects garbage, for as long as a gigabyte's sum."""
    plans = cupy.fft.config.get_plan_cache()
    for key in [key for key, _ in plans]:
        del plans[key]


class _Loaded:
    """A library that was loaded. What it took is given back when it goes: a handle goes with its thread."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def __del__(self) -> None:
        self._release()


class CupyDevice(DeviceDefaults):
    """One GPU, the `ordinal` in CUDA's numbering. `machine` replaces the default rates and sizes."""

    xp: Any = cupy

    def __init__(self, ordinal: int = 0, *, machine: Machine | None = None) -> None:
        self.name, self.model = f"cuda:{ordinal}", runtime.getDeviceProperties(ordinal)["name"].decode()
        self.elementwise, self.unshuffle = _elementwise, unshuffler(_elementwise)
        self.job_queue, self._device = JobQueue if cuda_driver() is not None else None, cupy.cuda.Device(ordinal)
        self._streams: dict[bool, list[tuple[int, Any]]] = {False: [], True: []}
        self.pinned: Any = pinned_buffers(self.attach, runtime.hostRegister, runtime.hostUnregister)
        piece = setting("piece")
        rated = machine or replace(kept(rates.gpu(), self.model), **({"piece": piece} if piece else {}))
        self.machine = replace(rated, decodings=nvcomp.decodings(self))
        self._lock = threading.Lock()
        self._made = 0  # streams
        self._in_process: dict[str, Any] = {}
        self._in_thread = threading.local()
        self._loading = threading.Lock()
        self._clock: _DeviceClock | None = None
        self._unreturned = WeakSet[CupyPool]()  # closed ones, of which an error held blocks
        with self._device:
            runtime.free(0)  # the bare context, against which budgets are counted
            self._libraries = LibraryMemory(taken_here(runtime.deviceGetPCIBusId(ordinal)), self._taken_by_all)
            before = self.taken()
            self._warm()
            self.note_growth(self.taken() - before)

    def _warm(self) -> None:
        """Make what every run needs: streams, and the kernels that spread and gather pieces."""
        for kernels, number in ((False, 2 * self.machine.threads), (True, self.machine.lanes)):
            self._streams[kernels] += [self._stream(kernels) for _ in range(number)]
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            for dtype in ("u1", "f4"):
                array = cupy.zeros((4, 4), dtype)
                array[1:3, 1:3] = array[:2, :2].T
                del array
        runtime.deviceSynchronize()
        pool.free_all_blocks()

    @property
    def reserve(self) -> int:
        """Bytes that libraries took outside every pool."""
        return self._libraries.noted

    def note_growth(self, nbytes: int) -> None:
        """Add what libraries took outside the pools to the reserve."""
        self._libraries.note_growth(nbytes)

    def to_load(self, library: Library) -> int:
        return 0 if library in self._loaded_by(library) else LIBRARIES[library]

    def load(self, library: Library) -> None:
        pool = cupy.cuda.MemoryPool()
        with self._loading, self.attach(), cupy.cuda.using_allocator(pool.malloc):
            if not self.to_load(library):
                return
            before = self.taken()
            if library == "BLAS":
                cupy.cuda.device.get_cublas_handle()
            else:
                for points in (16, 1009):  # a product of small factors, and a prime
                    cupy.fft.fft(cupy.zeros(points, "c8"))
                drop_plans()
            runtime.deviceSynchronize()
            pool.free_all_blocks()
            taken = self.taken() - before + LATER
            self.note_growth(taken)
            self._loaded_by(library)[library] = _Loaded(partial(self._libraries.note_release, taken))

    def _loaded_by(self, library: Library) -> dict[str, Any]:
        """What the calling thread has loaded, for cuBLAS, of which each one has a handle; else what the process has."""
        return self._in_thread.__dict__ if library == "BLAS" else self._in_process

    def taken(self) -> int:
        """Bytes of the card that this process has taken; those of all processes, where it is not known."""
        return self._libraries.taken()

    def _taken_by_all(self) -> int:
        with self._device:
            free, whole = runtime.memGetInfo()
        return int(whole - free)

    def free_memory(self) -> int:
        with self._device:
            return int(runtime.memGetInfo()[0])

    def pool(self, limit: int) -> CupyPool:
        with self._lock:
            unreturned = list(self._unreturned)
        for closed in unreturned:
            closed.trim()
        return CupyPool(self, limit)

    def note_unreturned(self, pool: CupyPool) -> None:
        """Note a closed pool that still has memory: the next run that makes a pool gives back what is free by then."""
        with self._lock:
            self._unreturned.add(pool)

    def lane(self, *, kernels: bool = False) -> Lane:
        """A stream. Those of copies do not synchronize with the default stream, where a loop of the caller's computes.

        What is copied from host memory that is not pinned arrives in order with its own stream alone, after the call
        has returned. So cuFFT's tables, say, may not be there yet for a kernel that does not wait for that stream.
        """
        spare = self._streams[kernels]  # a heap: runs take the same ones, as the pool keeps memory by stream
        with self._lock:
            taken = heappop(spare) if spare else self._stream(kernels)
        return CupyLane(taken[1], partial(heappush, spare, taken))  # atomic: no two have the same number

    def _stream(self, kernels: bool) -> tuple[int, Any]:
        self._made += 1
        with self._device:
            return self._made, cupy.cuda.Stream(non_blocking=not kernels)

    def caller_lane(self) -> Lane:
        with self._device:
            return CupyLane(cupy.cuda.get_current_stream(), lambda: None)

    def event(self, *, timed: bool = False) -> CupyEvent:
        """An event. Timing costs a little, so only events that need it have it."""
        # A thread's first change of its device takes as long as ten events do.
        with nullcontext() if runtime.getDevice() == self._device.id else self._device:
            if timed and self._clock is None:
                with self._lock:  # a single one: movers keep only its address
                    self._clock = self._clock or _DeviceClock()
            return CupyEvent(self._clock if timed else None)

    def mover(self, lane: Any, buffers: Sequence[Any], scratch: Any) -> Mover | None:
        driver, clock = cuda_driver(), self._clock
        if driver is None:
            return None
        rows = [BufferAddresses(b.host.pointer, b.done.pointer, b.begun.pointer if b.begun else 0) for b in buffers]
        landing = (0, 0) if scratch is None else (scratch.data.ptr, scratch.nbytes)
        return Mover(driver, lane.pointer, rows, (clock.event.ptr, clock.start) if clock else (0, 0.0), landing)

    def decoder(self, codec: str) -> Decoder | None:
        return nvcomp.decoder(self, codec)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Make the device current. What another thread ends, such as the collector of a loop, changes nothing there."""
        before, thread = runtime.getDevice(), threading.get_ident()
        runtime.setDevice(self._device.id)
        try:
            yield
        finally:
            if threading.get_ident() == thread:
                runtime.setDevice(before)

    @contextmanager
    def rounding(self) -> Iterator[None]:
        """Let cuBLAS in the calling thread round single-precision factors to TF32 for the tensor cores."""
        with self._device:
            before = cublas.getMathMode(handle := cupy.cuda.device.get_cublas_handle())
            cublas.setMathMode(handle, TF32_MATH)
            try:
                yield
            finally:
                cublas.setMathMode(handle, before)

    def to_device(self, array: np.ndarray) -> Any:
        with self._device:
            copied = cupy.asarray(array)
            cupy.cuda.get_current_stream().synchronize()  # lanes may use it at once
            return copied

    def lend(self, loan: Loan) -> Any:
        """Make one of the same memory, whose owner the loan is."""
        array = loan.array
        memory = cupy.cuda.UnownedMemory(array.data.ptr, array.nbytes, loan, self._device.id)
        return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0), array.strides)

    def is_array(self, value: object) -> bool:
        return isinstance(value, cupy.ndarray) and value.device.id == self._device.id

    def supports(self, dtype: np.dtype) -> bool:
        return dtype.char in "?bhilqBHILQefdFD"

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether it is the pool's error, or one of a library."""
        status = getattr(error, "status", None) if isinstance(error, runtime.CUDARuntimeError) else None
        return isinstance(error, MemoryError) or status == OUT_OF_MEMORY or "ALLOC_FAILED" in str(error)

    def bytes_asked(self, error: BaseException) -> int | None:
        return hints.bytes_asked(error)

    def hint(self, error: BaseException) -> str:
        return hints.hint(error, self.name, _has)


def _has(module: str, name: str) -> bool:
    """Whether there is a module with an attribute of this name."""
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


@cache
def _elementwise(inputs: Parameters, outputs: Parameters, body: str, preamble: str = "") -> Any:
    """A kernel that rounds each product and each sum, as separate functions do, without fused multiply-add."""
    taken, given = (", ".join(f"{dtype} {name}" for dtype, name in side) for side in (inputs, outputs))
    return cupy.ElementwiseKernel(taken, given, body, "chunkflow_chain", preamble=preamble, options=("--fmad=false",))


@gemm.accumulate.register(cupy.ndarray)
def _accumulate(into: Any, a: Any, b: Any) -> bool:
    possible = into.dtype.char in "fdFD" and a.flags.forc and b.flags.forc and into.flags.c_contiguous
    if possible:
        cupy.cublas.gemm("N", "N", a, b, out=into, beta=1.0)
    return bool(possible)


fill.register(cupy.ndarray, filler(_elementwise))
segmented.register(cupy.ndarray, reducer(_elementwise))
moments.register(cupy.ndarray, momenter(_elementwise))
counted.register(cupy.ndarray, counter(_elementwise))
distinct.register(cupy.ndarray, distinct_finder(_elementwise))
accumulated.register(cupy.ndarray, accumulator(_elementwise))
weighted.register(cupy.ndarray, weigher(_elementwise))
window_moments.register(cupy.ndarray, window_momenter(_elementwise))
to_keys.register(cupy.ndarray, keyer(_elementwise))
among.register(cupy.ndarray, gatherer(_elementwise))
short_lines.register(cupy.ndarray, sorter(_elementwise))


def device(ordinal: int = 0) -> CupyDevice:
    """The one object of a GPU, which keeps its streams and its reserve."""
    return _device(ordinal)


@cache
def _device(ordinal: int) -> CupyDevice:
    if not 0 <= ordinal < (present := count()):
        raise DeviceError(f"there is no CUDA device {ordinal}: this process sees {present} of them")
    return CupyDevice(ordinal)


def count() -> int:
    """Number of CUDA devices that this process sees."""
    with suppress(runtime.CUDARuntimeError):
        return int(runtime.getDeviceCount())
    return 0

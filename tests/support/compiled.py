"""The CPU in the place of a CUDA device for the compiled loops: a driver whose copies run when a lane comes to them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import partial
from typing import Any

from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.job_queue import JobQueue
from chunkflow.devices.mover import BufferAddresses, Mover, staging
from chunkflow.devices.protocol import Edge, StagingBuffer

BUILT = staging is not None


class Copy2D(ctypes.Structure):
    _fields_ = [
        *((name, c_size_t) for name in ("from_x", "from_y")),
        ("from_kind", c_int),
        *((name, c_uint64) for name in ("from_host", "from_device", "from_array", "from_pitch", "to_x", "to_y")),
        ("to_kind", c_int),
        *((name, c_uint64) for name in ("to_host", "to_device", "to_array", "to_pitch", "width", "height")),
    ]


class Copy3D(ctypes.Structure):
    _fields_ = [
        *((name, c_size_t) for name in ("from_x", "from_y", "from_z", "from_level")),
        ("from_kind", c_int),
        *((name, c_uint64) for name in ("from_host", "from_device", "from_array", "from_reserved")),
        *((name, c_size_t) for name in ("from_pitch", "from_height", "to_x", "to_y", "to_z", "to_level")),
        ("to_kind", c_int),
        *((name, c_uint64) for name in ("to_host", "to_device", "to_array", "to_reserved")),
        *((name, c_size_t) for name in ("to_pitch", "to_height", "width", "height", "depth")),
    ]


class CompiledDevice(NumpyDevice):
    """`fail_after` copies the driver refuses every further one with error 700."""

    def __init__(self, *, fail_after: int = 1 << 62, **options: Any) -> None:
        super().__init__(staged=True, **options)
        self.shares = 0
        self.job_queue = partial(JobQueue, self._key)
        self._left = fail_after
        self._known: dict[int, Any] = {}
        self._clock = self._key(object())
        self._start = time.perf_counter()
        self._driver = [
            CFUNCTYPE(c_int, c_uint64, c_void_p, c_size_t, c_void_p)(self._upload),
            CFUNCTYPE(c_int, c_void_p, c_uint64, c_size_t, c_void_p)(self._download),
            CFUNCTYPE(c_int, POINTER(Copy2D), c_void_p)(self._rows),
            CFUNCTYPE(c_int, POINTER(Copy3D), c_void_p)(self._planes),
            CFUNCTYPE(c_int, c_void_p, c_void_p)(self._record),
            CFUNCTYPE(c_int, c_void_p)(self._synchronize),
            CFUNCTYPE(c_int, POINTER(c_float), c_void_p, c_void_p)(self._elapsed),
            CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint)(self._wait),
        ]

    def mover(self, lane: Any, buffers: Sequence[StagingBuffer], scratch: Any) -> Mover | None:
        self.shares += 1
        driver = [ctypes.cast(f, c_void_p).value or 0 for f in self._driver]
        rows = [
            BufferAddresses(b.host.pointer, self._key(b.done), self._key(b.begun) if b.begun else 0) for b in buffers
        ]
        landing = (0, 0) if scratch is None else (self.address(scratch), scratch.nbytes)
        return Mover(driver, self._key(lane), rows, (self._clock, self._start), landing, self._key)

    def event(self, *, timed: bool = False) -> Any:
        return super().event(timed=timed)

    def _key(self, thing: Any) -> int:
        self._known[id(thing)] = thing
        return id(thing)

    def _copy(self, lane: int, copies: list[tuple[int, int, int]]) -> int:
        self._left -= 1
        if self._left < 0:
            return 700

        def move() -> None:
            for there, here, nbytes in copies:
                ctypes.memmove(there, here, nbytes)

        self._known[lane]._enqueue(move)
        return 0

    def _upload(self, device: int, host: int, nbytes: int, lane: int) -> int:
        return self._copy(lane, [(device, host, nbytes)])

    def _download(self, host: int, device: int, nbytes: int, lane: int) -> int:
        return self._copy(lane, [(host, device, nbytes)])

    def _rows(self, what: Any, lane: int) -> int:
        c = what.contents
        assert {c.from_kind, c.to_kind} == {1, 2}
        there, here = (c.to_device, c.from_host) if c.to_kind == 2 else (c.to_host, c.from_device)
        assert min(c.to_pitch, c.from_pitch) >= c.width
        return self._copy(lane, [(there + i * c.to_pitch, here + i * c.from_pitch, c.width) for i in range(c.height)])

    def _planes(self, what: Any, lane: int) -> int:
        c = what.contents
        assert c.from_kind == c.to_kind == 2
        assert min(c.to_pitch, c.from_pitch) >= c.width
        assert min(c.to_height, c.from_height) >= c.height
        sides = (c.to_device, c.to_pitch, c.to_height), (c.from_device, c.from_pitch, c.from_height)
        rows = [
            [at + (z * high + y) * pitch for at, pitch, high in sides] for z in range(c.depth) for y in range(c.height)
        ]
        return self._copy(lane, [(there, here, c.width) for there, here in rows])

    def _record(self, event: int, lane: int) -> int:
        self._known[lane].record(self._known[event])
        return 0

    def _synchronize(self, event: int) -> int:
        self._known[event].synchronize(Edge.REFILL)
        return 0

    def _wait(self, lane: int, event: int, flags: int) -> int:
        assert flags == 0
        self._known[lane].wait([self._known[event]], Edge.UPLOADED)
        return 0

    def _elapsed(self, out: Any, clock: int, event: int) -> int:
        assert clock == self._clock
        out[0] = (self._known[event].seconds() - self._start) * 1e3
        return 0

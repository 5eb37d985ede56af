"""Where the tests run: the CPU, the devices that check orderings, and a GPU if there is one.

A test that takes a `place` and is marked `everywhere` (or `checked`) is a contract that all of them keep.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.compiled import BUILT, CompiledDevice

import chunkflow
from chunkflow.core.machine import Machine
from chunkflow.devices import resolve
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.protocol import Edge
from chunkflow.devices.race_detector import ClockDevice

MODES = ("eager", "threaded", "lazy")
PAGES = 32 << 20
"""Bytes of a GPU's budget that go to whole pages of device memory, however small the blocks."""


def machine(*, staged: bool, lanes: int = 2, piece: int = 4096, **changes: Any) -> Machine:
    """A small machine with a GPU's proportions: many pieces, blocks and slots for little data."""
    made = Machine(
        read=30e9,
        upload=50e9,
        compute=8e11,
        download=50e9,
        write=30e9,
        overhead=1e-7 if staged else 0.0,  # of no weight, or blocks so small would get one lane
        cache=0 if staged else 8192,
        spill=0.5,
        lanes=lanes,
        depths=(3, 2, 1),
        staged=staged,
        piece=piece,
        threads=3,
        slots=2,
    )
    return replace(made, **changes)


def numpy_device(mode: str, *, staged: bool, poison: bool = True, **sizes: Any) -> NumpyDevice:
    """The CPU in one of its checking modes, without a race detector."""
    return NumpyDevice(mode=mode, staged=staged, poison=poison, machine=machine(staged=staged, **sizes))  # type: ignore[arg-type]


def checking(mode: str, *, staged: bool, drop: Edge | None = None, **sizes: Any) -> ClockDevice:
    """The CPU in one of its checking modes, with a race detector."""
    return ClockDevice(numpy_device(mode, staged=staged, **sizes), drop=drop)


def _with_libraries(device: Any) -> Any:
    """A GPU after its first product and transform, and what it decodes: budgets above the reserve know all of it."""
    chunkflow.matmul(np.ones((2, 2)), np.ones((2, 2)), device=device)
    device.load("FFT")
    for known in device.machine.decodings:
        device.decoder(known.codec)
    return device


def at_work() -> list[str]:
    """Names of chunkflow's threads, without those that wait for a run, or just find that theirs is over."""
    for _ in range(100):
        if not (names := sorted(t.name for t in threading.enumerate() if t.name.startswith("chunkflow"))):
            break
        time.sleep(0.001)
    return names


@cache
def _cuda() -> Any:
    return _with_libraries(resolve("cuda"))


@cache
def _small_cuda() -> Any:
    from chunkflow.devices import rates
    from chunkflow.devices.cuda.device import CupyDevice

    return _with_libraries(CupyDevice(0, machine=replace(rates.gpu(), piece=64 << 10, whole=0, threads=3)))


@dataclass(frozen=True)
class Place:
    """One way to run. Devices are made anew, for a race detector keeps all accesses."""

    name: str
    mode: str = ""
    staged: bool = False
    lanes: int = 1

    def device(self) -> Any:
        """What to pass as ``device=``."""
        if self.name.startswith("compiled"):
            return CompiledDevice(mode=self.mode, poison=True, machine=machine(staged=True, lanes=self.lanes))
        if self.mode:
            return checking(self.mode, staged=self.staged, lanes=self.lanes)
        return ClockDevice(_small_cuda()) if self.name == "cuda-race-detector" else self.name

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("cuda")

    def budget(self, nbytes: int) -> int:
        """A budget that leaves `nbytes` for blocks."""
        return nbytes + (self.reserve + PAGES if self.is_gpu else 0)

    @property
    def reserve(self) -> int:
        """Bytes of every budget that libraries have taken; they grow when one is first used."""
        if not self.is_gpu:
            return 0
        return int((_small_cuda() if self.name == "cuda-race-detector" else _cuda()).reserve)

    def host(self, array: Any) -> np.ndarray:
        """A copy of an array of this place in NumPy's hands."""
        return np.array(array.get() if hasattr(array, "get") else array)

    def out_of_memory(self, message: str) -> BaseException:
        """What the device raises where memory runs out."""
        if not self.is_gpu:
            return MemoryError(message)
        import cupy

        return cupy.cuda.memory.OutOfMemoryError(1, 1)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return self.name


CPU = Place("cpu")
CHECKING = [
    Place(f"{mode}-{'staged' if staged else 'direct'}", mode, staged, lanes)
    for staged, lanes in ((True, 1), (False, 2))
    for mode in MODES
] + [Place("threaded-staged-2-lanes", "threaded", True, 2), Place("lazy-staged-2-lanes", "lazy", True, 2)]
if BUILT:
    CHECKING.append(Place("compiled-lazy", "lazy", True, 2))
CUDA = [pytest.param(Place(name), id=name, marks=pytest.mark.gpu) for name in ("cuda", "cuda-race-detector")]

everywhere = pytest.mark.parametrize("place", [CPU, *CHECKING, *CUDA], ids=str)
checked = pytest.mark.parametrize("place", CHECKING, ids=str)
on_cpu_and_gpu = pytest.mark.parametrize("place", [CPU, CUDA[0]], ids=str)


def same(got: Any, expected: Any) -> None:
    """Equal to the bit: dtype, shape and every element, NaN for NaN and minus zero for minus zero."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    assert got.shape == expected.shape  # assert_array_equal would broadcast a scalar
    if got.dtype.kind in "fc":
        for part in ("real", "imag"):
            one, other = getattr(got, part), getattr(expected, part)
            number = ~np.isnan(other)
            np.testing.assert_array_equal(np.signbit(one)[number], np.signbit(other)[number])

"""What the machine gives: rates of the link and of copies in memory, and the memory that a run takes at most."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.timing import Contender, median_seconds

PACKAGES = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "zarr", "dask", "cubed", "blosc2", "numcodecs", "torch")


class Watch:
    """Most bytes that `taken` tells, by a look every millisecond, beyond what it told at first."""

    def __init__(self, taken: Callable[[], int]) -> None:
        self._taken = taken
        self._before = self._most = taken()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)  # what fails must not wait for it
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.001):
            self._most = max(self._most, self._taken())

    def end(self) -> int:
        """Stop looking; return the peak."""
        self._over.set()
        self._thread.join()
        return self._most - self._before


def _account(*fields: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(fields))


def anonymous() -> int:
    """Bytes of memory that this process has taken and that are no file's, shared ones too, by the kernel's account."""
    return _account("RssAnon", "RssShmem")


class Peak(NamedTuple):
    """MB of memory that a run took at most, beyond what was there before."""

    resident: float
    anonymous: float


def peak_memory(run: Contender) -> Peak:
    """Run, and watch this process's memory."""
    before = _account("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # begin the kernel's peak anew
    watch = Watch(anonymous)
    run()
    most = watch.end()
    return Peak((_account("VmHWM") - before) / 1e6, most / 1e6)


class Accelerator:
    """The library whose arrays blocks are on a device; NumPy on the CPU, so that every case can be tried anywhere."""

    def __init__(self, device: str) -> None:
        self.device, self.is_gpu = device, device != "cpu"
        self.xp = importlib.import_module("cupy" if self.is_gpu else "numpy")

    def wait(self) -> None:
        """Wait for what has been started."""
        if self.is_gpu:
            self.xp.cuda.get_current_stream().synchronize()

    def free(self) -> None:
        """Give back device memory that the library keeps."""
        if self.is_gpu:
            self.xp.get_default_memory_pool().free_all_blocks()
            self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def free_memory(self) -> int:
        """Bytes that the device has left; on the CPU a figure for small trials."""
        return int(self.xp.cuda.runtime.memGetInfo()[0]) if self.is_gpu else 1 << 30

    def in_use(self) -> int:
        """Bytes in use on the device, by the driver's account."""
        free, total = self.xp.cuda.runtime.memGetInfo()
        return int(total - free)

    def peak(self, run: Contender) -> float:
        """Run; GB of device memory in use at most, beyond what was in use before."""
        self.xp.get_default_memory_pool().free_all_blocks()
        watch = Watch(self.in_use)
        try:
            run()
        finally:
            most = watch.end()
        return most / 1e9

    def link(self) -> float:
        """GB/s of large copies from pinned memory; on the CPU of copies in memory."""
        if not self.is_gpu:
            there, back = np.ones(1 << 26, np.uint8), np.ones(1 << 26, np.uint8)
            return there.nbytes / median_seconds(lambda: np.copyto(back, there), 6, warm=False) / 1e9
        rate = self._uploads()
        self.free()
        return rate

    def _uploads(self) -> float:
        cupy, n = self.xp, 1 << 30
        host = cupy.cuda.alloc_pinned_memory(n)
        device, stream = cupy.empty(n, np.uint8), cupy.cuda.Stream(non_blocking=True)

        def copy() -> None:
            cupy.cuda.runtime.memcpyAsync(device.data.ptr, host.ptr, n, 1, stream.ptr)
            stream.synchronize()

        return n / median_seconds(copy, 6, warm=False) / 1e9

    def both_ways(self) -> float:
        """GB/s each way while both directions are at work; on the CPU half of what copies in memory reach."""
        if not self.is_gpu:
            return self.link() / 2
        cupy, n = self.xp, 1 << 30
        hosts = [cupy.cuda.alloc_pinned_memory(n) for _ in range(2)]
        arrays = [cupy.empty(n, np.uint8) for _ in range(2)]
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

        def copy() -> None:
            for kind, host, array, stream in zip((1, 2), hosts, arrays, streams, strict=True):
                ends = (array.data.ptr, host.ptr) if kind == 1 else (host.ptr, array.data.ptr)
                cupy.cuda.runtime.memcpyAsync(*ends, n, kind, stream.ptr)
            for stream in streams:
                stream.synchronize()

        return n / median_seconds(copy) / 1e9


def gpus() -> int:
    """How many GPUs CuPy can use."""
    try:
        return int(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
    except Exception:  # CuPy raises an error of its own where there is no driver
        return 0


def installed(*packages: str) -> tuple[list[str], tuple[str, ...]]:
    """Which packages can be imported, and which can't: some are there, but not a library that they need."""
    there = [name for name in packages if _imported(name)]
    return there, tuple(name for name in packages if name not in there)


def _imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, OSError):
        return False
    return True


def _gpu_names() -> list[str]:
    """Of the GPUs that CuPy can use, which are alike."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    return names[: gpus()]


def cpu_name() -> str:
    """The processor's model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def device_name(device: str) -> str:
    """What a page of results calls the device: the GPUs, or the processor and its cores."""
    names = [line.split(",")[0] for line in _gpu_names()] if device != "cpu" else []
    if names:
        return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"
    return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def machine() -> str:
    """What ran, where and when."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    gpu = "".join(["; ", " / ".join(_gpu_names())]) if _gpu_names() else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}; {cpu_name()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB{gpu}; "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )

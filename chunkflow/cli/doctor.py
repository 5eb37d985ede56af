"""``chunkflow doctor`` measures the parts that runs depend on, and says what is slow or missing and what mends it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.reductions import sums
from chunkflow.cli.calibrate import ScratchFiles, fastest, host_rates, profiled
from chunkflow.cli.common import Commands, add_device, command, refuse, said
from chunkflow.core.settings import temporary_directory
from chunkflow.core.units import format_bytes
from chunkflow.devices import measured_rates, resolve
from chunkflow.devices.protocol import Device
from chunkflow.devices.registry import CPU
from chunkflow.errors import hidden
from chunkflow.system import native
from chunkflow.system.host import cores

TEXT = """\
Each line is a check: ok, slow, missing (optional) or broken; below it is what mends it. It takes some seconds, and
writes a few hundred megabytes of temporary files. It exits with 1 if something is broken."""

OK, SLOW, MISSING, BROKEN = "ok", "slow", "missing", "broken"

NBYTES = 64 << 20
"""Bytes of an array that is copied, written and read."""

CHUNK = 1 << 20
"""Bytes of a chunk that is decoded."""

SMALL = 16 << 10
"""Bytes of a file that is read by a compiled loop and by Python."""

READS = 200
"""Times that it is read."""

LEAST_COPY, LEAST_DISK, LEAST_LINK, LEAST_PINNED, LEAST_DECODE = 2e9, 200e6, 10e9, 1e9, 500e6
"""Bytes per second below which a figure counts as slow."""

LEAST_SHARE = 0.6
"""Speed of all cores beside that of as many single ones, below which they count as slow."""

EXTRAS = {
    "h5py": ("hdf5", "HDF5 and netCDF 4"),
    "fsspec": ("remote", "URLs"),
    "xarray": ("xarray", "labelled arrays"),
    "distributed": ("dask", "clusters"),
    "matplotlib": ("plot", "pictures of runs"),
    "tifffile": ("tiff", "TIFF files"),
}
"""For each package the extra that installs it, and what it is for."""


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes
    ----------
    what : str
        The part that was checked.
    figure : str
        What was measured.
    verdict : str
        "ok", "slow", "missing" or "broken".
    mend : str
        A command, or a sentence, that mends it; empty if nothing need be done.
    """

    what: str
    figure: str
    verdict: str = OK
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.verdict:<8} {self.what:<18} {self.figure}"
        return f"{line}\n         -> {self.mend}" if self.mend else line


def rated(what: str, rate: float, least: float, mend: str, about: str = "") -> Finding:
    """A rate in bytes per second, which is slow below the least one."""
    figure = f"{rate / 1e9:.3g} GB/s{about}"
    return Finding(what, figure) if rate >= least else Finding(what, figure, SLOW, mend)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "doctor", run, "measure this machine; say what is slow or missing, and what mends it", TEXT
    )
    add_device(parser)
    parser.add_argument("--dir", type=Path, help="a directory of the disk to measure (default: for temporary files)")
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(options: argparse.Namespace) -> int:
    """Check all, and print each finding as it comes; 1 if something is broken."""
    folder = options.dir or Path(temporary_directory())
    if not os.access(folder, os.W_OK) or not folder.is_dir():
        refuse(f"no files can be written in {folder}: name a directory with --dir")
    resolve(options.device)  # a wrong one is refused before anything is measured
    found = []
    for finding in findings(options.device, folder):
        found.append(finding)
        if not options.json:
            print(finding, flush=True)
    if options.json:
        print(json.dumps([asdict(each) for each in found], indent=1))
    return 1 if any(each.verdict == BROKEN for each in found) else 0


def findings(device: str | None, folder: Path) -> Iterator[Finding]:
    """What all checks find, one after the other."""
    host, x = CPU.module.device(), np.ones((NBYTES // 4096, 1024), "f4")
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "memory": partial(_memory, host, x),
        "disk": partial(_disk, host, x, folder),
        "compiled loops": partial(_compiled, folder),
        "codecs": _codecs,
        "device": partial(_device, device, x),
        "packages": _packages,
    }
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:
            mend = "name a directory that can be written, with --dir or TMPDIR" if isinstance(error, OSError) else ""
            yield Finding(name, hidden(said(error)), BROKEN, mend)


def _memory(host: Device, x: np.ndarray) -> Iterator[Finding]:
    lanes = host.machine.lanes
    rates = host_rates(host, x, np.zeros_like(x))
    mend = "other processes use the memory, or the machine has a single module of it: runs are as slow as that"
    yield rated("memory", lanes * rates.read, LEAST_COPY, mend, f" copied by {lanes} cores")


def _disk(host: Device, x: np.ndarray, folder: Path) -> Iterator[Finding]:
    files = ScratchFiles(x, folder)
    options: dict[str, Any] = {"device": host, "budget": 4 * x.nbytes}
    mend = "name a faster disk: TMPDIR=DIRECTORY for temporary files, and out= for results"
    with tempfile.TemporaryDirectory(dir=folder) as where:
        new: dict[str, Any] = {"out": f"{where}/new.npy", "overwrite": True, "sync": True, **options}
        written = x.nbytes / fastest(partial(mapping.map, np.negative, x, **new), 1)
    yield rated("disk, written", written, LEAST_DISK, mend, f" with fsync, in {folder}")
    read = files.disk(options)
    if read:
        yield rated("disk, read", read, LEAST_DISK, mend, f" not cached, in {folder}")
    else:
        yield Finding("disk, read", f"files in {folder} stay in memory: name a disk with --dir")


def _compiled(folder: Path) -> Iterator[Finding]:
    if not native.complete:
        off = os.environ.get("CHUNKFLOW_COMPILED") == "0"
        mend = (
            "unset CHUNKFLOW_COMPILED"
            if off
            else "install a C compiler, and chunkflow again: pip install --force-reinstall --no-deps --no-binary "
            "chunkflow-stream chunkflow-stream"
        )
        yield Finding("compiled loops", "turned off" if off else "not built", MISSING, mend)
        return
    with tempfile.TemporaryDirectory(dir=folder) as where:
        path, out = f"{where}/small", np.zeros(SMALL, np.uint8)
        out.tofile(path)

        def python() -> None:
            with open(path, "rb", buffering=0) as file:
                file.readinto(out.data)

        ours, theirs = (_each(read) for read in (lambda: native.read_file(path, out), python))
    yield Finding(
        "compiled loops", f"a file of {format_bytes(SMALL)} in {ours * 1e6:.3g} us, by Python {theirs * 1e6:.3g} us"
    )


def _each(call: Callable[[], object]) -> float:
    """Seconds of a short call."""

    def several() -> None:
        for _ in range(READS):
            call()

    return fastest(several) / READS


def _codecs() -> Iterator[Finding]:
    """Rates at which the host decodes chunks of numbers with a few digits."""
    known: Any = importlib.import_module("chunkflow.stores.codecs.registry").ZARR_2
    numcodecs: Any = importlib.import_module("numcodecs")
    numbers = (np.random.default_rng(0).integers(0, 1000, CHUNK // 4) / 8).astype("f4")
    slow = "gzip is slow by nature; other codecs are faster: chunkflow convert SRC DST --compressor zstd"
    busy = "other processes may use the cores (see top), or the container has a limit: see cpu.max"
    fast = 'pip install "chunkflow-stream[fast]" decodes it twice as fast'
    deflate = importlib.import_module("chunkflow.stores.codecs.deflate").package("deflate")
    with ThreadPoolExecutor(cores()) as threads:
        for name in ("blosc", "lz4", "zstd", "gzip"):
            codec = known[name](numcodecs.get_codec({"id": name}))
            raw = np.frombuffer(codec.encode(numbers), np.uint8)
            outs = [np.empty(CHUNK, np.uint8) for _ in range(cores())]

            def decode(out: np.ndarray, codec: Any = codec, raw: np.ndarray = raw) -> None:
                for _ in range(8):
                    codec.decode(raw, CHUNK, out)

            one = 8 * CHUNK / fastest(partial(decode, outs[0]), 2)
            every = 8 * CHUNK * cores() / fastest(partial(_all, threads, decode, outs), 2)
            about = f" by one core, {every / 1e9:.3g} GB/s by {cores()}"
            mend = busy if name != "gzip" else fast if deflate is None else slow
            yield rated(f"{name} decoded", one, LEAST_DECODE, mend, about)
    figure = f"{cores()} cores decode {every / one:.2f} times what one does"
    if every > LEAST_SHARE * cores() * one:
        yield Finding("cores", figure)
    else:
        yield Finding(
            "cores", figure, SLOW, "other processes use them, or the container has a limit: see top and cpu.max"
        )


def _all(threads: ThreadPoolExecutor, work: Callable[[np.ndarray], None], outs: list[np.ndarray]) -> None:
    list(threads.map(work, outs))


def _device(spec: str | None, x: np.ndarray) -> Iterator[Finding]:
    device = resolve(spec)
    if not device.machine.staged:
        yield _without_gpu()
    else:
        yield from _gpu(device, x)
    where = measured_rates.path(device.model)
    if where is not None and where.is_file():
        yield Finding("calibration", f"rates of {device.model} in {where}")
    else:
        yield Finding("calibration", f"usual rates of {device.model} are supposed", MISSING, "chunkflow calibrate")


def _without_gpu() -> Finding:
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return Finding("GPU", "none: the CPU computes")
    if importlib.util.find_spec("cupy") is None:
        return Finding(
            "GPU", "not used, for want of CuPy", MISSING, 'pip install "chunkflow-stream[cuda13]" (or [cuda12])'
        )
    return Finding(
        "GPU", "there is a driver; runs use the CPU all the same", MISSING, "see CHUNKFLOW_DEVICE, and nvidia-smi"
    )


def _gpu(device: Any, x: np.ndarray) -> Iterator[Finding]:
    yield Finding("GPU", f"{device.model}, {format_bytes(device.free_memory())} free")
    options: dict[str, Any] = {"device": device, "budget": 4 * x.nbytes}
    out = np.zeros_like(x)
    up = profiled(partial(sums.sum, x, **options), 3)
    down = profiled(partial(mapping.map, np.negative, x, out=out, **options), 3)
    mend = "see `nvidia-smi -q`: the width of the link, and other processes on the card"
    for report, name in ((up, "upload"), (down, "download")):
        rate = max(stage.rate for stage in report.stages if stage.name == name)
        yield rated(f"link, {name}", rate, LEAST_LINK, mend)
    yield _pinned(device)
    codecs = sorted({decoding.codec for decoding in device.machine.decodings})
    extra = 'pip install "chunkflow-stream[nvcomp]" (CUDA 12: [nvcomp-cuda12])'
    yield (
        Finding("decoding on GPU", ", ".join(codecs))
        if codecs
        else Finding("decoding on GPU", "the host decodes all chunks", MISSING, extra)
    )
    if importlib.util.find_spec("pynvml") is None:
        yield Finding("GPU's memory", "other processes' is not told from ours", MISSING, "pip install nvidia-ml-py")


def _pinned(device: Any) -> Finding:
    """How fast new host memory is pinned."""
    pool = device.pool(NBYTES)
    try:
        buffers = pool.host_buffers(8, NBYTES // 8)
        begun = time.perf_counter()
        with device.attach():
            for buffer in buffers:
                buffer.pin()
        rate = NBYTES / (time.perf_counter() - begun)
        pool.release_host(buffers)
    finally:
        pool.close()
    mend = "allow huge pages: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    return rated("pinned memory", rate, LEAST_PINNED, mend, " made")


def _packages() -> Iterator[Finding]:
    for package, (extra, purpose) in EXTRAS.items():
        if importlib.util.find_spec(package) is None:
            yield Finding(package, f"for {purpose}", MISSING, f'pip install "chunkflow-stream[{extra}]"')

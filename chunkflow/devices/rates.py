"""Default rates and sizes of devices, used where nothing was measured."""

from __future__ import annotations

from pathlib import Path

from chunkflow.core.machine import Machine
from chunkflow.core.units import parse_bytes
from chunkflow.system.host import cores
from chunkflow.system.native import staging

PAGE = 2 << 20
"""Page size of the driver's device memory. A request of more than half a page takes whole pages."""


def gpu() -> Machine:
    """Rates of a GPU on PCIe 5.0 x16. Only their proportions matter."""
    return Machine(
        read=40e9,
        upload=50e9,
        compute=800e9,
        download=50e9,
        write=30e9,
        overhead=300e-6,
        # Some cores are left for the run's own thread: threads that wait for copies spin.
        threads=max(4, min(12, 3 * cores() // 4)),
        # Smaller pieces stay in the cache between two copies; larger ones take Python's lock less often.
        piece=(4 if staging else 8) << 20,
        whole=16 << 20,
        apart=128 << 10 if staging else 0,  # then threads read files without that lock; smaller ones were not measured
        page=PAGE,
        create=5e9,
        separate=20e9,
        fresh=5e9,
        handling=20e-6,  # Python opens them
        multiply=2.8e13,
        accumulates=True,
    )


def cpu(lanes: int) -> Machine:
    """Rates of an ordinary core. It matters only that blocks larger than the cache cost more."""
    return Machine(
        read=8e9,
        upload=8e9,
        compute=12e9,
        download=8e9,
        write=6e9,
        overhead=90e-6,
        lanes=lanes,
        depths=_depths(lanes),
        staged=False,
        cache=cache_per_core(),
        spill=0.5,
        piece=512 << 10,
        threads=lanes,
        decode=1e9,
        encode=0.3e9,
        handling=20e-6 * (1 + lanes / 8),  # seen: 22 us with two threads, and 63 us with sixteen
    )


def _depths(lanes: int) -> tuple[int, ...]:
    """Numbers of buffers to consider. Where blocks must be large, half of the lanes are better than a single one.

    >>> _depths(2), _depths(16)
    ((4, 2, 1), (32, 16, 12, 8, 6, 4, 3, 2, 1))
    """
    fewer = {share >> i for share in (lanes // 2, 3 * lanes // 4) for i in range(lanes.bit_length())}
    return tuple(sorted({2 * lanes, lanes, 1} | (fewer - {0}), reverse=True))


def cache_per_core() -> int:
    """Bytes of last-level cache for one core: three quarters of its share, or 1 MiB where unknown."""
    try:
        level = Path("/sys/devices/system/cpu/cpu0/cache/index3")
        size = parse_bytes(level.joinpath("size").read_text().strip() + "iB")
        first, *rest = level.joinpath("shared_cpu_list").read_text().strip().replace(",", "-").split("-")
        sharing = int(rest[-1]) - int(first) + 1 if rest else 1
    except (OSError, ValueError):
        return 1 << 20
    return min(max(3 * size // (4 * sharing), 1 << 20), 16 << 20)

"""Which parts of a file are in the page cache, and how far the system reads ahead. The rest comes from the disk.

Plans do not ask, since results would differ in their last bits by what happens to be cached. What a run is expected to
take does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress

from chunkflow.system.files import open_regular

SAMPLES = 64
"""Number of bytes that are sampled, at random places."""

FEW = 16
"""The same, if a single byte that is not in memory decides."""

PAGE = 4 << 10

LEAST = 16 << 20
"""Least bytes of an array for which sampling is worth its time."""

FAR = 2 << 20
"""Read-ahead, in bytes, that keeps a disk as busy as long reads do."""

draw = random.Random()
"""A generator of our own, so that the user's random numbers stay the same."""


def absent(fd: int, start: int, stop: int, samples: int = SAMPLES) -> float | None:
    """Share of a part of a file that is not in memory, from a sample; None if the system cannot say."""
    missing = number = 0
    for there in _looked(fd, start, stop, samples):
        if there is None:
            return None
        missing, number = missing + (not there), number + 1
    return missing / number if number else None


def present(fd: int, start: int, stop: int) -> bool:
    """Whether all of a part of a file is in memory, from a sample."""
    return all(_looked(fd, start, stop, FEW))


def absent_files(paths: Iterable[str], number: int) -> int:
    """Bytes of files that are not in memory, from a sample of `paths` out of `number`. Missing files have none."""
    found = []
    for path in paths:
        found.append(0.0)
        with suppress(OSError), open(open_regular(path), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            found[-1] = size * (absent(file.fileno(), 0, size, 1) or 0.0)
    return int(number * sum(found) / max(len(found), 1))


def read_ahead(fd: int) -> int:
    """Bytes that the system reads ahead if a file is read in order; 0 if unknown."""
    device = os.fstat(fd).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    for place in (f"/sys/class/bdi/{name}", f"/sys/dev/block/{name}/../bdi"):  # a part of a disk is read as the disk
        with suppress(OSError, ValueError), open(f"{place}/read_ahead_kb") as file:
            return int(file.read()) << 10
    return 0


def drop(fd: int) -> None:
    """Drop a file from the page cache, if the system can. Written bytes must be synced before."""
    with suppress(OSError, AttributeError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _looked(fd: int, start: int, stop: int, samples: int) -> Iterator[bool | None]:
    """Whether each of some bytes is in memory. The last one comes first: probing a byte makes the system read ahead."""
    samples = max(min(samples, (stop - start) // PAGE), stop > start)
    for i in reversed(range(samples)):
        yield _there(fd, start + int((i + draw.random()) * (stop - start) / samples))


def _there(fd: int, place: int) -> bool | None:
    """Whether a byte is in memory: only then can it be read without waiting (``RWF_NOWAIT``, Linux 4.14)."""
    try:
        os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # the file system, or the system, has no such call
        return None
    return True

"""Files of a local zarr array: read at a place, written so that they appear when they are complete."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class ChunkError(ValueError):
    """A chunk or a shard that is not what the array's metadata say; the store makes a `ReadError` of it."""


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Say in errors which chunk or shard they are about."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{what}: {error.strerror or error}") from error
    except Exception as error:
        raise ChunkError(f"{what}: {error}") from error


def pread(fd: int, out: np.ndarray, offset: int) -> np.ndarray:
    """Fill `out`, which is flat bytes, from an offset of a file."""
    done = 0
    while done < out.size:
        count = os.preadv(fd, [out[done:].data], offset + done)
        if not count:
            raise ChunkError(f"the file ends {out.size - done} bytes early")
        done += count
    return out


def put(path: str, write: Callable[[io.FileIO], bool]) -> None:
    """Let `write` fill a file, which takes its name when it is complete; if `write` says no, none has that name."""
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.partial"
    try:
        try:
            file = open(temporary, "wb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = open(temporary, "wb", buffering=0)  # noqa: SIM115
        with file:
            wanted = write(file)
        if wanted:
            os.replace(temporary, path)
            return
    except BaseException:
        remove(temporary)
        raise
    remove(temporary)
    remove(path)


def append(file: io.FileIO, raw: Any) -> int:
    """Write all of a buffer; its length in bytes."""
    left = memoryview(raw).cast("B")
    total = len(left)
    while len(left):
        left = left[file.write(left) :]
    return total


def remove(path: str) -> None:
    """Remove a file, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

"""Bytes of a file that are changed as one: old and new ones are kept beside it until all new ones are on the disk."""

from __future__ import annotations

import json
import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import RawIOBase, UnsupportedOperation
from typing import Any

from chunkflow.errors import WriteError

DIRECT = 4 << 10
"""Bytes from which on what lies behind the old end is written at once: nothing refers to it yet."""

_HEAD = struct.Struct("<QI")  # bytes of the table, and the checksum of all that follows this


class Overlay(RawIOBase):
    """A file that is read, and written as it seems: what is written stays in memory.

    Parameters
    ----------
    fd : int
        Of the file, which stays as it is up to its end. It is closed with this.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fd = fd
        self.size = self.size_before = os.fstat(fd).st_size
        self._at = 0
        self._starts: list[int] = []
        self._parts: list[bytearray] = []

    def readable(self) -> bool:
        """It is read."""
        return True

    def writable(self) -> bool:
        """It is written, in memory."""
        return True

    def seekable(self) -> bool:
        """It has positions."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and give it."""
        if whence == os.SEEK_SET:
            self._at = offset
        elif whence == os.SEEK_CUR:
            self._at += offset
        else:
            self._at = self.size + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the file, and over it what was written."""
        out = memoryview(buffer).cast("B")
        at, number = self._at, max(0, min(len(out), self.size - self._at))
        out = out[:number]
        found = os.preadv(self.fd, [out], at) if number else 0
        while 0 < found < number and (more := os.preadv(self.fd, [out[found:]], at + found)):
            found += more
        out[found:] = bytes(number - found)
        for start, part in self._within(at, at + number):
            low, high = max(start, at), min(start + len(part), at + number)
            out[low - at : high - at] = memoryview(part)[low - start : high - start]
        self._at += number
        return number

    def write(self, data: Any) -> int:
        """Keep bytes in memory, in place of those at the position."""
        new = bytes(data)
        start, stop = self._at, self._at + len(new)
        if start >= self.size_before and len(new) >= DIRECT and not any(self._within(start, stop)):
            _put(self.fd, new, start)
            self._at, self.size = stop, max(self.size, stop)
            return len(new)
        touching = [i for i, _, _ in self._touching(start, stop)]
        if touching:
            first, last = touching[0], touching[-1] + 1
            low = min(start, self._starts[first])
            high = max(stop, self._starts[last - 1] + len(self._parts[last - 1]))
            joined = bytearray(high - low)
            for at, part in zip(self._starts[first:last], self._parts[first:last], strict=True):
                joined[at - low : at - low + len(part)] = part
        else:
            first = last = bisect_left(self._starts, start)
            low, joined = start, bytearray(len(new))
        joined[start - low : stop - low] = new
        self._starts[first:last], self._parts[first:last] = [low], [joined]
        self._at, self.size = stop, max(self.size, stop)
        return len(new)

    def truncate(self, size: int | None = None) -> int:
        """Let the file seem so long: to the position by default."""
        self.size = self._at if size is None else size
        return self.size

    def close(self) -> None:
        """Close the file, and forget what was written. Idempotent."""
        if not self.closed:
            super().close()
            os.close(self.fd)

    def fileno(self) -> int:
        """Refused: the descriptor lacks what is in memory."""
        raise UnsupportedOperation("what is written is in memory")

    def _touching(self, start: int, stop: int) -> Iterator[tuple[int, int, bytearray]]:
        """Number, start and bytes of the parts that overlap a range or meet it."""
        i = max(0, bisect_left(self._starts, start) - 1)
        while i < len(self._starts) and self._starts[i] <= stop:
            if self._starts[i] + len(self._parts[i]) >= start:
                yield i, self._starts[i], self._parts[i]
            i += 1

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, bytearray]]:
        for _, at, part in self._touching(start, stop):
            if at < stop and at + len(part) > start:
                yield at, part

    def save(self, path: str, free: tuple[int, int] = (0, 0)) -> None:
        """Write old and new bytes to a new file: what `Patch` needs.

        Bytes in the range `free` change whenever the file is opened, and say nothing about who changed it.
        """
        parts = [
            (at, bytes(part[: max(0, self.size - at)])) for at, part in zip(self._starts, self._parts, strict=True)
        ]
        old = [os.pread(self.fd, len(part), at) for at, part in parts]
        table = json.dumps(
            {
                "sizes": [self.size_before, self.size],
                "free": free,
                "parts": [[at, len(before), len(part)] for (at, part), before in zip(parts, old, strict=True)],
            }
        ).encode()
        body = b"".join([table, *old, *(part for _, part in parts)])
        with open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            file.write(_HEAD.pack(len(table), zlib.crc32(body)) + body)


@dataclass(frozen=True)
class Patch:
    """A file's new bytes, kept with the old ones in another file."""

    kept: str
    name: str

    def forward(self, by_steps: Callable[[], object]) -> None:
        """Write the new bytes."""
        by_steps()
        self._apply(new=True)

    def back(self) -> None:
        """Write the old bytes. The file keeps its length: HDF5 cuts off what is not used when it next writes."""
        self._apply(new=False)

    def _apply(self, *, new: bool) -> None:
        (_, size), (low, high), parts = self._read()
        fd = os.open(self.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for at, before, after in parts:
                now = os.pread(fd, max(len(before), len(after)), at)
                now = now[: max(0, low - at)] + before[max(0, low - at) : max(0, high - at)] + now[max(0, high - at) :]
                if now[: len(before)] != before and now[: len(after)] != after and not _is_mixed(now, before, after):
                    raise WriteError(
                        f"{self.name} was changed by another program since a run that wrote to it was killed: the "
                        f"rest of what that run wrote, in {self.kept}, does not fit any more. Remove that, if the "
                        "file is as you want it",
                        path=self.name,
                    )
            if new and os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
            for at, before, after in parts:
                _put(fd, after if new else before, at)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _read(self) -> tuple[tuple[int, int], tuple[int, int], list[tuple[int, bytes, bytes]]]:
        with open(self.kept, "rb") as file:
            content = file.read()
        length, crc = _HEAD.unpack_from(content)
        body = content[_HEAD.size :]
        if zlib.crc32(body) != crc:
            raise WriteError(
                f"{self.kept} is damaged, so the write to {self.name} that it holds cannot be finished: remove it, "
                "and make the output again",
                path=self.name,
            )
        table = json.loads(body[:length])
        at, old, new = length, [], []
        for _, before, _ in table["parts"]:
            old.append(body[at : at + before])
            at += before
        for _, _, after in table["parts"]:
            new.append(body[at : at + after])
            at += after
        places = [int(part[0]) for part in table["parts"]]
        return tuple(table["sizes"]), tuple(table["free"]), list(zip(places, old, new, strict=True))


def _is_mixed(now: bytes, before: bytes, after: bytes) -> bool:
    """Whether each byte is an old or a new one: a write that was cut short."""
    length = max(len(now), len(before), len(after))
    padded = (each.ljust(length, b"\0") for each in (now, before, after))
    return all(b in (x, y) for b, x, y in zip(*padded, strict=True))


def _put(fd: int, data: bytes, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], at + done)

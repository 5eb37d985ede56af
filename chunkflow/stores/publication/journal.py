"""How far a run has come, in a directory beside its hidden output: for a later run that goes on with it.

The directory holds what the call is, two places for the number of finished steps, which are written in turn, and the
values that blocks are combined to. A step is finished when the elements that it stores are written. What a system that
was shut down had not yet put on the disk is not relied upon: the boot is a part of what is compared.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_PLACE = struct.Struct("<QQI")
"""Finished steps, the number of the file of kept values (0 for none), and the checksum of both."""

_CALL, _STEPS, _VALUES = "call.json", "steps", "values-{}.npz"


class Journal:
    """The journal of one run.

    Parameters
    ----------
    folder : str
        Path of the directory.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._turn, self._kept = 0, 0
        self._places: mmap.mmap | None = None

    @property
    def call(self) -> dict[str, str] | None:
        """What the call is, by part; None if the directory is not complete."""
        try:
            found = json.loads((self._folder / _CALL).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else None

    def begin(self, call: dict[str, str]) -> None:
        """Make the directory. From here on a later run may go on with the output."""
        self._folder.mkdir(mode=0o700)
        self._open()
        self._say(call)

    def note(self, call: dict[str, str]) -> None:
        """Say what the call is of an output whose state is in the journal of another one."""
        self._folder.mkdir(mode=0o700)
        self._say(call)

    def _say(self, call: dict[str, str]) -> None:
        temporary = self._folder / f"{_CALL}.partial"
        temporary.write_text(json.dumps(call), encoding="utf-8")
        temporary.replace(self._folder / _CALL)

    def go_on(self) -> tuple[int, Any, list[np.ndarray]]:
        """Finished steps, and the names and the arrays that were kept with them."""
        places = self._open()
        found = [_PLACE.unpack_from(places, turn * _PLACE.size) for turn in (0, 1)]
        valid = [(turn, each) for turn, each in enumerate(found) if each[2] == _checksum(*each[:2])]
        last, (steps, self._kept, _) = max(valid, key=lambda pair: pair[1][0], default=(1, (0, 0, 0)))
        self._turn = 1 - last
        return steps, *(self._values() if self._kept else ([], []))

    def finished(self, steps: int) -> None:
        """Note how many steps are finished. A mapping outlives its process, and costs no call of the system."""
        assert self._places is not None
        place = self._turn * _PLACE.size
        _PLACE.pack_into(self._places, place, steps, self._kept, _checksum(steps, self._kept))
        self._turn = 1 - self._turn

    def keep(self, steps: int, values: Sequence[np.ndarray], names: Any) -> None:
        """Note how many steps are finished, and the arrays that later ones add to, with their `names`, a JSON value."""
        before, self._kept = self._kept, steps
        path = self._folder / _VALUES.format(steps)
        with path.open("wb") as file:
            np.savez(file, *values, names=np.frombuffer(json.dumps(names).encode(), np.uint8))
        self.finished(steps)
        if before and before != steps:
            (self._folder / _VALUES.format(before)).unlink(missing_ok=True)

    def _values(self) -> tuple[Any, list[np.ndarray]]:
        with np.load(self._folder / _VALUES.format(self._kept), allow_pickle=False) as file:
            names = json.loads(file["names"].tobytes())
            return names, [file[f"arr_{i}"] for i in range(len(file.files) - 1)]

    def _open(self) -> mmap.mmap:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._folder / _STEPS, flags, 0o600)
        try:
            lacking = 2 * _PLACE.size - os.fstat(fd).st_size
            if lacking > 0:  # where a mapping has no room on the disk, to write there kills the process
                os.pwrite(fd, bytes(lacking), 2 * _PLACE.size - lacking)
            self._places = mmap.mmap(fd, 2 * _PLACE.size)
        finally:
            os.close(fd)
        return self._places

    def close(self) -> None:
        """Give the mapping back. Idempotent."""
        places, self._places = self._places, None
        if places is not None:
            places.close()


def _checksum(steps: int, kept: int) -> int:
    return zlib.crc32(struct.pack("<QQ", steps, kept))

"""Objects by key, and what reads them: the contract of folders and buckets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

import numpy as np


class ChunkError(ValueError):
    """A chunk or a shard that is not what the array's metadata say; the store makes a `ReadError` of it."""


class StoredObject(Protocol):
    """An object that is being read."""

    @property
    def size(self) -> int | None:
        """Bytes that it has; None where only a further request would tell."""

    @property
    def stamp(self) -> Hashable:
        """What is another one once the object is, as far as that can be known."""

    def read(self, start: int, length: int, out: np.ndarray | None = None) -> np.ndarray:
        """So many bytes from a place, counted from the end if negative; in `out`, if given.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        ChunkError
            It is too short.
        """


class Objects(Protocol):
    """An array's objects: files of a folder, or what a store has under keys."""

    @property
    def gap(self) -> int:
        """Bytes between two parts of an object that are fetched with them rather than skipped."""

    def fetch(self, name: str, check: Callable[[int], None], out: np.ndarray | None = None) -> np.ndarray:
        """All of an object, whose number of bytes is checked first; in `out`, if given, which has as many at least.

        Else it may be in memory into which the thread fetches the next one.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        """

    def open(self, name: str) -> AbstractContextManager[StoredObject]:
        """Open an object for reading in parts; `FileNotFoundError` may come now, or when it is read."""

    def put(self, name: str, write: Callable[[BinaryIO], bool]) -> None:
        """Let `write` fill an object, which has its name when it is complete; if it says no, none has that name."""

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Say in errors which chunk or shard they are about."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, f"{what}: {error.strerror or error}") from error
        raise ChunkError(f"{what}: {error or type(error).__name__}") from error

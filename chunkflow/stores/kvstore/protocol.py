"""Contract of folders and buckets: objects by their keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

import numpy as np


class ChunkError(ValueError):
    """A chunk or a shard that contradicts the array's metadata. The store makes a `ReadError` of it."""


class GoneError(ChunkError):
    """A chunk that is missing, or is no longer the one that there was: it is not damaged."""


class FileError(ChunkError):
    """One of the files of an array that cannot be read, or holds something else than the others."""


class StoredObject(Protocol):
    """An object that is being read."""

    @property
    def size(self) -> int | None:
        """Its bytes; None if only a further request would tell."""

    @property
    def stamp(self) -> Hashable:
        """Identity of the content, as far as it is known: it changes when the object is replaced."""

    def read(self, start: int, length: int, out: np.ndarray | None = None) -> np.ndarray:
        """Read `length` bytes from `start` (from the end if negative), into `out` if given.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        ChunkError
            It is too short.
        """


class Objects(Protocol):
    """The objects of an array: files of a folder, or objects of a bucket."""

    @property
    def gap(self) -> int:
        """Largest gap, in bytes, between two parts of an object that are fetched by one request."""

    def fetch(self, name: str, check: Callable[[int], None], out: np.ndarray | None = None) -> np.ndarray:
        """Fetch all of an object. `check` is called with its size first. `out`, if given, is large enough.

        Without `out` the result may lie in memory into which the same thread fetches its next object.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        """

    def absent(self, name: str) -> None:
        """Raise a `ChunkError` if an object that is not there may have been removed since the array was opened."""

    def open(self, name: str) -> AbstractContextManager[StoredObject]:
        """Open an object for reading in parts. `FileNotFoundError` may be raised now or by the first read."""

    def put(self, name: str, write: Callable[[BinaryIO], bool]) -> None:
        """Let `write` fill an object, which appears when it is complete; if it returns False, the object is removed."""

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Name the chunk or shard in errors that are raised inside."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, f"{what}: {error.strerror or error}") from error
        raise ChunkError(f"{what}: {str(error) or type(error).__name__}") from error

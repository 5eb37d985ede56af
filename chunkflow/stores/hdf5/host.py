"""HDF5 files that runs of this process write datasets into. Several sinks of a file share it.

A new file has a hidden name until one of its datasets is complete. In a file that exists, HDF5 changes metadata that
other datasets need, in many writes: what a run that is killed between them leaves, nobody can read. So these writes go
into memory (`chunkflow.stores.publication.patch`), and into the file as one when the dataset is complete. Elements are
written at positions that the file did not use before.

A file that this process has open already is an exception: HDF5 has its metadata, and writes them itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import h5py
from h5py import h5f

from chunkflow.errors import ArgumentError, WriteError
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.patch import Overlay
from chunkflow.stores.publication.record import CLAIM, hidden, lock
from chunkflow.stores.publication.settle import settle

# Files are made, named and removed by one thread at a time.
LOCK = threading.RLock()


class Host:
    """A file, the number of sinks that write into it, and the dataset that was the last to come."""

    def __init__(self, path: str) -> None:
        self.path, self.sinks, self.dataset = path, 0, ""
        self.claim: Claim | None = None
        self.is_released = False
        """Whether others have had the file under its name, with what was written under the claim."""
        self._overlay: Overlay | None = None
        self._file: Any = None
        if not os.path.lexists(path):
            self.claim = Claim(path)
        elif not is_open(path):
            self._edit()

    def _edit(self) -> None:
        """Let metadata go into memory, unless another program has the file."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if lock(fd):
                self.claim, self._overlay = Claim(self.path, patches=True), Overlay(fd)
        finally:
            if self._overlay is None:
                os.close(fd)

    @property
    def is_new(self) -> bool:
        """Whether the file has a hidden name."""
        return self.claim is not None and not self.claim.patches

    @property
    def at(self) -> str:
        """Path of the file's bytes now."""
        return self.claim.partial if self.claim is not None and self.is_new else self.path

    @property
    def file(self) -> Any:
        """The open `h5py.File`."""
        if not self._file:
            if self._overlay is not None:
                self._file = h5py.File(self._overlay, "r+")
            elif self.is_new:
                # Its members are in the order in which they were made: else netCDF's library writes no more into it.
                self._file = h5py.File(self.at, "a", track_order=True)
            else:
                self._file = self._shared()
        return self._file

    def _shared(self) -> Any:
        try:
            return h5py.File(self.path, "r+")
        except OSError as error:
            if "already open for read-only" not in str(error):
                message = f"cannot open {self.path} to write {self.dataset!r}: {error}{why(error)}"
                raise WriteError(message, path=self.path, cause=error) from error
            raise ArgumentError(
                f"{self.path} cannot be written to while it is open for reading only in this process (as an input that "
                "h5py has to decode is): close it, open it with mode='r+', or write to another file"
            ) from None

    @property
    def size(self) -> int:
        """Bytes of the file, with those for which there is room only."""
        self.file.flush()
        return self._overlay.size if self._overlay is not None else os.stat(self.at).st_size

    def seal(self) -> list[Claim]:
        """Close the file, whose metadata are complete. Gives what is to be published."""
        self._close()
        if self.claim is not None and self._overlay is not None:
            os.fsync(self._overlay.fd)  # the elements, before metadata say where they are
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.claim.partial)
            self._overlay.save(self.claim.partial, _flags(self._overlay.fd))
        return [self.claim] if self.claim is not None else []

    def release(self) -> None:
        """Let others have the file, which has its name and its new metadata."""
        self._close()
        self.is_released, self.claim = True, None
        overlay, self._overlay = self._overlay, None
        if overlay is not None:
            with contextlib.suppress(OSError):  # all is on the disk
                overlay.close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def leave(self) -> None:
        """Called by each sink at its end. The last one closes the file; what was not published is gone then."""
        self.sinks -= 1
        if self.sinks:
            return
        with contextlib.suppress(KeyError):
            del _hosts[self.path]
        claim = self.claim  # None once it is published: who has published ends it
        try:
            self._close()
        finally:
            if self._overlay is not None and self.claim is not None and self.claim.is_held:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._overlay.fd, self._overlay.size_before)
            try:
                self.release()
            finally:
                if claim is not None:
                    claim.end()


_hosts: dict[str, Host] = {}


def enter(path: str, dataset: str) -> Host:
    """The host of a file, with one more sink."""
    host = _hosts.get(path) or Host(path)
    _hosts[path], host.dataset = host, dataset
    host.sinks += 1
    return host


def opened(path: str) -> Any:
    """An HDF5 file, open for reading: as it was before a run that writes into it, which has locked it.

    What a run that was killed had begun to write is finished or undone first.
    """
    path = os.path.realpath(path)
    claim = hidden(path, "", CLAIM)
    if os.path.lexists(claim):
        settle(claim)
        with LOCK:
            host = _hosts.get(path)
            if host is not None and host.claim is not None:
                return h5py.File(Overlay(os.open(path, os.O_RDONLY | os.O_CLOEXEC)), "r")
    return h5py.File(path, "r")


def _flags(fd: int) -> tuple[int, int]:
    """Where a file says that it is open (HDF5's format specification, section II.A)."""
    head = os.pread(fd, 9, 0)
    if head[:8] != b"\x89HDF\r\n\x1a\n":
        return 0, 0  # there is a user block
    return (20, 24) if head[8] < 2 else (11, 12)


def is_open(path: str) -> bool:
    """Whether this process has the file open in HDF5. A dataset keeps it open when its `h5py.File` is gone."""
    facts, names = os.stat(path), set[bytes]()
    for held in h5f.get_obj_ids(types=h5f.OBJ_ALL):
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            names.add(h5f.get_name(held))
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            if os.path.samestat(os.stat(os.fsdecode(name)), facts):
                return True
    return False


def why(error: OSError) -> str:
    """What keeps a file from being opened, as the end of a sentence; empty if that is unknown.

    >>> why(OSError("unable to lock file, errno = 11")), why(OSError("no such file"))
    ('. Another program has it open, or another library here, as netCDF4: close it there', '')
    """
    locked = "unable to lock file" in str(error)
    return ". Another program has it open, or another library here, as netCDF4: close it there" if locked else ""

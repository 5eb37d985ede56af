"""What dead runs left: finished where that was committed, else undone and removed."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from chunkflow.stores.kvstore.folder import remove_unfinished
from chunkflow.stores.paths import blocks_place, passes_place
from chunkflow.stores.publication.journal import Journal
from chunkflow.stores.publication.move import DOCUMENTS, Move, inode_of, remove
from chunkflow.stores.publication.patch import Patch
from chunkflow.stores.publication.record import (
    CLAIM,
    OLD,
    PARTIAL,
    STATE,
    hidden,
    hidden_beside,
    is_at,
    lines,
    lock,
    say,
    steps,
)
from chunkflow.system.deferred import at


@dataclass(frozen=True)
class Left:
    """What a dead run left.

    Attributes
    ----------
    claim : str
        Path of the file that says so: the claim of a run, or a file that was being written.
    output : str
        Path of the output that was being written; empty if that is unknown.
    nbytes : int
        Bytes that it takes of the disk.
    is_begun : bool
        Whether the run had begun to give its outputs their names.
    resumes : bool
        Whether the same call with ``resume=True`` goes on with it.
    """

    claim: str
    output: str
    nbytes: int
    is_begun: bool = False
    resumes: bool = False


class _Record:
    """What a claim says. Hidden names lie beside it, whatever it says: nothing else is ever renamed or removed."""

    def __init__(self, path: str, fd: int, said: list[dict[str, Any]]) -> None:
        first, self._fd = said[0], fd
        output, called, self.inner = str(first["output"]), first["hidden"], os.path.normpath(str(first["inner"]))
        is_here = os.sep not in output and called == os.path.basename(path)
        if not is_here or os.path.isabs(self.inner) or self.inner.startswith(os.pardir):
            raise ValueError(f"{path} is no claim")
        self.pid = int(first["pid"])
        self.root = os.path.join(os.path.dirname(path), output)
        self.partial, self.old, self.state = hidden_beside(path)
        self.resumes = bool(first.get("resumes"))
        ready = next((line for line in reversed(said) if "ready" in line), None)
        self.leader = None if ready is None else str(ready["leader"])
        decided = next((line for line in reversed(said) if "commit" in line), None)
        self.committed = None if decided is None else bool(decided["commit"])
        self.followers: list[str] = [] if decided is None else [str(each) for each in decided["followers"]]
        self.done = bool(self.committed) and any("done" in line for line in said)
        self.undone = "undone" in said[-1]
        self.added = next((line["added"] for line in said if "added" in line), None)
        self.lengths = next((line["lengths"] for line in said if "lengths" in line), None)
        self.change: Move | Patch | None = None
        if ready is not None and "depth" not in ready:
            self.change = Patch(self.partial, self.root)
        elif ready is not None:
            partial, name = steps(self.partial, self.root, self.inner)[int(ready["depth"])]
            inner, replaces = os.path.relpath(self.output, name), bool(ready.get("replaces"))
            self.change = Move(partial, name, self.old, int(ready["ready"]), inner, int(ready["leaf"]), replaces)

    @property
    def is_begun(self) -> bool:
        """Whether some outputs of the run may have their names, and others not."""
        return (self.change is not None or self.lengths is not None) and not self.undone

    def undo(self) -> None:
        """Take the names back, and say so."""
        if self.is_begun and self.change is not None:
            self.change.back()
            os.lseek(self._fd, 0, os.SEEK_END)
            say(self._fd, {"undone": True})

    def withdraw(self) -> None:
        """Say that nothing is to be finished after all."""
        os.lseek(self._fd, 0, os.SEEK_END)
        say(self._fd, {"commit": False, "followers": self.followers})

    @property
    def output(self) -> str:
        return os.path.normpath(os.path.join(self.root, self.inner))


@contextmanager
def _open(path: str) -> Iterator[_Record | None]:
    """What a claim of a dead run says; None if it says nothing.

    Raises
    ------
    FileNotFoundError
        The claim is gone.
    BlockingIOError
        Its run is alive, or it is another user's, who settles it.
    ValueError
        It is no claim.
    """
    if not is_claim(os.path.basename(path)):
        raise ValueError(f"{path} is no claim")
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        mine = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
        if not mine or not lock(fd):
            raise BlockingIOError(path)
        if not is_at(fd, path):
            raise FileNotFoundError(path)
        said = lines(fd)
        yield _Record(path, fd, said) if said else None
    finally:
        os.close(fd)


def settle(path: str, *, keep: bool = False) -> bool:
    """Settle a claim that is left. False if its run is alive, or it is another user's.

    With `keep`, what a later run can go on with stays. What was to be finished is undone if something else has taken
    one of its names since.
    """
    try:
        with _open(path) as record:
            leader = record and record.leader
        follows = leader is not None and leader != path
        there = follows and os.path.lexists(str(leader))
        if there:
            with suppress(FileNotFoundError):
                _decided(str(leader), keep)
        _decided(path, keep, done=follows and not there)
    except FileNotFoundError:
        return True
    except (BlockingIOError, PermissionError):
        return False
    return True


def finish(path: str) -> None:
    """Finish what a dead run had agreed on, or undo it, if it was a file or directory at this path that decided.

    What can be gone on with stays.
    """
    claim = hidden(path, "", CLAIM)
    left = False
    with suppress(OSError, ValueError, KeyError), _open(claim):
        left = True
    if left:
        settle(claim, keep=True)


def call_of(path: str) -> dict[str, str] | None:
    """What the call is that left a claim which can be gone on with, or had published its output; None if there is none.

    What its outputs had agreed on is finished first, and the claims stay: by them the same call knows its outputs.
    """
    with suppress(OSError, ValueError, KeyError):
        with _open(path) as record:
            leader = record and record.leader
        with suppress(FileNotFoundError), _open(leader or path) as record:
            if record is not None and record.committed and not record.done:
                _forward(record)
                for follower in record.followers:
                    with suppress(FileNotFoundError), _open(follower) as other:
                        _forward(other)
        with _open(path) as record:
            return Journal(record.state).call if record is not None and record.resumes else None
    return None


def _forward(record: _Record | None) -> None:
    if record is not None and record.change is not None:
        record.change.forward(lambda: None)


def hidden_by(output: str) -> str | None:
    """Hidden path of an output that has a claim, be its run alive or not; None if there is no claim."""
    try:
        fd = os.open(hidden(output, "", CLAIM), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        said = lines(fd)
    finally:
        os.close(fd)
    return _Record(hidden(output, "", CLAIM), -1, said).partial if said else None


def _is_published(path: str, record: _Record) -> bool:
    """Whether the claim that decides for an output has decided to publish it, or has done so and is gone."""
    if record.leader in (None, path) or not record.is_begun:
        return False
    try:
        with _open(str(record.leader)) as leader:
            return leader is not None and bool(leader.committed)
    except FileNotFoundError:
        change = record.change
        return isinstance(change, Move) and inode_of(change.name) == change.inode
    except (OSError, ValueError, KeyError):
        return False


def take_up(path: str) -> int | None:
    """The open and locked claim of a dead run that can be gone on with; None if there is none of that kind.

    What it had begun to publish is undone first. If it had agreed on its outputs, they are to be finished instead.
    """
    fd = -1
    try:
        with _open(path) as record:
            if record is None or not record.resumes or record.committed or _is_published(path, record):
                return None
            record.undo()
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if lock(fd) and is_at(fd, path):
            os.lseek(fd, 0, os.SEEK_END)
            return fd
    except (OSError, ValueError, KeyError):
        pass
    if fd >= 0:
        os.close(fd)
    return None


def _decided(path: str, keep: bool, done: bool = False) -> None:
    """Finish or undo one claim, and those that it decides for."""
    try:
        _settled(path, committed=False, done=done, keep=keep)
    except FileExistsError:
        with _open(path) as record:
            if record is None or not record.committed:
                raise
            record.withdraw()
        _settled(path, committed=False, keep=keep)


def _settled(path: str, committed: bool, done: bool = False, keep: bool = False) -> None:
    """Finish or undo one claim, and those that it decides for, as it says, else as the arguments do."""
    with _open(path) as record:
        if record is not None:
            if record.committed is not None:
                committed, done = record.committed, record.done
            if record.change is not None and not done:
                if committed:
                    record.change.forward(lambda: None)
                else:
                    record.undo()
            for follower in record.followers:
                with suppress(FileNotFoundError):
                    _settled(follower, committed, done, keep)
            if keep and record.resumes and not committed:
                return
            if record.resumes and os.path.isdir(record.partial):
                for name in filter(is_claim, os.listdir(record.partial)):  # of passes: one may decide for the output
                    finish(os.path.join(record.partial, name[1 : -len(CLAIM)]))
            if record.added is not None:
                with suppress(FileNotFoundError):
                    if not record.added:  # to a zarr array, whose length is put last: only chunks may be unfinished
                        remove_unfinished(record.output, record.pid)
                    else:
                        cut_off(record.output, int(record.added["size"]), bytes.fromhex(record.added["header"]))
            if record.lengths is not None:
                at("chunkflow.stores.zarr.groups:cut_back")(record.output, record.root, record.lengths)
            for hidden_path in (record.state, record.partial, record.old):  # none goes on with what is there in part
                remove(hidden_path)
            if record.inner != "." and record.lengths is None:
                _renew(record)
        else:  # it was lost in a power cut: nothing had its name yet, or had been replaced
            partial, _, state = hidden_beside(path)
            remove(state)
            remove(partial)
        os.unlink(path)


def cut_off(path: str, size: int, header: bytes) -> None:
    """Cut a file back to a size, if its header is the one that does not speak of what lies behind."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.pread(fd, len(header), 0) == header and os.fstat(fd).st_size > size:
            os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _renew(record: _Record) -> None:
    """Collect the metadata of the groups above an array anew: its run may have died before."""
    renew = at("chunkflow.stores.zarr.consolidated:renew_local")
    for _, group in reversed(steps(record.partial, record.root, record.inner)[:-1]):
        if os.path.isdir(group):
            for name in os.listdir(group):  # what the run was about to put there
                document, _, ending = name.partition(f".{record.pid}-")
                if document in DOCUMENTS and ending.endswith(PARTIAL):
                    os.unlink(os.path.join(group, name))
            renew(group, os.path.relpath(record.output, group))


def is_claim(name: str) -> bool:
    """Whether a file in a directory is called as claims are."""
    return name.startswith(".") and name.endswith(CLAIM)


def left_in(directory: str) -> list[Left]:
    """What dead runs left in a directory and below. Runs that are alive, and other users', are not listed."""
    found: list[Left] = []
    for above, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.endswith((PARTIAL, OLD, STATE))]
        found += _left_among(above, sorted(names))
    return found


def beside(output: str) -> list[Left]:
    """What dead runs that wrote an output left beside it."""
    found: list[Left] = []
    beside = {os.path.dirname(path) for path in (output, passes_place(output), blocks_place(output))}
    for above in beside | {*_zarr_roots(output)}:
        with suppress(OSError):
            found += [left for left in _left_among(above, sorted(os.listdir(above))) if _is_of(left, output)]
    return found


def _is_of(left: Left, output: str) -> bool:
    """Whether something belongs to an output, or to intermediate results of it."""
    rest = left.output.removeprefix(output)
    return left.output in (passes_place(output), blocks_place(output)) or (
        rest != left.output and (not rest or rest in SCRATCH)
    )


def _zarr_roots(output: str) -> Iterator[str]:
    """Directories in which an output's claim may be: above each group."""
    above = os.path.dirname(output)
    while above != os.path.dirname(above) and (above.endswith(".zarr") or _is_group(above)):
        above = os.path.dirname(above)
        yield above


def _is_group(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in DOCUMENTS)


def _left_among(above: str, names: list[str]) -> Iterator[Left]:
    """What dead runs left among the files of a directory."""
    for name in names:
        path = os.path.join(above, name)
        if is_claim(name):
            with suppress(OSError, ValueError, KeyError), _open(path) as record:
                if record is None:
                    yield Left(path, "", sum(map(_bytes, hidden_beside(path))))
                else:
                    nbytes = sum(map(_bytes, (record.partial, record.old, record.state)))
                    if record.added:  # to a .npy file, behind its end
                        nbytes += max(0, os.path.getsize(record.output) - int(record.added["size"]))
                    yield Left(path, record.output, nbytes, record.is_begun, record.resumes)
        elif name.endswith(PARTIAL) and (written := _WRITTEN.fullmatch(name)):
            with suppress(OSError):
                facts = os.lstat(path)
                if time.time() - facts.st_mtime > STALE and facts.st_uid == os.geteuid():
                    yield Left(path, os.path.join(above, written[1]), facts.st_blocks * 512)


def end(left: Left, *, keep: bool = False) -> bool:
    """Settle or remove something that is left, as `settle` does. False if it is not, after all."""
    if "://" in left.claim:
        return bool(at("chunkflow.stores.zarr.create_remote:clean_at")(left.claim))
    if is_claim(os.path.basename(left.claim)):
        return settle(left.claim, keep=keep)
    remove(left.claim)
    return True


SCRATCH = (".rechunk", ".fft", ".steps")
"""How intermediate results are called, behind the output's name."""

STALE = 600.0
"""Seconds after which a file that a thread was writing, a chunk say, belongs to a dead run: nobody takes so long."""

_WRITTEN = re.compile(r"(.+)\.\d+-\d+\.partial")


def _bytes(path: str) -> int:
    """Bytes of the disk that a file, or all in a directory, takes."""
    total = 0
    with suppress(OSError):
        total += os.lstat(path).st_blocks * 512
    for above, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(above, name)).st_blocks * 512
    return total

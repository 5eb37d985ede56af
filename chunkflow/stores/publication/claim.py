"""A run's claim on an output: a hidden file beside it, which the run has locked and which says what it makes.

A claim is there as long as its run. Who finds one that nobody has locked knows that its run is dead, and what it left.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from chunkflow.errors import OutputBusyError, ResumeError
from chunkflow.stores.paths import blocks_place, passes_place
from chunkflow.stores.publication.journal import Journal
from chunkflow.stores.publication.move import inode_of, remove
from chunkflow.stores.publication.record import CLAIM, hidden, hidden_beside, is_at, lines, lock, say, steps
from chunkflow.stores.publication.settle import settle, take_up


def claim_path(name: str, root: str) -> str:
    """Path of the claim on an output: see `Claim`."""
    inner = os.path.relpath(name, root)
    purpose = "" if inner == "." else hashlib.sha256(os.fsencode(inner)).hexdigest()[:12]
    return hidden(root, purpose, CLAIM)


class Claim:
    """The claim on one output.

    Parameters
    ----------
    name : str
        Path of the output.
    root : str, optional
        Outermost thing that the output may create, beside which all is hidden: a zarr group, else the output itself.
    patches : bool
        Whether an existing file is changed, and not replaced: `partial` is what `chunkflow.stores.publication.patch`
        keeps of it.
    overwrite : bool
        Whether the output may take the name of something else.
    resumes : bool
        Whether a later run may go on with it. `is_left` then says whether this one goes on with what is left.
    called : str, optional
        What the output is called, where that is another name.
    told : str, optional
        What it is called in errors, where that is yet another one.

    Raises
    ------
    OutputBusyError
        A run that is alive writes the output.
    ResumeError
        A run has left what may be resumed, and this one does not resume it.
    OSError
        The directory takes no file.
    """

    def __init__(
        self,
        name: str,
        root: str | None = None,
        *,
        patches: bool = False,
        overwrite: bool = False,
        resumes: bool = False,
        called: str = "",
        told: str = "",
    ) -> None:
        self.name, self.root, self.called = name, root or name, called or name
        self._told = told or self.called
        self.patches, self.overwrite, self.resumes = patches, overwrite, resumes
        self.inner = os.path.relpath(name, self.root)
        self.path = claim_path(name, self.root)
        refuse_left(self.called, own=self.path)
        self.is_left, self._fd = False, -1
        self._fd = self._made()
        self.partial, self.old, self.state = hidden_beside(self.path)
        process = {"pid": os.getpid(), "host": socket.gethostname(), **({"resumes": True} if resumes else {})}
        try:
            if not self.is_left:
                for path in (self.state, self.partial):  # of a claim that is gone
                    remove(path)
                where = {
                    "output": os.path.basename(self.root),
                    "inner": self.inner,
                    "hidden": os.path.basename(self.path),
                }
                self.say({**where, **process})
        except BaseException:
            self.end()
            raise
        _held.add(self.path)

    def _made(self) -> int:
        """Make the claim's file and lock it. What a dead run left under the name is settled first, or gone on with."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            try:
                fd = os.open(self.path, flags, 0o600)
            except FileExistsError:
                if (left := take_up(self.path)) is not None:
                    if self.resumes:
                        self.is_left = True
                        return left
                    os.close(left)
                    raise _left_early(self._told) from None
                if not settle(self.path):
                    raise _busy(self._told, self.path) from None
                continue
            if lock(fd) and is_at(fd, self.path):
                return fd
            os.close(fd)  # another run has taken the new file for one that is left

    @property
    def is_held(self) -> bool:
        """Whether it has neither ended nor been left."""
        return self._fd >= 0

    lasts = False
    """Whether what is written stays when the system is shut down."""

    @property
    def journal(self) -> Journal:
        """How far the run has come."""
        return Journal(self.state)

    @property
    def token(self) -> str:
        """What is known of what lies under the hidden name."""
        return str(inode_of(self.steps[-1][0]))

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Each part of the output's path from the root on: under its hidden name, and as it will be called."""
        return steps(self.partial, self.root, self.inner)

    def say(self, line: dict[str, Any], *, sync: bool = False) -> None:
        """Add a line to the claim's file."""
        say(self._fd, line)
        if sync:
            os.fsync(self._fd)

    def end(self, *, published: bool = False) -> None:
        """Remove all that is hidden, and the claim. Idempotent; what cannot be removed is left to later runs.

        The state goes first, so that none goes on with what is there in part; last of what was `published`, so that the
        same call knows its output until nothing is left.
        """
        if self._fd < 0:
            return
        try:
            with suppress(OSError):
                for path in (self.partial, self.old, self.state) if published else (self.state, self.partial, self.old):
                    remove(path)
                os.unlink(self.path)
        finally:
            self.leave()

    def leave(self) -> None:
        """Leave all as it is to the run that settles it. Idempotent."""
        fd, self._fd = self._fd, -1
        _held.discard(self.path)
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


_held: set[str] = set()
"""Claims of this process."""


def refuse_left(output: str, own: str = "", *, also: Sequence[str] = ()) -> None:
    """Refuse an output of which another call than the present one makes passes or blocks, or has left some.

    Raises
    ------
    OutputBusyError
        The call is alive.
    ResumeError
        It has ended early.

    `own` is the present call's own claim, `also` are paths of further ones that may be another call's.
    """
    for path in [*also, *[hidden(place(output), "", CLAIM) for place in (passes_place, blocks_place)]]:
        if path in _held or path == own or not os.path.lexists(path):
            continue
        if (left := take_up(path)) is not None:
            os.close(left)
            raise _left_early(output)
        if not settle(path):
            raise _busy(output, path)


def _left_early(name: str) -> ResumeError:
    return ResumeError(
        f"a run that made {name} has ended early, and can be resumed: give resume=True to the same call, or remove "
        "what it has left by `chunkflow clean`"
    )


def _busy(name: str, path: str) -> OutputBusyError:
    return OutputBusyError(
        f"{name} is being written by {_who(path)}, which has locked {path}: wait for it, or choose another output"
    )


def _who(path: str) -> str:
    """The run that has a claim, for people."""
    with suppress(OSError, ValueError, IndexError, KeyError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            first = lines(fd)[0]
        finally:
            os.close(fd)
        return f"process {first['pid']} on {first['host']}"
    return "another run"

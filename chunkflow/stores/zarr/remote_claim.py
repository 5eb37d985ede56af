"""A run's claim on an array at a URL, and its journal: small objects beside the chunks.

One says which run makes the array. It is put only if it is not there, so that of two runs one is refused. A run that
can be gone on with has two more: what the call is, and how far it has come. A store has no locks: that a run is alive
is known of this machine's processes, and of others by the time of their last note.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np

from chunkflow.errors import OutputBusyError, ResumeError, WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.kvstore.folder import append
from chunkflow.stores.kvstore.fsspec import Bucket

OWN = ".chunkflow."
MAKER, CALL, STEPS, VALUES = f"{OWN}maker", f"{OWN}call", f"{OWN}steps", OWN + "values-{}"
"""Whose the array is; what the call is, how far it has come, and the accumulators, in two places in turn."""

KEYS = (re.compile(r"c([./]\d+)*"), re.compile(r"\d+([./]\d+)*|\.zarray|\.zattrs"))
"""What chunks of either encoding are called; beside those of the second, the metadata of format 2."""

NOTE = 2.0
"""Seconds between two notes of the finished steps, at least: one for each step would double the requests."""

SHARE = 200
"""So many times longer than a note takes is the time between two."""

SILENCE = 600.0
"""Seconds without a note after which a run of another machine is taken for dead."""


class Maker:
    """Says that a run of this process makes an array at a URL, until it ends.

    Attributes
    ----------
    run : str
        The run's name.
    follows : bool
        Whether a dead run had begun to make the array, and has left chunks.

    Raises
    ------
    OutputBusyError
        Another run that is alive, as far as can be told, makes it. Whether one of another machine is alive can be told
        for a while after it has begun.
    """

    def __init__(self, bucket: Bucket, called: str) -> None:
        self.run, self._bucket, self.follows = os.urandom(8).hex(), bucket, False
        _held.add(self.run)
        try:
            raw = json.dumps(_who(self.run)).encode()
            while not bucket.create(MAKER, raw):
                found = told(bucket, MAKER) or {}
                if found.get("run") == self.run:  # a request that failed was obeyed
                    break
                _refuse_alive(found, called)
                self.follows = True
                bucket.remove(MAKER)
        except BaseException:
            _held.discard(self.run)
            raise

    @property
    def is_held(self) -> bool:
        """Whether it has not ended."""
        return self.run in _held

    def end(self) -> None:
        """Say no longer that it is made. Idempotent."""
        if self.is_held:
            _held.discard(self.run)
            with suppress(Exception):
                if (told(self._bucket, MAKER) or {}).get("run") == self.run:
                    self._bucket.remove(MAKER)


class RemoteClaim:
    """The claim on an array at a URL, and the journal of its run: see `Claim` and `Journal`.

    Parameters
    ----------
    bucket : Bucket
        The array's objects.
    called : str
        The array's URL.
    remove : callable
        Removes objects by their names.

    Raises
    ------
    OutputBusyError
        A run that is alive makes the array, as far as can be told.
    """

    lasts = True
    """Whether what is put stays when the system is shut down."""

    def __init__(self, bucket: Bucket, called: str, remove: Callable[[Iterable[str]], None]) -> None:
        self.called, self.journal = called, self
        self._bucket, self._remove = bucket, remove
        self._steps, self._kept, self._nbytes, self._next, self._is_begun = 0, 0, 0, 0.0, False
        self._publishes = False
        self.maker = Maker(bucket, called)
        self._run = self.maker.run
        try:
            found, steps = told(bucket, CALL), told(bucket, STEPS)
            _refuse_alive(steps or {}, called)
        except BaseException:
            self.maker.end()
            raise
        self.is_left = found is not None
        self.token = self._run if found is None else str(found["token"])
        self.made: dict[str, Any] = {} if found is None else dict(found["made"])
        """What else is to be known of the array that is being made: its `metadata`, and the `kind` of its keys."""
        self._call: Any = None if found is None else found["call"]

    @property
    def is_held(self) -> bool:
        """Whether it has neither ended nor been left."""
        return self.maker.is_held

    @property
    def call(self) -> dict[str, str] | None:
        """See `Journal.call`."""
        return None if self._call is None else {str(key): str(value) for key, value in self._call.items()}

    def begin(self, call: dict[str, str]) -> None:
        """See `Journal.begin`. `made` must be complete."""
        self._note()  # it is alive
        _put(self._bucket, CALL, {"call": call, "token": self.token, "made": self.made})

    note = begin

    def go_on(self) -> tuple[int, Any, list[np.ndarray]]:
        """See `Journal.go_on`."""
        found = told(self._bucket, STEPS) or {"steps": 0, "kept": 0, "nbytes": 0}
        self._steps, self._kept, self._nbytes = int(found["steps"]), int(found["kept"]), int(found["nbytes"])
        self._publishes = bool(found.get("publishes"))  # the run before may have done so
        self._note()
        if not self._kept:
            return self._steps, [], []
        raw = self._bucket.get(VALUES.format(self._kept), most=self._nbytes)
        if raw is None:
            raise FileNotFoundError(f"{VALUES.format(self._kept)} is gone")
        with np.load(io.BytesIO(raw.data), allow_pickle=False) as file:
            names = json.loads(file["names"].tobytes())
            return self._steps, names, [file[f"arr_{i}"] for i in range(len(file.files) - 1)]

    def finished(self, steps: int) -> None:
        """See `Journal.finished`. It is noted every few seconds."""
        self._steps = steps
        if time.monotonic() >= self._next:
            with translated(WriteError, f"cannot note how far {self.called} has come", self.called):
                self._note()

    def publishes(self) -> None:
        """Note that the metadata are put next: what is there then is this run's."""
        self._publishes = True
        self._note()

    def keep(self, steps: int, values: Sequence[np.ndarray], names: Any) -> None:
        """See `Journal.keep`."""
        before = self._kept
        self._steps, self._kept = steps, 2 if before == 1 else 1
        said = np.frombuffer(json.dumps(names).encode(), np.uint8)

        def save(out: BinaryIO) -> bool:
            np.savez(out, *values, names=said)
            self._nbytes = out.tell()
            return True

        self._bucket.put(VALUES.format(self._kept), save)
        self._note()
        if before:
            self._bucket.remove(VALUES.format(before))

    def close(self) -> None:
        """See `Journal.close`: nothing is open."""

    def check(self) -> None:
        """Raise an `OutputBusyError` if another run has taken the array over."""
        found = told(self._bucket, STEPS)
        if found is not None and found["run"] != self._run:
            raise OutputBusyError(
                f"{self.called} has been taken over by process {found['pid']} on {found['host']}, which took this run "
                "for dead: it goes on there"
            )

    def _note(self, **how: bool) -> None:
        began = time.monotonic()
        if self._is_begun:
            self.check()
        far = {"steps": self._steps, "kept": self._kept, "nbytes": self._nbytes, "publishes": self._publishes}
        _put(self._bucket, STEPS, {**far, **_who(self._run), **how})
        self._is_begun, now = True, time.monotonic()
        self._next = now + max(NOTE, SHARE * (now - began))

    def leave(self) -> None:
        """Say how far the run has come, and that it has ended. Idempotent."""
        if self.is_held:
            if self._is_begun:
                with suppress(Exception):  # else it is taken for dead later
                    self._note(left=True)
            self.maker.end()

    def end(self, *, published: bool = False) -> None:
        """Remove all that tells of the run, and the chunks unless they are `published`. Idempotent.

        None goes on with what is there in part: that no step is finished is said first.
        """
        if not self.is_held:
            return
        with suppress(Exception):
            if not published and (self._is_begun or self.is_left):
                self._steps = self._kept = 0
                self._note()
                self._remove(name for name in self._bucket.names() if KEYS[self.made["kind"]].fullmatch(name))
            forget(self._bucket)
        self.maker.end()


_held: set[str] = set()
"""Runs of this process."""


def left(bucket: Bucket) -> dict[str, Any] | None:
    """What a dead run has said of its call, and of the array; None if there is none, or one that is alive."""
    found = told(bucket, CALL)
    return None if found is None or _alive(told(bucket, STEPS) or {}) else found


def has_begun(bucket: Bucket) -> bool:
    """Whether a dead run had begun to make the array."""
    found = told(bucket, MAKER)
    return found is not None and not _alive(found)


def has_published(bucket: Bucket, metadata: bytes) -> bool:
    """Whether a dead run has put these metadata of an array. Without its steps it was removing what tells of it."""
    found, steps = left(bucket), told(bucket, STEPS)
    return bool(found and (steps is None or steps.get("publishes")) and found["made"]["metadata"].encode() == metadata)


def refuse(bucket: Bucket, called: str) -> None:
    """Refuse an array of which a run has left what may be gone on with (`ResumeError`), or one that is alive writes."""
    _refuse_alive(told(bucket, STEPS) or {}, called)
    if told(bucket, CALL) is not None:
        raise ResumeError(
            f"a run that made {called} has ended early, and can be resumed: give resume=True to the same call, or "
            "remove what it has left by `chunkflow clean`"
        )


def forget(bucket: Bucket) -> None:
    """Remove all that tells of a run, for its `Maker`. What the call is goes last."""
    for place in (1, 2):  # of which a run that is killed may not have noted one
        bucket.remove(VALUES.format(place))
    bucket.remove(STEPS)
    bucket.remove(MAKER)
    bucket.remove(CALL)


def _refuse_alive(found: dict[str, Any], called: str) -> None:
    if who := _alive(found):
        raise OutputBusyError(f"{called} is being written by {who}: wait for it, or choose another output")


def _who(run: str) -> dict[str, Any]:
    """What a run says of itself."""
    pid = os.getpid()
    return {"run": run, "pid": pid, "host": socket.gethostname(), "born": _born(pid), "time": time.time()}


def _alive(found: dict[str, Any]) -> str:
    """The run that says so, for people, if it is alive as far as can be told; else an empty text."""
    if not found or found.get("left"):
        return ""
    if found["host"] != socket.gethostname():
        age = time.time() - found["time"]
        return "" if age > SILENCE else f"process {found['pid']} on {found['host']}, {age:.0f} seconds ago"
    is_mine = found["pid"] == os.getpid()
    alive = found["run"] in _held if is_mine else found["born"] == _born(found["pid"])
    return f"process {found['pid']} on {found['host']}" if alive else ""


def _born(pid: int) -> str:
    """When a process began, since the system did; empty if there is none."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]
    return ""


def told(bucket: Bucket, name: str) -> dict[str, Any] | None:
    """What an object says; None if there is none, or what is no JSON."""
    found = bucket.get(name)
    if found is None:
        return None
    try:
        read = json.loads(found.tobytes())
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def _put(bucket: Bucket, name: str, what: dict[str, Any]) -> None:
    raw = json.dumps(what).encode()
    bucket.put(name, lambda file: append(file, raw) >= 0)

"""Identities of sources: what they were when they were opened, to see that they stay so while they are read.

A file is known by its inode, its size and its times, a folder by its inode, an object behind a URL by what its server
says of it. So a check costs one request to the file system or the server for each source, whatever its size. Chunks
that are files of their own are known by one time: none that was changed later than its array was opened is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from chunkflow.errors import ReadError
from chunkflow.stores.paths import file_system_of
from chunkflow.system.context import run_variable
from chunkflow.system.deferred import at

Facts = Mapping[str, int | str]
"""What is known of a file, folder or object. Nothing: it is not there, or nobody tells."""

SLACK = 60 * 10**9
"""Nanoseconds in which the clock of a file server may be ahead: changes that soon after the opening go unnoticed."""

_SERVED = {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
"""File systems whose times are those of another machine's clock."""

_SAID = {"inode": "is another file", "size": "has another size", "modified": "was modified", "etag": "has another ETag"}
"""What differs, in words. A new time of change alone: of its permissions, its names, or of its elements in disguise."""


def file_facts(path: str, names: Iterable[str] = ("inode", "size", "modified", "changed")) -> Facts:
    """What is known of a file or folder, or only some of it; nothing if it is not there."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:  # whoever opens it says so, too
        return {"error": error.strerror or str(error)}
    known = {
        "inode": found.st_ino,
        "size": found.st_size,
        "modified": found.st_mtime_ns,
        "changed": found.st_ctime_ns,
    }
    return {name: known[name] for name in names}


def _facts_now(place: str, names: Iterable[str]) -> Facts:
    if "://" in place:
        found: Facts = at("chunkflow.stores.kvstore.fsspec:facts_of_url")(place)
        return found
    return file_facts(place, names)


@dataclass(frozen=True)
class Identity:
    """What an array was at one moment: what is known of its files or objects, by their paths or URLs.

    `taken` is that moment, in nanoseconds since 1970. It does not count in a comparison.

    >>> with open("x.bin", "wb") as file:
    ...     _ = file.write(b"1234")
    >>> was = Identity.of_files("x.bin", ["x.bin"])
    >>> was.matches(), Identity.from_json(was.to_json()) == was
    (True, True)
    >>> with open("x.bin", "ab") as file:
    ...     _ = file.write(b"5")
    >>> was.matches(), was.difference(was.now()).startswith("x.bin has another size (5, not 4)")
    (False, True)
    """

    name: str
    places: Mapping[str, Facts]
    taken: int

    @classmethod
    def of_files(cls, name: str, paths: Sequence[str], folders: Sequence[str] = ()) -> Identity:
        """Identity of an array in these files; of `folders` only the inode counts."""
        taken = time.time_ns()
        places = {path: file_facts(path) for path in paths}
        return cls(name, places | {path: file_facts(path, ["inode"]) for path in folders}, taken)

    def now(self) -> Identity:
        """The identity of what lies in the same places now."""
        taken = time.time_ns()
        return Identity(self.name, {place: _facts_now(place, known) for place, known in self.places.items()}, taken)

    def matches(self) -> bool:
        """Whether the same is there now, as far as can be told."""
        return not self.difference(self.now())

    def difference(self, other: Identity) -> str:
        """What differs in another one, in words; empty if nothing does. What only one of them knows is no difference.

        The order of words: `other` is the later one.
        """
        found = [_difference(place, known, other.places.get(place)) for place, known in self.places.items()]
        found += [f"{place} was not there before" for place in other.places if place not in self.places]
        return "; ".join(filter(None, found))

    def check_chunks(self) -> None:
        """Raise a `ReadError` if a chunk in a file of its own was changed, added or removed since."""
        for place in (place for place, known in self.places.items() if known.keys() == {"inode"}):
            since = self.taken + (SLACK if _is_served(place) else 0)
            for folder, names in _folders(place):
                for path in (folder, *(os.path.join(folder, name) for name in names)):
                    changed = file_facts(path, ["changed"]).get("changed", 0)
                    if isinstance(changed, int) and changed > since:
                        raise ReadError(
                            f"{path} was changed at {_told('changed', changed)}, since the run began that this one "
                            f"resumes ({_told('changed', self.taken)}), so a result could mix what {self.name} held "
                            "before and after. Remove what is left by `chunkflow clean`, and run again",
                            path=self.name,
                        )

    def loosened(self) -> Identity:
        """The same, but what is in the files may change."""
        places = {place: {k: v for k, v in known.items() if k == "inode"} for place, known in self.places.items()}
        return Identity(self.name, places, self.taken)

    def without(self, name: str) -> Identity:
        """The same, but nothing of one name is known."""
        places = {place: {k: v for k, v in known.items() if k != name} for place, known in self.places.items()}
        return Identity(self.name, places, self.taken)

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and dictionaries, from which `from_json` makes an equal one."""
        return {"name": self.name, "places": {k: dict(v) for k, v in self.places.items()}, "taken": self.taken}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Identity:
        """The identity that `to_json` was asked for; `ValueError` for anything else."""
        try:
            places = {str(place): {str(k): v for k, v in known.items()} for place, known in found["places"].items()}
            return cls(str(found["name"]), places, int(found["taken"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{found!r} is no identity: {error!r}") from None

    def __str__(self) -> str:
        return "; ".join(
            f"{place} ({', '.join(f'{name} {_told(name, value)}' for name, value in known.items()) or 'unknown'})"
            for place, known in self.places.items()
        )


def _folders(path: str) -> Iterator[tuple[str, list[str]]]:
    """All folders below one, with the names of their files. Links are followed, and none twice."""
    met = set[tuple[int, int]]()
    for folder, inner, names in os.walk(path, followlinks=True):
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in met:
            inner.clear()
            continue
        met.add((found.st_dev, found.st_ino))
        yield folder, names


def _difference(place: str, was: Facts, now: Facts | None) -> str:
    if now is None or (not was and not now):
        return "" if now is not None else f"{place} is no part of it any more"
    if not now:
        return f"{place} is not there any more" if "inode" in was or "there" in was else ""
    if not was:
        return f"{place} was not there before"
    if "error" in now and "error" not in was:
        return f"{place} cannot be looked at any more ({now['error']})"
    for name in was:
        if name in now and was[name] != now[name]:
            said = _SAID.get(name, "was changed, or its permissions or names were")
            return f"{place} {said} ({_told(name, now[name])}, not {_told(name, was[name])})"
    return ""


def _told(name: str, value: int | str) -> str:
    if name in ("modified", "changed") and isinstance(value, int):
        whole, rest = divmod(value, 10**9)
        return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d}"
    return str(value)


class Guard:
    """What a source was when it was opened. A run asks it at the end whether that still holds.

    `since` is the time in nanoseconds after which no chunk may have been changed that lies in a file of its own; 0 if
    any may, since the run itself writes there. `advice` is what else to say of such a chunk.
    """

    def __init__(self, identity: Identity, look: Callable[[], Identity] | None = None, *, folder: str = "") -> None:
        self.identity, self._look, self.advice = identity, look, ""
        self._slack = SLACK if folder and _is_served(folder) else 0
        self.since = identity.taken + self._slack if folder else 0

    @classmethod
    def of_files(cls, name: str, *paths: str, folder: str = "") -> Guard:
        """Guard of an array in these files, or in a folder of chunks with these files of metadata."""
        return cls(Identity.of_files(name, paths, [folder] if folder else []), folder=folder)

    @property
    def places(self) -> frozenset[str]:
        """The files, folders and URLs."""
        return frozenset(self.identity.places)

    def go_on(self, earlier: Identity) -> str:
        """What differs from what an earlier run has read, in words; empty if nothing does.

        Then no chunk may have been changed since that one began.
        """
        found = earlier.difference(self.identity)
        if not found and self.since:
            self.since = min(self.since, earlier.taken + self._slack)
            self.advice = (
                ". The run that this one goes on with began before that: `chunkflow clean` removes what it left"
            )
        return found

    def release(self) -> None:
        """Let the array be written to by the run itself. It may still not be replaced."""
        self.identity, self.since = self.identity.loosened(), 0

    def check(self) -> None:
        """Raise a `ReadError` if the source is not what it was."""
        now = self.identity.now() if self._look is None else self._look()
        self.compare(now, "while it was read")

    def compare(self, now: Identity, when: str) -> None:
        """Raise a `ReadError` that says when, if the identity is another one."""
        if found := self.identity.difference(now):
            name = self.identity.name
            raise ReadError(
                f"{name} was changed {when}, so a result could mix what it held before and after: {found}. "
                "Run again when nothing writes to it",
                path=name,
            )


@lru_cache(64)
def _is_served_device(device: int) -> bool:
    kind = file_system_of(device)
    return kind in _SERVED or kind.startswith("fuse.")


def _is_served(folder: str) -> bool:
    try:
        return _is_served_device(os.stat(folder).st_dev)
    except OSError:
        return False


# -- The sources of a call -------------------------------------------------------------------------------------------

_opened: ContextVar[dict[frozenset[str], Guard] | None] = run_variable("chunkflow_sources", None)
"""The guards of what the present call has opened, by their places: a later pass reads the same."""


@contextmanager
def steady() -> Iterator[None]:
    """Let all passes inside read the same arrays. Inside another one it does nothing."""
    if _opened.get() is not None:
        yield
        return
    token = _opened.set({})
    try:
        yield
    finally:
        _opened.reset(token)


_earlier: ContextVar[Sequence[Identity]] = run_variable("chunkflow_earlier_sources", ())
"""What the arrays were when an earlier call read them, with which the present one goes on."""


@contextmanager
def going_on(earlier: Sequence[Identity]) -> Iterator[None]:
    """Let all passes inside read the arrays that an earlier call has read, and no chunk that was changed since."""
    token = _earlier.set(earlier)
    try:
        yield
    finally:
        _earlier.reset(token)


def go_on(guards: Iterable[Guard], earlier: Sequence[Identity]) -> None:
    """See `Guard.go_on`, for all guards. `ReadError` if an array is another one than it was."""
    known = {frozenset(each.places): each for each in earlier}
    for guard in guards:
        if (was := known.get(guard.places)) is not None and (found := guard.go_on(was)):
            raise ReadError(
                f"{guard.identity.name} was changed since the run began that this one resumes: {found}. Remove "
                "what is left by `chunkflow clean`, and run again",
                path=guard.identity.name,
            )


def begin(guards: Sequence[Guard]) -> None:
    """Note what a pass has opened. `ReadError` if an earlier pass of the call opened something else there."""
    go_on(guards, _earlier.get())
    opened = _opened.get()
    if opened is None:
        return
    for guard in guards:
        first = opened.setdefault(guard.places, guard)
        if first is not guard:
            first.compare(guard.identity, "between two passes over it")
            if first.since and guard.since:
                guard.since = first.since


def release(guards: Sequence[Guard], written: Iterable[str]) -> None:
    """Let the run change what it writes to itself: files and folders that exist."""
    changing = {found for path in written if (found := _inode(path))}
    if not changing:
        return
    for guard in guards:
        if any(_inode(place) in changing for place in guard.places):
            guard.release()
    opened = _opened.get() or {}
    for places in [places for places in opened if any(_inode(place) in changing for place in places)]:
        del opened[places]


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino

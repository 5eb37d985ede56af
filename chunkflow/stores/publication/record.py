"""The file of a claim: its name, its lock, and its lines, each with a checksum."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import zlib
from typing import Any

PARTIAL, OLD, STATE, CLAIM = ".partial", ".old", ".state", ".claim"
LONGEST = 255 - len(PARTIAL)  # bytes of a name on Linux's file systems, which may get one ending more


def hidden(path: str, purpose: str, ending: str) -> str:
    """A hidden name beside a path, of a legal length whatever the path's: the same for the same purpose.

    >>> hidden("/d/u.npy", "2f", ".partial"), len(hidden("/" + 255 * "x", "", ".claim"))
    ('/d/.u.npy.2f.partial', 248)
    """
    parent, name = os.path.split(path)
    tail = f".{purpose}{ending}" if purpose else ending
    encoded = os.fsencode(name)
    if 1 + len(encoded) + len(tail) > LONGEST:
        tail = f".{hashlib.sha256(encoded).hexdigest()[:16]}{tail}"
        name = encoded[: LONGEST - 1 - len(tail)].decode(errors="ignore")  # no half of a letter
        tail = "_" * (LONGEST - 1 - len(os.fsencode(name)) - len(tail)) + tail
    return os.path.join(parent, f".{name}{tail}")


def hidden_beside(claim: str) -> tuple[str, str, str]:
    """Where a claim's array is hidden, what it replaces, and how far it has come: known where the claim says nothing.

    A power cut may leave a claim that is empty, with all that was written later.

    >>> hidden_beside("/d/.u.npy.claim")
    ('/d/.u.npy.claim.partial', '/d/.u.npy.claim.old', '/d/.u.npy.claim.state')
    """
    return claim + PARTIAL, claim + OLD, claim + STATE


def steps(partial: str, root: str, inner: str) -> list[tuple[str, str]]:
    """Each part of a path from its root on: under the root's hidden name, and as it will be called.

    >>> steps("/d/.r.partial", "/d/r", "u")
    [('/d/.r.partial', '/d/r'), ('/d/.r.partial/u', '/d/r/u')]
    """
    found = [(partial, root)]
    for part in inner.split(os.sep) if inner != "." else ():
        found.append((os.path.join(found[-1][0], part), os.path.join(found[-1][1], part)))
    return found


def lock(fd: int) -> bool:
    """Lock a file; False if another run has locked it. Where the file system knows no locks there are no rivals."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def is_at(fd: int, path: str) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def say(fd: int, line: dict[str, Any]) -> None:
    """Add a line."""
    text = json.dumps(line).encode()
    whole = b"%08x %b\n" % (zlib.crc32(text), text)
    while whole:
        whole = whole[os.write(fd, whole) :]


def lines(fd: int) -> list[dict[str, Any]]:
    """The lines, up to the first that is not whole."""
    found = []
    for line in os.pread(fd, 1 << 20, 0).split(b"\n")[:-1]:
        crc, _, text = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            break
        found.append(json.loads(text))
    return found

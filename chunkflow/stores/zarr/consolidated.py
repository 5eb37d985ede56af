"""Consolidated metadata of groups, which readers believe: kept true when an array is created below.

What is said of the array, and of groups on the way to it, is replaced by what they say themselves. Nothing else is
looked at: zarr may not understand an array beside it, and a group may have thousands.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chunkflow.stores.kvstore.folder import append, put

Load = Callable[[str], bytes | None]
"""Gives a document of a group or of what lies below it, by its path in the group; None where there is none."""

Store = Callable[[str, bytes], None]
"""Puts a document of a group in the place of the one with that name."""

_lock = threading.Lock()


def renew(load: Load, store: Store, member: str) -> None:
    """Put what a `member` of a group says of itself into the group's metadata, in each format that has it there."""
    parts = member.split("/")
    nodes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    document = _parsed(load("zarr.json"))
    if isinstance(known := (document.get("consolidated_metadata") or {}).get("metadata"), dict):
        for node in nodes:
            said = _parsed(load(f"{node}/zarr.json"))
            if said.get("node_type") == "group":  # its members stand beside it, not in it
                said["consolidated_metadata"] = document["consolidated_metadata"] | {"metadata": {}}
            _replace(known, node, said)
        store("zarr.json", _text(document))
    document = _parsed(load(".zmetadata"))
    if isinstance(known := document.get("metadata"), dict):
        for name in [f"{node}/{name}" for node in nodes for name in (".zarray", ".zgroup", ".zattrs")]:
            _replace(known, name, _parsed(load(name)))
        store(".zmetadata", _text(document))


def renew_local(group: str, member: str) -> None:
    """As `renew`, of a group in a directory."""

    def load(name: str) -> bytes | None:
        path = Path(group, name)
        return path.read_bytes() if path.is_file() else None

    def store(name: str, document: bytes) -> None:
        put(os.path.join(group, name), lambda file: append(file, document) >= 0)

    with _alone(group):
        renew(load, store, member)


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Let no other run put its member into the same documents meanwhile: what it puts there would be lost."""
    with _lock:
        opened = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(opened, fcntl.LOCK_EX)
            yield
        finally:
            os.close(opened)


def _parsed(document: bytes | None) -> dict[str, Any]:
    """What a document says; nothing if there is none, or it is damaged, so that nobody believes it."""
    with contextlib.suppress(ValueError):
        found = json.loads(document or b"{}")
        if isinstance(found, dict):
            return found
    return {}


def _replace(known: dict[str, Any], name: str, said: dict[str, Any]) -> None:
    if said:
        known[name] = said
    else:
        known.pop(name, None)


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()

"""Documents of metadata: read whole, but never more than an array can need. Does not load zarr."""

from __future__ import annotations

import os
import re
from typing import Any

from chunkflow.system.files import open_regular

MOST = 4 << 20
"""Most bytes of a document that describes an array."""

MOST_ITEMS = 1 << 18
"""Most values in it: in memory each takes many times as much as in the document."""

_GROUP = re.compile(rb'"node_type"\s*:\s*"group"')


def read_document(path: str) -> Any:
    """What a file of metadata says; `ValueError` if it is no JSON, or says too much; `OSError` if it cannot be read."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(min(size, MOST + 1))
    try:
        return parsed(raw)
    except ValueError as error:
        raise ValueError(f"{os.path.basename(path)} is damaged: {error}") from error


def parsed(raw: bytes) -> Any:
    """What a document says; `ValueError` if it is no JSON, or says too much.

    >>> parsed(b'{"shape": [2, 3]}')
    {'shape': [2, 3]}
    >>> parsed(b"[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    import json  # not at the top: it takes a millisecond

    if len(raw) > MOST:
        raise ValueError(f"it has more than the {MOST} bytes that metadata of an array may have")
    if sum(map(raw.count, (b",", b"[", b"{"))) > MOST_ITEMS:
        raise ValueError(f"it has more than the {MOST_ITEMS} values that metadata of an array may have")
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_large_group(path: str) -> bool:
    """Whether a file is too large to describe an array, and says that it describes a group.

    A group may describe all of its members too. These are not looked at.
    """
    import mmap  # not at the top: it is seldom needed

    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size <= MOST:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            return _GROUP.search(whole) is not None

"""Names on the file system: what exists, what may be replaced, and what to call a half-made output."""

from __future__ import annotations

import os
import uuid

from chunkflow.errors import ArgumentError, OutputExistsError


def resolve(path: str | os.PathLike[str]) -> str:
    """Absolute path with symbolic links followed, so that a later rename replaces what they point to."""
    return os.path.realpath(os.fspath(path))


def hidden_sibling(path: str, suffix: str) -> str:
    """Unused name beside `path`, hidden from listings and on the same file system."""
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.{uuid.uuid4().hex}.{suffix}")


def require_directory(path: str, wanted_for: str) -> None:
    """Refuse an output whose directory does not exist."""
    if not os.path.isdir(path):
        raise ArgumentError(f"the output {wanted_for} cannot be created: there is no directory {path}")


def refuse_existing(path: str, overwrite: bool) -> None:
    """Refuse an output that exists, unless it may be replaced.

    Raises
    ------
    OutputExistsError
        Something is stored under `path`, and `overwrite` is false.
    """
    if not overwrite and os.path.lexists(path):
        raise OutputExistsError(
            f"{path} exists: pass overwrite=True to replace it once the run has succeeded, "
            "or pass the array itself, opened for writing, to write into it"
        )

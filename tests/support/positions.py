"""Files that can't be written through a mapping: on file systems that reserve nothing, or on a full disk."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest


def no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def at_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all files be written at positions: no block can be reserved, no page is known to be in memory."""

    def unsupported(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every write to a file fail for want of room, wherever it is on its way."""
    monkeypatch.setattr(
        "chunkflow.stores.file.strided_sink.FileSink.run", lambda *_: None
    )  # none is written beside `os`
    monkeypatch.setattr("chunkflow.stores.file.strided.StridedFile.mapped", no_space)
    monkeypatch.setattr(os, "pwritev", no_space)

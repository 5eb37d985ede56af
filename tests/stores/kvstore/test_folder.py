"""The files of a local array."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

from chunkflow.stores.identity import Guard
from chunkflow.stores.kvstore.folder import Folder, append
from chunkflow.stores.kvstore.protocol import ChunkError
from chunkflow.system import native


def test_parts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(20)))
    with Folder(str(tmp_path)).open("x") as file:
        np.testing.assert_array_equal(file.read(5, 10), np.arange(5, 15))
        np.testing.assert_array_equal(file.read(-3, 3), [17, 18, 19])
        with pytest.raises(ChunkError, match="ends 7 bytes early"):
            file.read(17, 10)
        with pytest.raises(ChunkError, match="20 bytes, where the last 21 are wanted"):
            file.read(-21, 3)


@pytest.mark.parametrize("compiled", [True, False])
def test_files_that_were_changed_later(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "staging", None)
    path, out = str(tmp_path / "x"), np.empty(4, np.uint8)
    (tmp_path / "x").write_bytes(b"1234")
    changed = os.stat(path).st_ctime_ns
    assert native.read_file(path, out) == native.read_file(path, out, changed) == 4
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))):
        native.read_file(path, out, changed - 1)
    guard = Guard.of_files("x", folder=str(tmp_path))
    guard.since = os.stat(tmp_path).st_ctime_ns - 1
    late = Folder(str(tmp_path), guard)
    for read in (lambda: late.fetch("x", lambda size: None), lambda: late.status("x"), lambda: _opened(late)):
        with pytest.raises(ChunkError, match="it was changed after the array was opened"):
            read()
    with pytest.raises(ChunkError, match="it may have been removed"):
        late.absent("c/0/0")
    guard.release()
    assert len(late.fetch("x", lambda size: None)) == 4
    late.absent("c/0/0")


def _opened(folder: Folder) -> None:
    with folder.open("x"):
        pass


def test_what_lies_under_a_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.get_ident", lambda: 7)
    hidden, other = tmp_path / f"x.{os.getpid()}-7.partial", tmp_path / "other"
    other.write_bytes(b"mine")
    for plant in (lambda: hidden.symlink_to(other), lambda: hidden.write_bytes(b"left"), lambda: os.mkfifo(hidden)):
        plant()
        Folder(str(tmp_path)).put("x", lambda file: append(file, b"new") > 0)
        assert (tmp_path / "x").read_bytes() == b"new"
        assert other.read_bytes() == b"mine"
        assert not hidden.exists()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_pipe_or_a_device_is_no_object(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "staging", None)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    folder = Folder(str(tmp_path))
    for name in ("pipe", "device"):
        assert not len(folder.fetch(name, lambda size: None)), "they have no bytes, and are not waited for"
        with pytest.raises(OSError, match="pipe or a device"), folder.open(name):
            pass

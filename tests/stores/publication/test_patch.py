"""Bytes of a file that change as one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.errors import WriteError
from chunkflow.stores.publication.patch import DIRECT, Overlay, Patch

WRITES = st.lists(st.tuples(st.integers(0, 60), st.binary(min_size=1, max_size=20)), max_size=12)


@given(old=st.binary(max_size=50), writes=WRITES, size=st.integers(0, 90), reads=st.lists(st.integers(0, 90)))
def test_it_seems_written_and_is_not(
    tmp_path_factory: pytest.TempPathFactory, old: bytes, writes: list[tuple[int, bytes]], size: int, reads: list[int]
) -> None:
    """Against a file that is written; then the file is changed, and changed back."""
    folder = tmp_path_factory.mktemp("patch")
    path, plain = folder / "u.h5", folder / "plain"
    path.write_bytes(old)
    plain.write_bytes(old)
    with path.open("rb") as file, plain.open("r+b") as other:
        overlay = Overlay(os.dup(file.fileno()))
        for at, data in writes:
            for each in (overlay, other):
                each.seek(at)
                each.write(data)
        size = max(size, len(old))  # a file that has lost its end could not be changed back
        overlay.truncate(size)
        other.truncate(size)
        other.flush()
        for at in reads:
            overlay.seek(at)
            other.seek(at)
            assert overlay.read(7) == other.read(7)
        overlay.save(str(folder / "kept"))
        overlay.close()
    assert path.read_bytes() == old
    patch = Patch(str(folder / "kept"), str(path))
    patch.forward(lambda: None)
    assert path.read_bytes() == plain.read_bytes()
    patch.forward(lambda: None)
    assert path.read_bytes() == plain.read_bytes()
    patch.back()
    assert path.read_bytes()[: len(old)] == old


def test_long_writes_behind_the_end_take_no_memory(tmp_path: Path) -> None:
    """Nothing refers to them before the patch. Those over what is kept in memory join it."""
    path = tmp_path / "u.h5"
    path.write_bytes(b"abcdefgh")
    overlay = Overlay(os.open(path, os.O_RDWR))
    for at, data in ((4, b"E"), (DIRECT, b"x" * DIRECT), (2 * DIRECT + 9, b"y"), (2 * DIRECT, b"z" * DIRECT)):
        overlay.seek(at)
        overlay.write(data)
    assert path.read_bytes() == b"abcdefgh".ljust(DIRECT, b"\0") + b"x" * DIRECT
    overlay.seek(0)
    whole = overlay.read(-1)
    assert whole == b"abcdEfgh".ljust(DIRECT, b"\0") + b"x" * DIRECT + b"z" * DIRECT
    overlay.save(str(tmp_path / "kept"))
    overlay.close()
    Patch(str(tmp_path / "kept"), str(path)).forward(lambda: None)
    assert path.read_bytes() == whole


@pytest.fixture
def changed(tmp_path: Path) -> tuple[Path, Patch]:
    """A file of letters, of which some are to be capitals."""
    path = tmp_path / "u.h5"
    path.write_bytes(b"abcdefgh")
    with path.open("rb") as file:
        overlay = Overlay(os.dup(file.fileno()))
        for at in (1, 5):
            overlay.seek(at)
            overlay.write(b"XYZ")
        overlay.save(str(tmp_path / "kept"))
        overlay.close()
    return path, Patch(str(tmp_path / "kept"), str(path))


@pytest.mark.parametrize("now", [b"abcdefgh", b"aXYZefgh", b"aXYdefgh", b"aXYZeXYZ"])
def test_what_was_begun_is_finished_or_undone(changed: tuple[Path, Patch], now: bytes) -> None:
    path, patch = changed
    path.write_bytes(now)
    patch.forward(lambda: None)
    assert path.read_bytes() == b"aXYZeXYZ"
    path.write_bytes(now)
    patch.back()
    assert path.read_bytes() == b"abcdefgh"


def test_what_others_have_changed_since_is_left_alone(changed: tuple[Path, Patch]) -> None:
    path, patch = changed
    path.write_bytes(b"a???efgh")
    with pytest.raises(WriteError, match="changed by another program"):
        patch.forward(lambda: None)
    assert path.read_bytes() == b"a???efgh"


def test_damage_is_seen(changed: tuple[Path, Patch]) -> None:
    path, patch = changed
    kept = bytearray(Path(patch.kept).read_bytes())
    kept[-1] ^= 1
    Path(patch.kept).write_bytes(kept)
    with pytest.raises(WriteError, match="damaged"):
        patch.forward(lambda: None)
    assert path.read_bytes() == b"abcdefgh"
    assert os.path.exists(patch.kept)

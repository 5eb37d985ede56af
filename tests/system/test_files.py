"""A directory is removed with all that is in it, and with little memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.budgets import traced

from chunkflow.system.files import AT_ONCE, remove_tree


def test_all_that_is_in_a_directory_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"it stays")
    place = tmp_path / "place"
    for number in range(3):
        (place / f"inner {number}" / "innermost").mkdir(parents=True)
        (place / f"inner {number}" / "innermost" / "file").touch()
    (place / "link").symlink_to(tmp_path / "kept")
    os.link(tmp_path / "kept" / "file", place / "same")
    remove_tree(place)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_bytes() == b"it stays"


def test_links_and_files_are_no_directories(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(NotADirectoryError):
            remove_tree(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "nothing")
    assert len(list(tmp_path.iterdir())) == 3


def test_many_files_take_little_memory(tmp_path: Path) -> None:
    def taken(remove: object) -> int:
        place = tmp_path / "many"
        place.mkdir()
        for number in range(4 * AT_ONCE):
            (place / f"c.{number}").touch()
        with traced() as peak:
            remove(place)  # type: ignore[operator]
            most = peak()
        assert not place.exists()
        return most

    assert taken(remove_tree) < taken(shutil.rmtree) / 2

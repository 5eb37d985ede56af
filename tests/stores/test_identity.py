"""Identities of sources: what differs, in words; passes of one call, and clocks of servers."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from chunkflow.errors import ReadError
from chunkflow.stores import identity
from chunkflow.stores.identity import Guard, Identity, begin, release, steady

FILE: dict[str, int | str] = {"inode": 7, "size": 80, "modified": 10**18, "changed": 10**18}
DIFFERENCES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (FILE, FILE, ""),
    (FILE, FILE | {"size": 8}, "x has another size (8, not 80)"),
    (FILE, FILE | {"inode": 8, "size": 8}, "x is another file (8, not 7)"),
    (
        FILE,
        FILE | {"modified": 10**18 + 1},
        "x was modified (2001-09-09 01:46:40.000000001, not 2001-09-09 01:46:40.000000000)",
    ),
    (
        FILE,
        FILE | {"changed": 10**18 + 10**9},
        "x was changed, or its permissions or names were "
        "(2001-09-09 01:46:41.000000000, not 2001-09-09 01:46:40.000000000)",
    ),
    (FILE, {}, "x is not there any more"),
    ({}, FILE, "x was not there before"),
    (FILE, {"error": "Input/output error"}, "x cannot be looked at any more (Input/output error)"),
    ({"there": 1, "etag": "a"}, {"there": 1, "etag": "b"}, "x has another ETag (b, not a)"),
    ({"there": 1, "etag": "a"}, {"there": 1}, ""),  # the server does not tell at times
    ({"there": 1}, {}, "x is not there any more"),
    ({}, {}, ""),
]


@pytest.mark.parametrize(("was", "now", "words"), DIFFERENCES)
def test_what_differs_in_words(was: Any, now: Any, words: str) -> None:
    one, other = Identity("x", {"x": was}, 1), Identity("x", {"x": now}, 2)
    assert one.difference(other) == words
    assert Identity.from_json(one.to_json()) == one


def test_other_places_differ() -> None:
    one, other = Identity("x", {"x": FILE}, 1), Identity("x", {"y": FILE}, 1)
    assert one.difference(other) == "x is no part of it any more; y was not there before"


@pytest.mark.parametrize("wrong", [{}, {"name": "x", "places": 3, "taken": 1}, {"name": "x", "places": {}}, []])
def test_what_is_no_identity_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="is no identity"):
        Identity.from_json(wrong)


def test_a_file_that_cannot_be_looked_at_is_a_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").touch()
    guard = Guard.of_files("x", str(tmp_path / "x"))

    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(identity.os, "stat", fail)
    with pytest.raises(ReadError, match=r"x cannot be looked at any more \(Input/output error\)"):
        guard.check()


def test_passes_of_one_call_read_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "x")

    def opened() -> Guard:
        return Guard.of_files(path, path, folder=str(tmp_path))

    Path(path).write_bytes(b"1")
    with steady():
        first, later = opened(), opened()
        begin([first])
        begin([later])
        assert later.since == first.since, "what was changed since the first pass is refused"
        Path(path).write_bytes(b"12")
        with steady(), pytest.raises(ReadError, match="was changed between two passes over it"):
            begin([opened()])
        release([], [path])  # the run wrote to it itself
        begin([opened()])
    begin([opened()])


def test_what_the_run_writes_to_may_still_not_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1")
    guard = Guard.of_files("x", str(path))
    release([guard], [str(tmp_path / "y"), str(path)])
    path.write_bytes(b"12")
    guard.check()
    (tmp_path / "z").write_bytes(b"12")
    os.replace(tmp_path / "z", path)
    with pytest.raises(ReadError, match="is another file"):
        guard.check()


def test_a_run_goes_on_with_what_an_earlier_one_read(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    Path(path).write_bytes(b"1")
    earlier = Identity.from_json(Guard.of_files(path, path, folder=str(tmp_path)).identity.to_json())
    later = Guard.of_files(path, path, folder=str(tmp_path))
    assert later.since > earlier.taken
    assert later.go_on(earlier) == ""
    assert later.since == earlier.taken, "what was changed between the two is refused"
    Path(path).write_bytes(b"12")
    assert "has another size (2, not 1)" in Guard.of_files(path, path, folder=str(tmp_path)).go_on(earlier)


@pytest.mark.parametrize(("kind", "slack"), [("ext4", 0), ("nfs4", identity.SLACK), ("fuse.sshfs", identity.SLACK)])
def test_clocks_of_servers_may_be_ahead(kind: str, slack: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "file_system_of", lambda device: kind)
    identity._is_served_device.cache_clear()
    guard = Guard.of_files("x", folder=str(tmp_path))
    identity._is_served_device.cache_clear()
    assert guard.since == guard.identity.taken + slack

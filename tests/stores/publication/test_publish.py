"""Outputs get their names together, whatever fails, and what dead runs left is finished or undone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chunkflow.errors import OutputBusyError, OutputExistsError
from chunkflow.stores.publication import move
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.publish import publish
from chunkflow.stores.publication.record import hidden
from chunkflow.stores.publication.settle import left_in, settle

NAMES = ("file", "folder", "group/inner/array", "group/other")
"""The first two are there before, and the group is not."""


def put(path: str, content: str, *, folder: bool) -> None:
    """A file, or a directory with a file."""
    if folder:
        os.makedirs(path, exist_ok=True)
        path = os.path.join(path, "zarr.json")
    Path(path).write_text(content)


def state(folder: Path) -> dict[str, str]:
    """What is visible."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def prepared(folder: Path) -> list[Claim]:
    """Finished outputs under hidden names."""
    claims = [
        Claim(str(folder / name), str(folder / name.split("/")[0]), overwrite=name in NAMES[:2]) for name in NAMES
    ]
    for claim in claims:
        put(claim.steps[-1][0], "new", folder=not claim.name.endswith("file"))
    return claims


OLD = {"file": "old", "folder/zarr.json": "old"}
NEW = {**dict.fromkeys(OLD, "new"), "group/inner/array/zarr.json": "new", "group/other/zarr.json": "new"}


@pytest.fixture(params=[True, False], ids=["exchange", "no exchange"])
def place(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two old outputs, on a file system that can exchange names or cannot."""
    for name in NAMES[:2]:
        put(str(tmp_path / name), "old", folder=name != "file")
    if not request.param:
        monkeypatch.setattr(move, "exchange", lambda one, other: False)
    return tmp_path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Lets something happen before the n-th change of a name."""

    def let(n: int, happen: Callable[[], None]) -> None:
        numbers = count()

        def wrapped(real: Any) -> Any:
            def call(*args: Any) -> Any:
                if next(numbers) == n:
                    happen()
                return real(*args)

            return call

        for owner, name in ((os, "rename"), (move, "rename_new"), (move, "exchange")):
            monkeypatch.setattr(owner, name, wrapped(getattr(owner, name)))

    return let


def clean(folder: Path) -> bool:
    return not list(folder.rglob(".*"))


def test_all_appear(place: Path) -> None:
    assert publish(prepared(place), lambda: state(place)) == NEW
    assert state(place) == NEW
    assert clean(place)


@pytest.mark.parametrize("n", range(8))
def test_a_name_that_fails_leaves_all_as_it_was(place: Path, n: int, steps: Any) -> None:
    def fail() -> None:
        raise PermissionError("not yours")

    claims = prepared(place)
    steps(n, fail)
    try:
        publish(claims, lambda: None)
    except PermissionError:
        assert state(place) == OLD
    else:
        assert state(place) == NEW
    for claim in claims:
        claim.end()
    assert clean(place)


def test_an_error_after_the_last_name_leaves_all_as_it_was(place: Path) -> None:
    claims = prepared(place)
    with pytest.raises(OSError, match="cannot be opened"):
        publish(claims, lambda: (_ for _ in ()).throw(OSError("cannot be opened")))
    assert state(place) == OLD
    for claim in claims:
        claim.end()
    assert clean(place)


def test_what_another_run_puts_into_a_new_group_stays(place: Path) -> None:
    """Before the group gets its name, and before its run fails."""
    claims = prepared(place)

    def fail() -> None:
        put(str(place / "group/third"), "other", folder=True)
        raise OSError("cannot be opened")

    with pytest.raises(OSError, match="cannot be opened"):
        publish(claims, fail)
    assert state(place) == OLD | {"group/third/zarr.json": "other"}
    publish(claims, lambda: None)
    assert state(place) == NEW | {"group/third/zarr.json": "other"}
    assert clean(place)


def test_a_group_that_another_run_makes_first_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims, real = prepared(place), move.rename_new

    def late(old: str, new: str) -> None:
        if new == str(place / "group"):
            put(str(place / "group/third"), "other", folder=True)
        real(old, new)

    monkeypatch.setattr(move, "rename_new", late)
    publish(claims, lambda: None)
    assert state(place) == NEW | {"group/third/zarr.json": "other"}
    assert clean(place)


@pytest.mark.parametrize("n", range(9))
def test_a_group_that_another_run_makes_at_any_moment_is_used(place: Path, n: int, steps: Any) -> None:
    """Also after it was known to be lacking: it is never exchanged with the run's own."""
    claims = prepared(place)
    steps(n, lambda: put(str(place / "group/third"), "other", folder=True))
    publish(claims, lambda: None)
    put(str(place / "group/third"), "other", folder=True)
    assert state(place) == NEW | {"group/third/zarr.json": "other"}
    assert clean(place)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["late", "early"])
def test_what_appears_under_a_name_meanwhile_stays(tmp_path: Path, folder: bool, before: bool, steps: Any) -> None:
    """It has come after the last look at the name, or before that."""
    claims = [Claim(str(tmp_path / name)) for name in ("a", "b")]
    for claim in claims:
        put(claim.partial, "new", folder=folder)
    other = str(tmp_path / "b")
    if before:
        put(other, "other", folder=folder)
    else:
        steps(1, lambda: put(other, "other", folder=folder))
    with pytest.raises(OutputExistsError, match="b exists"):
        publish(claims, lambda: None)
    assert [*state(tmp_path).values()] == ["other"]
    for claim in claims:
        claim.end()
    assert [*state(tmp_path).values()] == ["other"]
    assert clean(tmp_path)


def test_one_that_may_be_replaced_and_appears_late_is_replaced(tmp_path: Path, steps: Any) -> None:
    claim = Claim(str(tmp_path / "a"), overwrite=True)
    put(claim.partial, "new", folder=False)
    steps(0, lambda: put(claim.name, "other", folder=False))
    publish([claim], lambda: None)
    assert state(tmp_path) == {"a": "new"}
    assert clean(tmp_path)


@pytest.mark.parametrize("first", range(2))
def test_what_took_a_name_of_a_dead_run_stays(tmp_path: Path, first: int, steps: Any) -> None:
    """Its outputs were to be published together, so none of them is."""
    pid = os.fork()
    if not pid:
        try:
            claims = [Claim(str(tmp_path / name)) for name in ("a", "b")]
            for claim in claims:
                put(claim.partial, "new", folder=False)
            steps(1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            publish(claims, lambda: None)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    put(str(tmp_path / "b"), "other", folder=False)
    left = [left.claim for left in left_in(str(tmp_path))]
    for path in left[first:] + left[:first]:
        assert settle(path)
    assert state(tmp_path) == {"b": "other"}
    assert clean(tmp_path)


@pytest.mark.parametrize("n", range(9))
@pytest.mark.parametrize("first", range(4), ids=NAMES)
def test_a_run_that_is_killed_is_finished_or_undone(place: Path, n: int, first: int, steps: Any) -> None:
    """Whichever of its claims is found first."""
    pid = os.fork()
    if not pid:
        try:
            claims = prepared(place)
            steps(n, lambda: os.kill(os.getpid(), signal.SIGKILL))
            publish(claims, lambda: None)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    left = [left.claim for left in left_in(str(place))]
    assert bool(left) == os.WIFSIGNALED(status)
    for path in left[first:] + left[:first]:
        assert settle(path)
    assert state(place) in (OLD, NEW)
    assert clean(place)


def test_an_output_that_a_run_writes_is_refused_and_the_run_named(tmp_path: Path) -> None:
    claim = Claim(str(tmp_path / "file"))
    with pytest.raises(OutputBusyError, match=f"process {os.getpid()} on .*choose another output"):
        Claim(str(tmp_path / "file"))
    assert not settle(claim.path)
    assert not left_in(str(tmp_path))
    claim.end()
    Claim(str(tmp_path / "file")).end()
    assert clean(tmp_path)


def test_leftovers_are_listed_with_their_size(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        try:
            Path(Claim(str(tmp_path / "file")).partial).write_bytes(bytes(100_000))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    (left,) = left_in(str(tmp_path))
    assert left.output == str(tmp_path / "file")
    assert left.nbytes >= 100_000
    assert settle(left.claim)
    assert clean(tmp_path)


@pytest.mark.parametrize("length", [1, 200, 240, 255])
def test_names_of_any_length(tmp_path: Path, length: int) -> None:
    name = tmp_path / ("ä" * (length // 2) + "x" * (length % 2))
    claim = Claim(str(name))
    Path(claim.partial).write_text("new")
    publish([claim], lambda: None)
    assert name.read_text() == "new"
    assert clean(tmp_path)
    assert len({hidden(f"/{i}{'x' * 254}", "", ".claim") for i in range(3)}) == 3


@pytest.mark.parametrize(
    "said",
    [
        {"output": "../x", "inner": ".", "hidden": "ab", "pid": 1},
        {"output": "x", "inner": "../y", "hidden": "ab", "pid": 1},
        {"output": "x", "inner": "/y", "hidden": "ab", "pid": 1},
        {"output": "x", "inner": ".", "hidden": "../ab", "pid": 1},
    ],
)
def test_a_claim_that_points_elsewhere_is_no_claim(tmp_path: Path, said: dict[str, Any]) -> None:
    from chunkflow.stores.publication.record import say

    path = tmp_path / ".x.claim"
    with path.open("wb") as file:
        os.chmod(path, 0o600)
        say(file.fileno(), said)
    with pytest.raises(ValueError, match="is no claim"):
        settle(str(path))
    assert path.exists()


def test_a_claim_whose_first_line_is_not_whole_is_removed(tmp_path: Path) -> None:
    path = tmp_path / ".x.claim"
    path.write_bytes(b'12345678 {"outp')
    assert settle(str(path))
    assert not path.exists()


@pytest.mark.parametrize("length", [1, 255])
def test_a_power_cut_may_leave_a_claim_empty(tmp_path: Path, length: int) -> None:
    claim = Claim(str(tmp_path / ("x" * length)))
    put(claim.partial, "new", folder=True)
    put(claim.state, "how far", folder=True)
    claim.leave()
    os.truncate(claim.path, 0)
    [left] = left_in(str(tmp_path))
    assert settle(left.claim)
    assert not os.listdir(tmp_path)

"""Runs into arrays at URLs that end early, and later calls that go on with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pytest
import zarr
from engine.test_resume import CPU, QUANTILE, StoppedError, Stopping, X, stopping
from support.urlsinks import bucket

import chunkflow as cf
from chunkflow.cli import main
from chunkflow.engine import resume
from chunkflow.errors import OutputBusyError, OutputExistsError, ResumeError, WriteError
from chunkflow.stores.zarr import create_remote, remote_claim
from chunkflow.stores.zarr.remote_claim import CALL, STEPS, RemoteClaim

URL = "memory://runs/o.zarr"
CALL_OF: dict[str, Any] = {"resume": True, "name": "it", **CPU}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote_claim, "NOTE", 0.0)
    monkeypatch.setattr(remote_claim, "SHARE", 0)
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path


def stopped(folder: Path, out: Any = URL, at: int = 30, **options: Any) -> None:
    with pytest.raises(StoppedError):
        cf.map(Stopping(at), folder / "x.npy", out=out, **CALL_OF | options)


def there(url: str = URL) -> list[str]:
    return sorted(name.split("/")[0] for name in {name.split("/")[0] for name in bucket(url).names()})


@pytest.mark.parametrize("url", [URL, "memory://runs/g.zarr/deep/o"])
def test_the_same_call_puts_what_is_lacking(folder: Path, url: str) -> None:
    stopped(folder, url)
    assert there(url) == [CALL, STEPS, "c"]
    rest = Stopping()
    got = cf.map(rest, folder / "x.npy", out=url, **CALL_OF)
    np.testing.assert_array_equal(got[...], X)
    assert rest.calls < 60 - 20
    assert there(url) == ["c", "zarr.json"]


def test_what_has_not_begun_leaves_nothing(folder: Path) -> None:
    def failing(block: np.ndarray) -> np.ndarray:
        if STEPS in there():
            raise StoppedError
        return block

    stopped(folder, at=1)
    with pytest.raises(StoppedError):
        cf.map(failing, folder / "x.npy", out=URL, **CALL_OF)
    assert there() == []


def test_another_call_is_refused(folder: Path) -> None:
    stopped(folder)
    before = there()
    with pytest.raises(ResumeError, match="the function: it then, other now"):
        cf.map(Stopping(), folder / "x.npy", out=URL, **CALL_OF | {"name": "other"})
    for overwrite in (False, True):
        with pytest.raises(ResumeError, match="resume=True"):
            cf.map(Stopping(), folder / "x.npy", out=URL, overwrite=overwrite, **CPU)
        with stopping(1), pytest.raises(ResumeError, match="resume=True"):
            cf.median(folder / "x.npy", out=URL, overwrite=overwrite, device="cpu")
    assert there() == before


def test_steps_are_noted_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_claim, "NOTE", 1000.0)
    put: list[str] = []
    real = remote_claim._put
    monkeypatch.setattr(remote_claim, "_put", lambda place, name, what: (put.append(name), real(place, name, what)))
    stopped(folder, at=50)
    assert put == [STEPS, CALL, STEPS]
    rest = Stopping()
    cf.map(rest, folder / "x.npy", out=URL, **CALL_OF)
    assert rest.calls < 60 - 40


def test_values_between_steps_are_objects_too(folder: Path) -> None:
    call: dict[str, Any] = {"budget": "24kB", "device": "cpu", "axis": 0, "out": URL, "resume": True}
    with patch.multiple(resume, EVERY=0.0, SHARE=0), stopping(20), pytest.raises(StoppedError):
        cf.sum(folder / "x.npy", **call)
    assert len(there()) == 3
    with stopping(-1) as made:
        found = cf.sum(folder / "x.npy", **call)
    np.testing.assert_array_equal(found[...], cf.sum(X, axis=0, budget="24kB", device="cpu"))
    with stopping(-1) as whole:
        cf.sum(folder / "x.npy", **call | {"out": "memory://runs/other.zarr"})
    assert len(made) < len(whole) - 15
    assert there() == ["c", "zarr.json"]


def test_a_second_run_is_refused_while_the_first_is_alive(folder: Path) -> None:
    refused = list[str]()

    def calling(block: np.ndarray) -> np.ndarray:
        if not refused and STEPS in there():
            refused.append("")
            with pytest.raises(OutputBusyError, match="process"):
                cf.map(Stopping(), folder / "x.npy", out=URL, **CALL_OF)
            with pytest.raises(OutputBusyError, match="process"):
                cf.map(Stopping(), folder / "x.npy", out=URL, **CPU)
        return block

    got = cf.map(calling, folder / "x.npy", out=URL, **CALL_OF)
    assert refused
    np.testing.assert_array_equal(got[...], X)


def test_a_run_that_was_taken_over_ends(folder: Path) -> None:
    def taking(block: np.ndarray) -> np.ndarray:
        if STEPS in there():
            known = remote_claim.told(bucket(URL), STEPS)
            assert known is not None
            remote_claim._put(bucket(URL), STEPS, known | {"run": "another"})
        return block

    with pytest.raises(OutputBusyError, match="has been taken over by process"):
        cf.map(taking, folder / "x.npy", out=URL, **CALL_OF)
    assert there() == [CALL, STEPS, "c"]


@pytest.mark.parametrize(("age", "busy"), [(1.0, True), (1000.0, False)])
def test_runs_of_other_machines_are_taken_for_dead_after_a_while(age: float, busy: bool, folder: Path) -> None:
    stopped(folder)
    known = remote_claim.told(bucket(URL), STEPS)
    assert known is not None
    remote_claim._put(bucket(URL), STEPS, known | {"left": False, "host": "elsewhere", "time": known["time"] - age})
    if busy:
        with pytest.raises(OutputBusyError, match="elsewhere"):
            cf.map(Stopping(), folder / "x.npy", out=URL, **CALL_OF)
    else:
        np.testing.assert_array_equal(cf.map(Stopping(), folder / "x.npy", out=URL, **CALL_OF)[...], X)


def test_what_is_replaced_stays_until_the_new_one_is_complete(folder: Path) -> None:
    for _ in range(2):  # chunks have other names each time
        cf.copy(-X, URL, overwrite=True, device="cpu")
        stopped(folder, overwrite=True)
        np.testing.assert_array_equal(zarr.open_array(URL, mode="r")[...], -X)
        cf.map(Stopping(), folder / "x.npy", out=URL, overwrite=True, **CALL_OF)
        np.testing.assert_array_equal(zarr.open_array(URL, mode="r")[...], X)
    assert CALL not in there()


def test_what_is_left_is_found_and_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cf.leftovers(URL) == ()
    stopped(folder)
    (left,) = cf.leftovers(URL)
    assert (left.output, left.resumes) == (URL, True)
    assert cf.recover(URL) == ()
    assert main(["clean", URL, "--dry-run"]) == 0
    assert f"{URL}: chunks at a URL, to be removed" in capsys.readouterr().out
    assert cf.clean(URL) == (left,)
    assert there() == []


def test_a_run_that_cannot_be_published_is_gone_on_with(folder: Path) -> None:
    with patch.object(create_remote, "_put", side_effect=StoppedError), pytest.raises(WriteError):
        cf.map(Stopping(), folder / "x.npy", out=URL, **CALL_OF)
    assert there() == [CALL, STEPS, "c"]
    rest = Stopping()
    np.testing.assert_array_equal(cf.map(rest, folder / "x.npy", out=URL, **CALL_OF)[...], X)
    assert rest.calls <= 1  # a trial


def test_an_array_of_others_is_not_taken_for_the_calls_own(folder: Path) -> None:
    cf.map(Stopping(), folder / "x.npy", out=URL, **CPU)
    metadata = bucket(URL).get("zarr.json")
    assert metadata is not None
    fsspec.filesystem("memory").store.clear()
    stopped(folder)
    bucket(URL).put("zarr.json", lambda file: file.write(metadata.tobytes()) > 0)
    with pytest.raises(OutputExistsError):
        cf.map(Stopping(), folder / "x.npy", out=URL, **CALL_OF)


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_same_call_gives_what_one_had_published(overwrite: bool, folder: Path) -> None:
    call = {"out": URL, "overwrite": overwrite, **CALL_OF}
    with patch.object(RemoteClaim, "end", lambda claim, **_: remote_claim._held.discard(claim._run)):
        cf.map(Stopping(), folder / "x.npy", **call)
    if not overwrite:
        with pytest.raises(ResumeError, match="the function: it then, other now"):
            cf.map(Stopping(), folder / "x.npy", **call | {"name": "other"})
        with pytest.raises(OutputExistsError):
            cf.median(folder / "x.npy", out=URL, resume=True, device="cpu")
    with stopping(1):
        np.testing.assert_array_equal(cf.map(Stopping(), folder / "x.npy", **call)[...], X)
    assert there() == ["c", "zarr.json"]


def test_after_a_shutdown_chunks_are_still_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(folder)
    monkeypatch.setattr(resume, "boot", lambda: "another one")
    rest = Stopping()
    cf.map(rest, folder / "x.npy", out=URL, **CALL_OF)
    assert rest.calls < 60 - 20


@pytest.mark.parametrize("first", [True, False])
def test_outputs_at_urls_and_in_files(first: bool, folder: Path) -> None:
    out = (URL, folder / "o.npy") if first else (folder / "o.npy", URL)
    stop, rest = Stopping(30), Stopping()
    with pytest.raises(StoppedError):
        cf.map(lambda block: (stop(block), block), folder / "x.npy", out=out, **CALL_OF)
    found = cf.map(lambda block: (rest(block), block), folder / "x.npy", out=out, **CALL_OF)
    for each in found:
        np.testing.assert_array_equal(each[...], X)
    assert rest.calls < 60 - 20
    assert there() == ["c", "zarr.json"]
    assert sorted(path.name for path in folder.iterdir()) == ["o.npy", "x.npy"]


def test_several_passes(folder: Path) -> None:
    call = {"x": folder / "x.npy", "out": URL, "resume": True, **QUANTILE}
    for _ in range(2):
        assert cf.leftovers(URL) == ()
        with stopping(45), pytest.raises(StoppedError):
            cf.quantile(**call)
        assert len(cf.clean(URL)) == 1
    with stopping(45), pytest.raises(StoppedError):
        cf.quantile(**call)
    with stopping(-1) as made:
        cf.quantile(**call)
    assert 0 < len(made) <= 30
    assert zarr.open_array(URL, mode="r")[()] == np.quantile(X, 0.3)
    assert there() == ["c", "zarr.json"]

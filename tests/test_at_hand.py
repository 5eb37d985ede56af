"""Blocks of a memmap that the system has in memory: on the CPU functions get them as they lie there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from devices import machine, same

import chunkflow as cf
from chunkflow import Profile
from chunkflow.devices.numpy import NumpyDevice
from chunkflow.stores import cached, open_source
from chunkflow.stores.base import at_hand
from chunkflow.testing import filled

SHAPE = (64, 50, 20)


@pytest.fixture
def x(tmp_path: Path) -> np.memmap:
    np.save(tmp_path / "x.npy", filled(SHAPE, "f4"))
    return np.load(tmp_path / "x.npy", mmap_mode="r+")  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def all_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was just written is; but not every file system says so."""
    monkeypatch.setattr(cached, "present", lambda *place: True)


def shared(x: np.ndarray, **options: Any) -> list[bool]:
    """For each block of a map whether it lies in `x`; the trial call's comes first."""
    seen: list[bool] = []

    def fn(block: np.ndarray) -> np.ndarray:
        assert type(block) is np.ndarray
        assert not block.flags.writeable
        seen.append(bool(np.shares_memory(block, x)))
        return block * 2

    same(np.asarray(cf.map(fn, x, chunks=(8, -1, -1), **{"device": "cpu", **options})), np.asarray(x) * 2)
    return seen


def test_blocks_of_a_memmap_are_views(x: np.memmap) -> None:
    assert shared(x) == [False] + [True] * 8


def test_views_are_not_read(x: np.memmap) -> None:
    with Profile() as profile:
        same(cf.sum(x, axis=0, device="cpu"), np.asarray(x).sum(axis=0, dtype="f8").astype("f4"))
    assert "read" not in [stage.name for stage in profile.report.stages]


def test_what_the_disk_has_is_read(x: np.memmap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "present", lambda *place: False)
    assert not any(shared(x))


def test_it_is_asked_about_once_for_all_blocks(x: np.memmap, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cached, "present", lambda *place: not asked.append(place))
    assert sum(shared(x)) == 8
    assert len(asked) == 1


def test_a_path_is_read(x: np.memmap, tmp_path: Path) -> None:
    """Nobody has mapped it, and where the file is cut short a mapping would end the process."""
    source = open_source(tmp_path / "x.npy")
    assert at_hand(source, (slice(0, 8), slice(0, 50), slice(0, 20))) is None
    source.close()


@pytest.mark.parametrize("dtype", [">f4", "f4"])
def test_other_bytes_and_other_places_are_read(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0" * (dtype == "f4") + filled(SHAPE, dtype).tobytes())
    x = np.memmap(tmp_path / "x", dtype, "r", offset=int(dtype == "f4"), shape=SHAPE)
    assert not any(shared(x)), "bytes are swapped, or elements moved to where they may lie"


def test_a_file_that_became_short_is_an_error(x: np.memmap, tmp_path: Path) -> None:
    source = open_source(x)
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(2000)
    assert at_hand(source, (slice(0, 1), slice(0, 50), slice(0, 20))) is None
    with pytest.raises(cf.ReadError):
        source.read((slice(56, 64), slice(0, 50), slice(0, 20)), np.empty((8, 50, 20), "f4"))
    source.close()


def test_a_file_that_is_written_is_read(x: np.memmap) -> None:
    """A result may be a view of its block, stored in pieces over what is still to be stored."""
    before = np.array(x)
    cf.map(lambda block: block[:, ::-1, ::-1], x, out=x, chunks=(8, -1, -1), device="cpu")
    same(np.asarray(x), before[:, ::-1, ::-1])


def test_blocks_that_results_take_the_place_of_are_read(x: np.memmap, tmp_path: Path) -> None:
    before, device = np.array(x), NumpyDevice(machine=machine(staged=False, piece=4096))
    fn = lambda block: np.sqrt(np.abs(block)) * 2 + 1  # noqa: E731
    out = zarr.create_array(tmp_path / "y", shape=SHAPE, chunks=(8, 50, 20), dtype="f4")
    options: dict[str, Any] = {"out": out, "device": device, "workspace": 8, "dtype": "f4"}
    assert cf.explain(cf.map, fn, x, **options).recycled == 0
    same(cf.map(fn, x, **options)[...], fn(before))
    same(np.asarray(x), before)


def test_halos_are_read_into_blocks_of_their_own(x: np.memmap) -> None:
    def fn(block: np.ndarray) -> np.ndarray:
        assert not np.shares_memory(block, x)
        return block[1:-1] + block[2:] + block[:-2]

    options: dict[str, Any] = {"depth": (1, 0, 0), "boundary": "nearest", "trim": False, "chunks": (8, -1, -1)}
    padded = np.pad(np.asarray(x), ((1, 1), (0, 0), (0, 0)), "edge")
    same(cf.map_overlap(fn, x, device="cpu", **options), padded[1:-1] + padded[2:] + padded[:-2])


def test_loops_get_views_too(x: np.memmap) -> None:
    for chunk in cf.chunks(x, chunks=(8, -1, -1), device="cpu"):
        assert np.shares_memory(chunk.data, x)
        same(chunk.data, np.asarray(x)[chunk.region])

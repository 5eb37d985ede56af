"""What has to come from the disk is known before it is read, and shown in what a run is expected to take."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.core.units import format_bytes
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine.observe.analysis import AnalyzedRun
from chunkflow.stores import open_source
from chunkflow.stores.caches import page_cache
from chunkflow.stores.caches.page_cache import LEAST, absent, drop
from chunkflow.stores.protocol import cold_bytes

SHAPE = (64, 256, 512)
NBYTES = 4 * 64 * 256 * 512
assert NBYTES > LEAST


def data() -> np.ndarray:
    return np.random.default_rng(0).random(SHAPE, "f4")


def npy(folder: Path) -> Any:
    np.save(folder / "x.npy", data())
    return folder / "x.npy"


def memmap(folder: Path) -> Any:
    return np.load(npy(folder), mmap_mode="r")


def chunks(folder: Path) -> Any:
    cf.copy(data(), folder / "x.zarr", chunks=(16, 64, 64), device="cpu")
    return folder / "x.zarr"


def shards(folder: Path) -> Any:
    array = zarr.create_array(folder / "s.zarr", shape=SHAPE, dtype="f4", chunks=(16, 32, 32), shards=(32, 256, 128))
    array[...] = data()
    return folder / "s.zarr"


def hdf5(folder: Path) -> Any:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=data(), chunks=(16, 64, 64))
    return f"{folder / 'x.h5'}:/x"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files, or of folders around them, none of whose bytes are in memory, as far as anybody asks."""
    cold: set[str] = set()

    def there(fd: int, place: int) -> bool:
        return not cold & set(Path(os.readlink(f"/proc/self/fd/{fd}")).parts)

    monkeypatch.setattr(page_cache, "_there", there)
    return cold


@pytest.mark.parametrize("made", [npy, memmap, chunks, shards, hdf5])
def test_bytes_that_have_to_come_from_the_disk(tmp_path: Path, disk: set[str], made: Callable[[Path], Any]) -> None:
    source = open_source(made(tmp_path))
    assert cold_bytes([source]) == 0
    disk.add(tmp_path.name)
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert 0.8 * stored <= cold_bytes([source]) <= 1.2 * stored, "judged by some of its files"
    source.close()


def test_some_of_many_files(tmp_path: Path, disk: set[str]) -> None:
    source = open_source(chunks(tmp_path))
    disk.update("01")
    assert 0.2 * NBYTES < cold_bytes([source]) < 0.95 * NBYTES
    for path in (tmp_path / "x.zarr").glob("c/*/*/*"):
        path.unlink()
    assert cold_bytes([source]) == 0, "what was never written is nowhere"


def test_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(npy(tmp_path))
    monkeypatch.setattr(page_cache, "_there", lambda fd, place: place < NBYTES // 2)
    assert 0.45 * NBYTES < cold_bytes([source]) < 0.55 * NBYTES
    monkeypatch.setattr(page_cache, "_there", lambda fd, place: None)
    assert cold_bytes([source]) == 0, "where the system can't tell"
    source.close()


@pytest.mark.parametrize(
    ("view", "nbytes"),
    [
        (lambda x: np.broadcast_to(x, (9, *SHAPE)), NBYTES),
        (lambda x: np.lib.stride_tricks.sliding_window_view(x, 8, axis=0), NBYTES),
        (lambda x: x[..., ::16], NBYTES),
        (lambda x: x[::-2], NBYTES // 2),
        (lambda x: x.transpose(), NBYTES),
    ],
)
def test_pages_count_and_not_elements(
    tmp_path: Path, disk: set[str], view: Callable[[np.ndarray], np.ndarray], nbytes: int
) -> None:
    source = open_source(view(memmap(tmp_path)))
    disk.add("x.npy")
    assert cold_bytes([source]) == pytest.approx(nbytes, rel=0.02)
    source.close()


def test_what_is_read_twice_comes_once_from_the_disk(tmp_path: Path, disk: set[str]) -> None:
    path = npy(tmp_path)
    disk.add("x.npy")
    lazy = cf.open(path)
    for analysis in (
        cf.explain(np.add, path, path, analyze=True, device="cpu"),
        cf.explain(cf.concatenate([lazy, lazy]).sum(), analyze=True, device="cpu"),
    ):
        (run,) = analysis.runs
        assert run.cold == pytest.approx(NBYTES, rel=0.02)
        assert f"{format_bytes(run.cold)} of files were not in memory" in str(run)


def test_of_a_slice_only_its_part_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = cf.open(npy(tmp_path))
    monkeypatch.setattr(page_cache, "_there", lambda fd, place: place < NBYTES // 2)
    for part, nbytes in ((lazy[:31], 0), (lazy[32:], NBYTES // 2)):
        (run,) = cf.explain(part.sum(), analyze=True, device="cpu").runs
        assert run.cold == pytest.approx(nbytes, rel=0.05)


def test_bytes_of_a_dataset_are_those_that_it_takes(tmp_path: Path, disk: set[str]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("full", data=data(), chunks=(16, 64, 64))
        file.create_dataset("zeros", SHAPE, "f4", np.zeros(SHAPE, "f4"), chunks=(16, 64, 64), compression="gzip")
        file.create_dataset("never", SHAPE, "f4", chunks=(16, 64, 64))
    disk.add("x.h5")
    for name, nbytes in (("full", NBYTES), ("zeros", 0), ("never", 0)):
        source = open_source(f"{tmp_path / 'x.h5'}:/{name}")
        assert cold_bytes([source]) == nbytes
        source.close()


def test_numbers_that_users_draw_are_theirs(tmp_path: Path) -> None:
    path = npy(tmp_path)
    random.seed(7)
    drawn = random.random()
    random.seed(7)
    cf.explain(cf.sum, path, analyze=True, device="cpu")
    cf.map(np.negative, np.ones(SHAPE, "f4"), out=np.load(path, mmap_mode="r+"), device="cpu")
    assert random.random() == drawn


def test_small_arrays_are_not_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_there", lambda fd, place: pytest.fail("asked"))
    np.save(tmp_path / "x.npy", np.ones(LEAST // 8 - 1))
    source = open_source(tmp_path / "x.npy")
    assert cold_bytes([source]) == 0
    source.close()


def test_what_is_asked_of_the_system(tmp_path: Path) -> None:
    path = npy(tmp_path)
    with path.open("rb") as file:
        file.read()
        assert absent(file.fileno(), 0, NBYTES) in (0, None)
        assert absent(file.fileno(), 5, 5) is None
        os.fsync(file.fileno())
        drop(file.fileno())
        if not absent(file.fileno(), 0, NBYTES):
            pytest.skip("this file system keeps every page, or can't tell")
        assert absent(-1, 0, NBYTES) is None


def test_slices_and_what_is_put_together(tmp_path: Path, disk: set[str]) -> None:
    lazy = cf.open(npy(tmp_path))
    disk.add("x.npy")
    for work, share in ((np.concatenate([lazy, np.zeros((1, *SHAPE[1:]), "f4")]).sum(), 1.0), (lazy[::2].sum(), 0.5)):
        (run,) = cf.explain(work, analyze=True, device="cpu").runs
        assert run.cold == pytest.approx(share * NBYTES, rel=0.05)


def test_what_is_expected_is_no_less_than_the_disk_needs_but_plans_are_the_same(tmp_path: Path, disk: set[str]) -> None:
    path = npy(tmp_path)
    device = NumpyDevice(machine=replace(NumpyDevice().machine, disk=1e6))

    def analyzed() -> AnalyzedRun:
        (run,) = cf.explain(cf.sum, path, analyze=True, device=device, budget="64MB").runs
        return run

    warm = analyzed()
    disk.add("x.npy")
    cold = analyzed()
    assert cold.predicted == NBYTES / 1e6
    assert "bound by the disk" in str(cold)
    assert cold.ratio == cold.seconds / cold.predicted
    assert warm.cold == 0
    assert warm.predicted < cold.predicted
    assert "disk" not in str(warm)
    assert cold.plan == warm.plan


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice")
@pytest.mark.parametrize(
    ("ahead", "shape", "region", "expected"),
    [
        (8 << 20, (4, 1 << 20), np.s_[1:2, 0 : 1 << 20], "SEQUENTIAL"),  # in order, from a system that reads far ahead
        (128 << 10, (4, 1 << 20), np.s_[1:2, 0 : 1 << 20], "RANDOM"),
        (8 << 20, (4, 1 << 20), np.s_[0:4, 0 : 1 << 19], "RANDOM"),  # of the next row, half is not wanted
        (8 << 20, (4, 1 << 20), np.s_[1:2, 0:1024], None),  # short
    ],
)
def test_the_system_reads_ahead_where_it_does_so_far(
    ahead: int,
    shape: Shape,
    region: Region,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, length, how: advice.append(how))
    monkeypatch.setattr(page_cache, "read_ahead", lambda fd: ahead)
    x = np.memmap(tmp_path / "x", np.uint8, "w+", shape=shape)
    source = open_source(x)
    source.read(region, np.empty(shape_of(region), x.dtype))
    source.read(region, np.empty(shape_of(region), x.dtype))
    assert advice == ([] if expected is None else [getattr(os, f"POSIX_FADV_{expected}")])


def test_how_far_the_system_reads_ahead(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with open(tmp_path / "x", "rb") as file:
        ahead = page_cache.read_ahead(file.fileno())
        device = os.fstat(file.fileno()).st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if place.exists():  # a disk, or a part of one
        queue = place / "queue" if (place / "queue").exists() else place / ".." / "queue"
        assert ahead == int((queue / "read_ahead_kb").read_text()) << 10
    else:
        assert ahead >= 0
    with open(os.devnull, "rb") as nothing:
        assert page_cache.read_ahead(nothing.fileno()) >= 0

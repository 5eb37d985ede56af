"""A source that is changed in mid-run is refused, whatever it is; what the run itself writes to is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from support.changes import once, replaced, stamped_later

import chunkflow as cf
from chunkflow.errors import ReadError

X = np.arange(256.0 * 64).reshape(256, 64)
SMALL: dict[str, Any] = {"device": "cpu", "budget": "24kB"}


def npy(folder: Path) -> str:
    np.save(folder / "x.npy", X)
    return str(folder / "x.npy")


def hdf5(folder: Path, **options: Any) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("u", data=X, **options)
    return f"{folder / 'x.h5'}:/u"


def gzipped(folder: Path) -> str:
    return hdf5(folder, chunks=(8, 64), compression="gzip")


def zarred(folder: Path, **options: Any) -> str:
    zarr.create_array(folder / "x.zarr", data=X, **{"chunks": (8, 64)} | options)
    return str(folder / "x.zarr")


def raw(folder: Path) -> str:
    return zarred(folder, compressors=None)


def sharded(folder: Path) -> str:
    return zarred(folder, chunks=(4, 64), shards=(8, 64))


def by_zarr(folder: Path) -> str:
    """As no codec of ours decodes it: zarr reads it."""
    import zarr.codecs as codecs

    return zarred(folder, compressors=[codecs.ZstdCodec(), codecs.GzipCodec()])


FORMATS = (npy, hdf5, gzipped, zarred, raw, sharded, by_zarr)
FOLDERS = (zarred, raw, sharded, by_zarr)


def file_of(path: str) -> Path:
    return Path(path.partition(":")[0])


def written(path: str) -> None:
    """Another program writes to a file in place."""
    with open(file_of(path), "r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(first)
    stamped_later(file_of(path))


def late(path: str) -> None:
    """The last chunk alone is replaced."""
    replaced(Path(path) / "c/31/0")


def lost(path: str) -> None:
    """The last chunk is removed: it would read as the fill value."""
    chunk = Path(path) / "c/31/0"
    chunk.unlink()
    stamped_later(chunk.parent)


@pytest.mark.parametrize("make", FORMATS)
def test_an_array_that_another_is_put_in_the_place_of(make: Callable[[Path], str], tmp_path: Path) -> None:
    path, out = make(tmp_path), tmp_path / "y.npy"
    with pytest.raises(ReadError, match=r"x\.(npy|h5|zarr).* was changed (while it was read|after)"):
        cf.map(once(lambda: replaced(file_of(path))), path, out=out, **SMALL)
    assert not out.exists()


@pytest.mark.parametrize("make", [npy, hdf5, gzipped])
def test_a_file_that_is_written_to(make: Callable[[Path], str], tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(ReadError, match="was changed while it was read"):
        cf.map(once(lambda: written(path)), path, **SMALL)


@pytest.mark.parametrize("change", [late, lost])
@pytest.mark.parametrize("make", FOLDERS)
def test_a_chunk_that_is_replaced_or_removed(
    make: Callable[[Path], str], change: Callable[[str], None], tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(ReadError, match=r"c/31/0: it (was changed|is missing)"):
        cf.map(once(lambda: change(path)), path, **SMALL)


@pytest.mark.parametrize("make", FORMATS)
def test_between_two_passes(make: Callable[[Path], str], tmp_path: Path) -> None:
    path = make(tmp_path)
    x = cf.open(path)
    seen = cf.map(once(lambda: None), x, dtype="f8", workspace=8)
    fn = once(lambda: replaced(file_of(path)))
    calls = cf.map(fn, seen, dtype="f8", workspace=8)
    with pytest.raises(ReadError, match="was changed"):
        cf.compute(x - calls.mean(), **SMALL)


def test_an_array_that_was_changed_before_is_read(tmp_path: Path) -> None:
    path = npy(tmp_path)
    x = cf.open(path)
    np.save(path, 2 * X)
    np.testing.assert_array_equal(x.compute(device="cpu"), 2 * X)


@pytest.mark.parametrize("make", [zarred, raw, sharded])
def test_an_array_that_the_run_writes_to(make: Callable[[Path], str], tmp_path: Path) -> None:
    array = zarr.open_array(make(tmp_path), mode="r+")
    cf.map(np.negative, array, out=array, **SMALL)
    np.testing.assert_array_equal(array[...], -X)


def test_a_mapped_array_that_the_run_writes_to(tmp_path: Path) -> None:
    array = np.load(npy(tmp_path), mmap_mode="r+")
    cf.map(np.negative, array, out=array, **SMALL)
    np.testing.assert_array_equal(array, -X)
    cf.map(np.negative, array[:128], out=array[128:], **SMALL)
    np.testing.assert_array_equal(array[128:], X[:128])


@pytest.mark.parametrize("make", [hdf5, gzipped])
def test_a_dataset_beside_the_output(make: Callable[[Path], str], tmp_path: Path) -> None:
    path = make(tmp_path)
    result = cf.map(np.negative, path, out=f"{file_of(path)}:/v", **SMALL)
    np.testing.assert_array_equal(result[...], -X)
    result.file.close()
    result = cf.mean(path, axis=0, out=f"{file_of(path)}:/mean", **SMALL)
    np.testing.assert_allclose(result[...], X.mean(axis=0))


def test_a_loop_over_chunks(tmp_path: Path) -> None:
    path = npy(tmp_path)
    loop = iter(cf.chunks(path, **SMALL))
    next(loop)
    replaced(path)
    with pytest.raises(ReadError, match="was changed while it was read"):
        list(loop)


@pytest.mark.parametrize("slices", [np.s_[::2], np.s_[:, 3:]])
def test_views_of_sources(slices: Any, tmp_path: Path) -> None:
    path = npy(tmp_path)
    x = cf.concatenate([cf.open(path)[slices]] * 2)
    with pytest.raises(ReadError, match="was changed while it was read"):
        cf.map(once(lambda: replaced(path)), x, dtype="f8", workspace=8).compute(**SMALL)


@pytest.mark.parametrize("change", ["removed", "another"])
def test_the_metadata_behind_a_url(change: str) -> None:
    url = f"memory://changed-{change}/x.zarr"
    zarr.create_array(url, data=X, chunks=(8, 64))
    files = MemoryFileSystem()
    (key,) = [key for key in files.store if key.endswith(f"changed-{change}/x.zarr/zarr.json")]

    def replace() -> None:
        if change == "removed":
            files.rm_file(key)
        else:
            files.pipe_file(key, files.cat_file(key) + b" ")

    with pytest.raises(ReadError, match=r"was changed while it was read.*(not there any more|has another size)"):
        cf.map(once(replace), url, **SMALL)


def test_tasks_of_a_cluster(tmp_path: Path) -> None:
    from chunkflow.dask import store

    path, out = npy(tmp_path), tmp_path / "y.npy"
    x = cf.map(once(lambda: replaced(path)), cf.open(path), dtype="f8", workspace=8)
    with pytest.raises(ReadError, match="was changed"):
        store(x, out, partition="16kB", device="cpu", budget="64kB", scheduler="sync")
    assert not out.exists()

"""`chunkflow.ExistingArray`: a part of an array that is there is written, or elements are added at its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, OutputBusyError, SourceNotFoundError
from chunkflow.stores import open_target

X = np.arange(600.0).reshape(20, 30)
CPU: dict[str, Any] = {"device": "cpu", "budget": "60kB"}


def stored(path: Any) -> np.ndarray:
    return np.asarray(zarr.open_array(path, mode="r")[...])


@settings(max_examples=5, deadline=None)
@given(
    version=st.sampled_from([2, 3]),
    chunks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    shards=st.booleans(),
    codec=st.sampled_from([None, "zstd"]),
    corner=st.tuples(st.integers(0, 19), st.integers(0, 29)),
    sides=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    axis=st.sampled_from([0, 1, -1]),
    added=st.integers(1, 15),
    budget=st.sampled_from(["60kB", "1MB"]),
)
def test_parts_and_ends(
    tmp_path_factory: Any,
    version: Any,
    chunks: Any,
    shards: bool,
    codec: Any,
    corner: Any,
    sides: Any,
    axis: int,
    added: int,
    budget: str,
) -> None:
    path, how = tmp_path_factory.mktemp("zarr") / "u.zarr", {"device": "cpu", "budget": budget}
    shard = tuple(2 * n for n in chunks) if shards and version == 3 else None
    expected = X.copy()
    array = cf.copy(X, cf.NewArray(path, zarr_format=version, chunks=chunks, shards=shard, compressors=codec), **how)
    region = tuple(slice(at, min(at + side, n)) for at, side, n in zip(corner, sides, X.shape, strict=True))
    expected[region] = -X[region]
    cf.map(np.negative, X[region], out=cf.ExistingArray(path, region=region), **how)
    np.testing.assert_array_equal(stored(path), expected)
    more = X[:added] if axis == 0 else X[:, :added]
    found = cf.store(cf.open(more) * 2, cf.ExistingArray(array, append=axis), **how)
    np.testing.assert_array_equal(found[:], np.concatenate([expected, more * 2], axis))
    np.testing.assert_array_equal(stored(path), found[:])


@pytest.mark.parametrize("region", [np.s_[:], np.s_[0:20, 0:30], np.s_[0:19], np.s_[3:9, 5:8]], ids=str)
@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "x.h5:/d"])
def test_a_region_is_written_in_place_of_what_it_is_made_from(name: str, region: Any, tmp_path: Path) -> None:
    if "h5" in name:
        pytest.importorskip("h5py")
    path = f"{tmp_path}/{name}"
    cf.copy(X, path, **CPU)
    one, two = X.copy(), X[region] * 2
    x = cf.open(path)[region]
    cf.store([x + 1, x * 2], [cf.ExistingArray(path, region=region), tmp_path / "two.npy"], **CPU)
    one[region] += 1
    np.testing.assert_array_equal(cf.open(path).compute(**CPU), one)
    np.testing.assert_array_equal(np.load(tmp_path / "two.npy"), two)
    with pytest.raises(ArgumentError, match="without being the same elements"):
        cf.store(cf.flip(cf.open(path)[region], 0), cf.ExistingArray(path, region=region), **CPU)
    np.testing.assert_array_equal(cf.open(path).compute(**CPU), one)


def test_what_kinds_of_arrays_there_are(tmp_path: Path) -> None:
    part = np.s_[4:6, ...]
    expected = X.copy()
    expected[part] = X[:2]
    np.save(tmp_path / "x.npy", X)
    found = cf.copy(X[:2], cf.ExistingArray(tmp_path / "x.npy", region=part), **CPU)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected)
    np.testing.assert_array_equal(found, expected)
    memory = X.copy()
    assert cf.copy(X[:2], cf.ExistingArray(memory, region=part), **CPU) is memory
    np.testing.assert_array_equal(memory, expected)
    url = f"memory://existing/{tmp_path.name}.zarr/u"
    for array in (url, zarr.create_array(zarr.storage.MemoryStore(), data=X, chunks=(7, 7))):
        if isinstance(array, str):
            cf.copy(X, array, **CPU)
        cf.copy(X[:2], cf.ExistingArray(array, region=part), **CPU)
        longer = cf.copy(X[:3], cf.ExistingArray(array, append=0), **CPU)
        np.testing.assert_array_equal(longer[:], np.concatenate([expected, X[:3]]))


def test_consolidated_metadata_have_the_new_length(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=2)
    group.create_array("u", data=X, chunks=(7, 7))
    zarr.consolidate_metadata(tmp_path / "g.zarr", zarr_format=2)
    cf.copy(X, cf.ExistingArray(tmp_path / "g.zarr" / "u", append=0), **CPU)
    assert zarr.open_consolidated(tmp_path / "g.zarr", mode="r", zarr_format=2)["u"].shape == (40, 30)


def test_tensorstore_reads_what_was_added(tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    cf.copy(X, cf.NewArray(tmp_path / "u.zarr", chunks=(7, 7)), **CPU)
    cf.copy(X, cf.ExistingArray(tmp_path / "u.zarr", append=1), **CPU)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/u.zarr/"}}
    np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), np.concatenate([X, X], 1))


@pytest.mark.parametrize(("axis", "index"), [(0, "None"), (1, ":, None"), (-1, ":, None")])
def test_a_result_that_lacks_the_axis_is_told_how_to_get_it(tmp_path: Path, axis: int, index: str) -> None:
    frame = np.arange(5.0)
    there = np.zeros((3, 5) if axis == 0 else (5, 3))
    cf.copy(there, str(tmp_path / "u.zarr"), **CPU)
    np.save(tmp_path / "x.npy", frame)
    out = cf.ExistingArray(tmp_path / "u.zarr", append=axis)
    with pytest.raises(ArgumentError, match=re.escape(f"it lacks that axis, and r[{index}] of an expression r has it")):
        cf.map(np.sqrt, tmp_path / "x.npy", out=out, **CPU)
    r = cf.map(np.sqrt, cf.open(tmp_path / "x.npy"))
    found = cf.store(r[None] if axis == 0 else r[:, None], out, **CPU)
    column = np.sqrt(frame)[None] if axis == 0 else np.sqrt(frame)[:, None]
    np.testing.assert_array_equal(found[:], np.concatenate([there, column], axis))


@pytest.mark.parametrize("by_path", [False, True])
def test_datasets_of_hdf5(tmp_path: Path, by_path: bool) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("u", data=X, chunks=(7, 6), maxshape=(None, 32), compression="gzip")
        file["fixed"] = X
    file = None if by_path else h5py.File(path, "r+")

    def where(name: str) -> Any:
        return f"{path}:/{name}" if file is None else file[name]

    def done(result: Any) -> None:
        if file is None:
            result.file.close()

    done(cf.copy(X[:3], cf.ExistingArray(where("u"), append=0), **CPU))
    done(cf.copy(X[:3, :4], cf.ExistingArray(where("u"), region=np.s_[1:4, 5:9]), **CPU))
    with pytest.raises(RuntimeError):
        cf.map(fails, X[:3], out=cf.ExistingArray(where("u"), append=0), dtype="f8", workspace=8, **CPU)
    for name, axis, why in [("fixed", 0, "has a fixed length"), ("u", 1, "at most the length 32")]:
        with pytest.raises(ArgumentError, match=why):
            cf.copy(np.ones((23 - 3 * (name == "fixed"), 3)), cf.ExistingArray(where(name), append=axis), **CPU)
    if file is not None:
        file.close()
    expected = np.concatenate([X, X[:3]])
    expected[1:4, 5:9] = X[:3, :4]
    with h5py.File(path) as read:
        np.testing.assert_array_equal(read["u"][...], expected)


KILLED_HDF5 = """
import os, sys, numpy as np, chunkflow as cf
calls = []
def fn(block):
    calls.append(1)
    if len(calls) == 6:
        os.kill(os.getpid(), 9)
    return block * 2
x = np.arange(600.0).reshape(20, 30)
out = cf.ExistingArray(sys.argv[1], append=0)
cf.map(fn, x, out=out, chunks=(3, 30), dtype="f8", workspace=8, device="cpu", budget="60kB")
"""


def test_a_killed_run_leaves_the_old_dataset(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("g/u", data=X, chunks=(3, 30), maxshape=(None, 30))
        file["other"] = X
    killed = subprocess.run([sys.executable, "-c", KILLED_HDF5, f"{path}:/g/u"], env=os.environ, check=False)
    assert killed.returncode == -9
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["g/u"][...], X)
        np.testing.assert_array_equal(file["other"][...], X)
    cf.copy(X[:5], cf.ExistingArray(f"{path}:/g/u", append=0), **CPU).file.close()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["g/u"][...], np.concatenate([X, X[:5]]))
        np.testing.assert_array_equal(file["other"][...], X)
    assert os.listdir(tmp_path) == ["x.h5"]


def fails(block: Any) -> Any:
    raise RuntimeError("no")


class Failing:
    """A function that fails at a call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, block: Any) -> Any:
        self.left -= 1
        if not self.left:
            raise RuntimeError("no")
        return block * 2


@pytest.mark.parametrize("append", [0, 1])
def test_a_run_that_fails_leaves_the_old_array(tmp_path: Path, append: int) -> None:
    path = tmp_path / "u.zarr"
    cf.copy(X, cf.NewArray(path, chunks=(3, 3)), **CPU)
    before = sorted(p.relative_to(path) for p in path.rglob("*") if p.is_file())
    out = cf.ExistingArray(path, append=append)
    with pytest.raises(RuntimeError):
        cf.map(Failing(6), X, out=out, chunks=(3, 30), dtype="f8", workspace=8, **CPU)
    assert sorted(p.relative_to(path) for p in path.rglob("*") if p.is_file()) == before
    np.testing.assert_array_equal(stored(path), X)
    assert os.listdir(tmp_path) == ["u.zarr"]


KILLED = """
import os, sys, numpy as np, chunkflow as cf
calls = []
def fn(block):
    calls.append(1)
    if len(calls) == 6:
        os.kill(os.getpid(), 9)
    return block * 2
x = np.arange(600.0).reshape(20, 30)
out = cf.ExistingArray(sys.argv[1], append=0)
cf.map(fn, x, out=out, chunks=(3, 30), dtype="f8", workspace=8, device="cpu", budget="60kB")
"""


def test_a_killed_run_leaves_the_old_array(tmp_path: Path) -> None:
    path = tmp_path / "g.zarr" / "u"
    cf.copy(X, cf.NewArray(path, chunks=(3, 30)), **CPU)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ, check=False)
    assert killed.returncode == -9
    np.testing.assert_array_equal(stored(path), X)
    cf.copy(X[:5], cf.ExistingArray(path, append=0), **CPU)
    np.testing.assert_array_equal(stored(path), np.concatenate([X, X[:5]]))
    assert cf.clean(tmp_path) == ()
    assert os.listdir(tmp_path) == ["g.zarr"]


def test_what_a_killed_run_added_to_a_file_is_told_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "u.npy"
    np.save(path, X)
    size = path.stat().st_size
    target: Any = open_target(cf.ExistingArray(path, append=0))
    sink = target.open(target.describe((3, 30), X.dtype, None))
    sink.write((slice(0, 3), slice(0, 30)), X[:3])
    claim = next(path for path in tmp_path.iterdir() if path.name.endswith(".claim"))
    kept = claim.read_bytes(), path.read_bytes()
    sink.abort()
    claim.write_bytes(kept[0])  # as when the process is killed
    path.write_bytes(kept[1])
    (left,) = cf.leftovers(tmp_path)
    assert (left.output, left.nbytes) == (str(path), 3 * 30 * X.itemsize)
    cf.clean(tmp_path)
    assert (path.stat().st_size, cf.leftovers(tmp_path)) == (size, ())
    np.testing.assert_array_equal(np.load(path), X)


def test_a_chunk_that_a_killed_run_was_writing_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "u.zarr"
    cf.copy(X, cf.NewArray(path, chunks=(3, 30)), **CPU)
    target: Any = open_target(cf.ExistingArray(path, append=0))
    sink = target.open(target.describe((3, 30), X.dtype, None))
    ours, others = (path / "c" / f"{pid}-1.partial" for pid in (f"7.{os.getpid()}", f"8.{os.getpid() + 1}"))
    ours.touch()
    others.touch()
    sink._claim.leave()  # as when the process is killed
    assert [left.output for left in cf.leftovers(tmp_path)] == [str(path)]
    cf.clean(tmp_path)
    assert (ours.exists(), others.exists()) == (False, True), "another run may be writing a region"
    assert cf.leftovers(tmp_path) == ()
    np.testing.assert_array_equal(stored(path), X)


@pytest.mark.parametrize("name", ["u.zarr", "u.npy"])
def test_what_was_added_is_removed_where_another_output_fails(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    cf.copy(X, path, **CPU)
    target = open_target(cf.ExistingArray(path, append=0))
    sink = target.open(target.describe((3, 30), X.dtype, None))
    sink.write((slice(0, 3), slice(0, 30)), X[:3])
    assert sink.commit().shape == (23, 30)
    sink.abort()
    np.testing.assert_array_equal(cf.open(path).compute(device="cpu"), X)
    longer = cf.copy(X[:5], cf.ExistingArray(path, append=0), **CPU)
    np.testing.assert_array_equal(longer[:], np.concatenate([X, X[:5]]))


def test_one_run_at_a_time_adds_to_an_array(tmp_path: Path) -> None:
    path = tmp_path / "u.zarr"
    cf.copy(X, path, **CPU)
    target = open_target(cf.ExistingArray(path, append=0))
    sink = target.open(target.describe((3, 30), X.dtype, None))
    with pytest.raises(OutputBusyError):
        cf.copy(X[:3], cf.ExistingArray(path, append=0), **CPU)
    sink.abort()
    first, second = (open_target(cf.ExistingArray(path, append=0)) for _ in range(2))
    for target, error in ((first, None), (second, ArgumentError)):
        spec = target.describe((3, 30), X.dtype, None)
        if error is None:
            sink = target.open(spec)
            sink.write((slice(0, 3), slice(0, 30)), X[:3])
            sink.commit()
        else:
            with pytest.raises(error, match="has another shape now"):
                target.open(spec)


@pytest.mark.parametrize(
    ("say", "error", "why"),
    [
        ({}, ArgumentError, "either region= or append="),
        ({"append": 0, "region": np.s_[:]}, ArgumentError, "either region= or append="),
        ({"append": "time"}, ArgumentTypeError, "must be an axis"),
        ({"append": 2}, ArgumentError, "has 2 dimensions"),
        ({"append": 1}, ArgumentError, "all other axes"),
        ({"region": np.s_[3]}, ArgumentTypeError, "no slice"),
        ({"region": np.s_[::2]}, ArgumentError, "has steps"),
        ({"region": np.s_[0:99]}, ArgumentError, "no range within"),
        ({"region": np.s_[-99:3]}, ArgumentError, "no range within"),
        ({"region": np.s_[:, :, :]}, ArgumentError, "one slice for each axis"),
        ({"region": np.s_[0:2]}, ArgumentError, "the region of .* has"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, say: Any, error: Any, why: str) -> None:
    cf.copy(X, tmp_path / "u.zarr", **CPU)
    with pytest.raises(error, match=why):
        cf.copy(X[:3], cf.ExistingArray(tmp_path / "u.zarr", **say), **CPU)
    np.testing.assert_array_equal(stored(tmp_path / "u.zarr"), X)


@pytest.mark.parametrize(("order", "dtype"), [("C", "f8"), ("F", ">f4")])
def test_a_npy_file_grows(tmp_path: Path, order: Any, dtype: str) -> None:
    path, axis = tmp_path / "x.npy", 0 if order == "C" else 1
    old = np.asarray(X, dtype, order=order)
    np.save(path, old)
    more = X[:3] if axis == 0 else X[:, :3]
    longer = cf.copy(more, cf.ExistingArray(path, append=axis), **CPU)
    np.testing.assert_array_equal(longer, np.concatenate([old, more], axis))
    cf.map(np.negative, path, out=cf.ExistingArray(path, append=axis), dtype=dtype, **CPU)
    expected = np.concatenate([old, more, -old, -more], axis)
    found = np.load(path)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == dtype

    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        cf.map(fails, more, out=cf.ExistingArray(path, append=axis), dtype="f4", workspace=8, **CPU)
    assert path.read_bytes() == before
    with pytest.raises(ArgumentError, match=f"only axis {axis} ends"):
        cf.copy(X, cf.ExistingArray(path, append=1 - axis), **CPU)

    target: Any = open_target(cf.ExistingArray(path, append=axis))
    sink = target.open(target.describe(more.shape, np.dtype(dtype), None))
    sink.write(tuple(slice(0, n) for n in more.shape), more.astype("f4"))
    with pytest.raises(OutputBusyError):
        cf.copy(more, cf.ExistingArray(path, append=axis), **CPU)
    sink._claim.leave()  # as when the process is killed
    np.testing.assert_array_equal(np.load(path), expected)
    cf.clean(tmp_path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.npy"]

    path.write_bytes(before + b"more")
    with pytest.raises(ArgumentError, match="4 B behind its array"):
        cf.copy(more, cf.ExistingArray(path, append=axis), **CPU)
    assert path.read_bytes() == before + b"more"


def test_a_header_without_room_is_refused(tmp_path: Path) -> None:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9,), }\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(72))
    with pytest.raises(ArgumentError, match="no room"):
        cf.copy(X[0], cf.ExistingArray(tmp_path / "x.npy", append=0), **CPU)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.zeros(9))


@pytest.mark.filterwarnings("ignore:Reading")
def test_what_cannot_grow_says_so(tmp_path: Path) -> None:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9L,), }\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(72))
    with pytest.raises(ArgumentError, match="Python 2"):
        cf.copy(X[0], cf.ExistingArray(tmp_path / "x.npy", append=0), **CPU)
    with pytest.raises(ArgumentError, match="fixed length"):
        cf.copy(X, cf.ExistingArray(X.copy(), append=0), **CPU)
    with pytest.raises(SourceNotFoundError):
        cf.copy(X, cf.ExistingArray(tmp_path / "none.zarr", append=0), **CPU)


def test_an_array_may_be_added_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "u.zarr"
    cf.copy(X, cf.NewArray(path, chunks=(7, 7)), **CPU)
    cf.map(np.negative, path, out=cf.ExistingArray(path, append=0), **CPU)
    np.testing.assert_array_equal(stored(path), np.concatenate([X, -X]))
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.flip(path, 0, out=cf.ExistingArray(path, append=0), **CPU)


def test_a_dataset_of_hdf5_may_be_added_to_itself(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    how = {"chunks": (7, 30), "maxshape": (None, 30), "compression": "gzip"}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("u", data=X, **how)
        file.create_dataset("whole chunks", data=X[:14], **how)
        for name in ("u", "whole chunks"):
            with pytest.raises(ArgumentError, match="overlaps the input"):
                cf.flip(file[name], 0, out=cf.ExistingArray(file[name], append=0), **CPU)
        cf.map(np.negative, file["whole chunks"], out=cf.ExistingArray(file["whole chunks"], append=0), **CPU)
        np.testing.assert_array_equal(file["whole chunks"], np.concatenate([X[:14], -X[:14]]))
        with pytest.raises(ArgumentError, match="overlaps the input"):  # HDF5 moves the chunk that the end cuts
            cf.map(np.negative, file["u"], out=cf.ExistingArray(file["u"], append=0), **CPU)
    path = f"{tmp_path}/x.h5:/u"
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        kept = file["u"]  # by itself it keeps the file open
        del file
        with pytest.raises(ArgumentError, match="overlaps the input"):
            cf.map(np.negative, path, out=cf.ExistingArray(path, append=0), **CPU)
        assert len(kept) == len(X)
    held = h5py.File(tmp_path / "x.h5", "r+")["u"]
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.map(np.negative, path, out=cf.ExistingArray(path, append=0), **CPU)
    held.file.close()
    cf.map(np.negative, path, out=cf.ExistingArray(path, append=0), **CPU).file.close()
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["u"], np.concatenate([X, -X]))

"""Of unencoded chunks parts are read by themselves, whatever view has them; encoded ones are whole. Plans say so."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

h5py = pytest.importorskip("h5py")

from support.devices import MODES, machine  # noqa: E402

import chunkflow as cf  # noqa: E402
from chunkflow.devices.cpu.device import NumpyDevice  # noqa: E402
from chunkflow.errors import BudgetError, ReadError  # noqa: E402
from chunkflow.stores import open_source  # noqa: E402
from chunkflow.stores.zarr import chunks as zarrchunks  # noqa: E402

SHAPE = (64, 64, 64)
NBYTES = 1 << 20
"""Bytes of an array, which is one chunk."""

BUDGET = "400kB"
PLACES = np.array([50, 3, 5, 3, 37])
MARKS = np.arange(64) % 3 == 1

VIEWS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "one": lambda np, x, y: x,
    "stacked": lambda np, x, y: np.stack([x, y]),
    "stacked along the last axis": lambda np, x, y: np.stack([x, y], axis=-1),
    "one stacked": lambda np, x, y: np.stack([x]),
    "concatenated": lambda np, x, y: np.concatenate([x, y], axis=1),
    "rolled": lambda np, x, y: np.roll(x, 5, axis=2),
    "flipped": lambda np, x, y: np.flip(x, axis=0),
    "repeated": lambda np, x, y: np.repeat(x, 2, axis=1),
    "padded": lambda np, x, y: np.pad(x, 3),
    "sliced": lambda np, x, y: x[5:60, 3:],
    "sliced with steps": lambda np, x, y: x[5:60:2, ::-3, ::2],
    "with a new axis": lambda np, x, y: x[:, None],
    "at places": lambda np, x, y: x[:, PLACES],
    "at sorted places": lambda np, x, y: x[np.sort(PLACES)],
    "at places of two axes": lambda np, x, y: x[:, PLACES][:, :, PLACES],
    "at points": lambda np, x, y: x[PLACES, PLACES[::-1]],
    "marked": lambda np, x, y: x[MARKS],
    "split": lambda np, x, y: x.reshape(16, 4, 64, 2, 32),
    "windows": lambda np, x, y: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1),
    "stacked slices": lambda np, x, y: np.stack([x[::2], y[1::2]]),
    "a slice of a stack": lambda np, x, y: np.stack([x, y])[1, 10:50],
}

EXPRESSIONS = ("with a new axis", "a slice of a stack")
"""Views that are made where they are computed, and plans with them."""

views = pytest.mark.parametrize("view", VIEWS)
kinds = pytest.mark.parametrize("kind", ["hdf5", "hdf5, big-endian", "zarr", "zarr, big-endian", "zarr, Fortran"])


@pytest.fixture(autouse=True)
def parts_are_read_of_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarrchunks, "PARTED", NBYTES)


def stored(kind: str, folder: Path, number: int, **options: Any) -> tuple[str, np.ndarray]:
    """The path of an array, and its elements."""
    x = np.random.default_rng(number).random(SHAPE, "f4")
    dtype = ">f4" if "big-endian" in kind else "<f4"
    if kind.startswith("hdf5"):
        with h5py.File(folder / f"x_{number}.h5", "w") as file:
            file.create_dataset("u", data=x.astype(dtype), chunks=SHAPE, **options)
        return f"{folder}/x_{number}.h5:/u", x
    layout = {"zarr_format": 2, "order": "F" if "Fortran" in kind else "C"}
    given: dict[str, Any] = {"compressors": None, **({} if "compressors" in options else layout), **options}
    array = zarr.create_array(folder / f"x_{number}.zarr", shape=SHAPE, chunks=SHAPE, dtype=dtype, **given)
    array[...] = x
    return str(folder / f"x_{number}.zarr"), x


def reduced(view: str, x: Any, y: Any) -> Any:
    """Means of a view, by NumPy or lazily."""
    found = VIEWS[view](np, x, y)
    return found.mean(axis=tuple(range(1, found.ndim)), dtype="f8")


@views
@kinds
def test_no_chunk_is_held_for_a_part(kind: str, view: str, tmp_path: Path) -> None:
    (one, x), (two, y) = (stored(kind, tmp_path, number) for number in range(2))
    found = VIEWS[view](np, cf.open(one), cf.open(two))
    if view not in EXPRESSIONS:
        plan = cf.explain(cf.mean, found, axis=tuple(range(1, found.ndim)), budget=BUDGET, device="cpu")
        assert plan.operands[0].storage.raw
        assert plan.operands[0].by_parts
        assert plan.bytes_in == found.nbytes
        assert not plan.traffic.decode
        assert plan.memory.staging < NBYTES / 4
        assert not plan.read_again
    got = reduced(view, cf.open(one), cf.open(two)).compute(budget=BUDGET, device="cpu")
    np.testing.assert_allclose(got, reduced(view, x, y), rtol=1e-6)


@views
@pytest.mark.parametrize("kind", ["hdf5", "zarr, big-endian"])
def test_they_have_the_same_elements_on_other_devices(kind: str, view: str, tmp_path: Path) -> None:
    (one, x), (two, y) = (stored(kind, tmp_path, number) for number in range(2))
    for mode in MODES[:1]:
        device = NumpyDevice(machine=machine(staged=True), staged=True, mode=mode, poison=True)  # type: ignore[arg-type]
        got = reduced(view, cf.open(one), cf.open(two)).compute(budget="2MB", device=device)
        np.testing.assert_allclose(got, reduced(view, x, y), rtol=1e-6)


@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
@pytest.mark.parametrize("view", ["one", "stacked", "one stacked"])
def test_no_more_is_read_than_is_planned(kind: str, view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one, _), (two, _) = (stored(kind, tmp_path, number) for number in range(2))
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(found := preadv(*args)) or found)
    found = VIEWS[view](np, cf.open(one), cf.open(two))
    options: Any = {"axis": tuple(range(1, found.ndim)), "budget": BUDGET, "device": "cpu"}
    plan = cf.explain(cf.mean, found, **options)
    assert len(plan.grid) > 2
    found.mean(axis=options.pop("axis")).compute(**options)
    assert 0.9 * plan.bytes_in < sum(read) <= plan.bytes_in == found.nbytes


def test_what_steps_skip_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = stored("hdf5", tmp_path, 0)
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(found := preadv(*args)) or found)
    got = cf.open(path)[::-7].mean(axis=(1, 2)).compute(budget=BUDGET, device="cpu")
    np.testing.assert_allclose(got, x[::-7].mean(axis=(1, 2)), rtol=1e-5)
    assert sum(read) == x[::-7].nbytes


def test_what_xarray_decodes_is_read_by_parts(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    x = np.random.default_rng(0).integers(1, 999, (128, 64, 64)).astype("i2")  # without the fill value
    folder = zarr.create_group(tmp_path / "g.zarr", zarr_format=2)
    packed = folder.create_array("u", shape=x.shape, chunks=x.shape, dtype="i2", compressors=None)
    packed[...] = x
    packed.attrs.update({"_ARRAY_DIMENSIONS": ["t", "y", "x"], "scale_factor": 0.5})
    with xr.open_dataset(tmp_path / "g.zarr", engine="zarr", chunks=None, consolidated=False) as dataset:
        plan = cf.explain(cf.mean, dataset.u, axis=(1, 2), budget="700kB", device="cpu")
        spec = plan.operands[0]
        assert spec.by_parts
        assert not spec.storage.raw, "it is decoded all the same"
        assert spec.storage.copies == 2 / spec.dtype.itemsize, "what is stored is held beside"
        assert plan.traffic.decode == plan.bytes_in == spec.nbytes
        got = cf.mean(dataset.u, axis=(1, 2), budget="700kB", device="cpu")
    np.testing.assert_allclose(np.asarray(got), 0.5 * x.mean(axis=(1, 2)), rtol=1e-5)


def test_a_pattern_of_files_is_read_by_parts(tmp_path: Path) -> None:
    each = [stored("hdf5", tmp_path, number)[1] for number in range(2)]
    for name, x in (("x_*", np.stack(each)), ("x_1*", each[1][None])):
        found = cf.open(f"{tmp_path}/{name}.h5:/u")
        got = found.mean(axis=(2, 3)).compute(budget=BUDGET, device="cpu")
        np.testing.assert_allclose(got, x.mean(axis=(2, 3)), rtol=1e-5)
        np.testing.assert_array_equal(found[0, 10].compute(budget=BUDGET, device="cpu"), x[0, 10])


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4"])
@pytest.mark.parametrize("kind", ["hdf5", "zarr", "npy"])
def test_parts_are_cast(kind: str, dtype: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-99, 99, SHAPE).astype("f4")
    path = str(tmp_path / "x.npy")
    np.save(path, x)
    if kind != "npy":
        path, _ = stored(kind, tmp_path, 0)
        with closing(open_source(path)) as source:
            source.read(tuple(slice(0, n) for n in SHAPE), x)
    found = np.stack([cf.open(path)] * 2, dtype=dtype, casting="unsafe").compute(budget="5MB", device="cpu")
    np.testing.assert_array_equal(found, np.stack([x, x]).astype(dtype))
    lazy = np.stack([cf.open(path)] * 2, dtype=dtype, casting="unsafe")
    got = lazy.max(axis=(1, 3)).compute(budget="800kB", device="cpu")
    np.testing.assert_array_equal(got, np.stack([x, x]).astype(dtype).max(axis=(1, 3)))


ENCODED: dict[str, tuple[str, dict[str, Any]]] = {
    "hdf5": ("hdf5", {"compression": "gzip"}),
    "zarr": ("zarr", {"compressors": "auto"}),
    "a checksum": ("zarr", {"compressors": zarr.codecs.Crc32cCodec()}),
}


@pytest.mark.parametrize("encoded", ENCODED)
@pytest.mark.parametrize("view", ["stacked", "one stacked", "sliced with steps", "at places", "split", "windows"])
def test_encoded_chunks_are_whole(encoded: str, view: str, tmp_path: Path) -> None:
    kind, options = ENCODED[encoded]
    (one, x), (two, y) = (stored(kind, tmp_path, number, **options) for number in range(2))
    found = VIEWS[view](np, cf.open(one), cf.open(two))
    axis = tuple(range(1, found.ndim))
    plan = cf.explain(cf.mean, found, axis=axis, budget="32MB", device="cpu")
    assert not plan.operands[0].storage.raw
    assert not plan.operands[0].by_parts
    assert plan.traffic.decode
    assert plan.memory.staging >= NBYTES
    with pytest.raises(BudgetError, match="hold chunks while they are decoded"):
        cf.explain(cf.mean, found, axis=axis, budget=BUDGET, device="cpu")
    got = reduced(view, cf.open(one), cf.open(two)).compute(budget="32MB", device="cpu")
    np.testing.assert_allclose(got, reduced(view, x, y), rtol=1e-6)


def test_a_stack_is_whole_where_one_array_is(tmp_path: Path) -> None:
    (one, x), (two, y) = stored("hdf5", tmp_path, 0), stored("hdf5", tmp_path, 1, compression="gzip")
    with closing(open_source(np.stack([cf.open(one), cf.open(two)]))) as source:
        assert not source.spec.by_parts
        assert not source.spec.storage.raw
    with closing(open_source(np.stack([cf.open(one), y]))) as source:
        assert source.spec.by_parts, "an array in memory has no chunks"
    got = np.stack([cf.open(one), cf.open(two)]).mean(axis=(2, 3)).compute(budget="32MB", device="cpu")
    np.testing.assert_allclose(got, np.stack([x, y]).mean(axis=(2, 3)), rtol=1e-5)


def test_small_chunks_are_whole_and_still_unencoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarrchunks, "PARTED", NBYTES + 1)
    one, _ = stored("zarr", tmp_path, 0)
    with closing(open_source(np.stack([cf.open(one)] * 2))) as source, closing(open_source(one)) as alone:
        assert source.spec.storage.raw
        assert not source.spec.by_parts
        assert source.spec.storage.copies == alone.spec.storage.copies == 1


def test_what_is_damaged_or_missing_is_seen_in_parts(tmp_path: Path) -> None:
    options: Any = {"budget": BUDGET, "device": "cpu"}
    one, x = stored("zarr", tmp_path, 0, fill_value=7)
    two, _ = stored("zarr", tmp_path, 1, fill_value=7)
    os.remove(tmp_path / "x_1.zarr" / "0.0.0")
    got = np.stack([cf.open(one), cf.open(two)]).mean(axis=(2, 3)).compute(**options)
    np.testing.assert_allclose(got, np.stack([x, np.full(SHAPE, 7, "f4")]).mean(axis=(2, 3)), rtol=1e-5)
    os.truncate(tmp_path / "x_0.zarr" / "0.0.0", NBYTES - 4)
    with pytest.raises(ReadError, match="bytes, where the chunk has"):
        np.stack([cf.open(one), cf.open(two)]).mean(axis=(2, 3)).compute(**options)


def test_a_checksum_is_verified_of_stacked_arrays(tmp_path: Path) -> None:
    kind, options = ENCODED["a checksum"]
    one, _ = stored(kind, tmp_path, 0, **options)
    (chunk,) = (tmp_path / "x_0.zarr" / "c").rglob("0/0/0")
    raw = bytearray(chunk.read_bytes())
    raw[1000] ^= 1
    chunk.write_bytes(raw)
    with pytest.raises(ReadError, match="crc32c"):
        np.stack([cf.open(one)]).mean(axis=(2, 3)).compute(budget="32MB", device="cpu")


@pytest.mark.parametrize("kind", ["zarr", "zarr, big-endian", "zarr, Fortran"])
def test_a_whole_chunk_is_not_held_twice(kind: str, tmp_path: Path) -> None:
    """Also where its elements do not follow one another in the place that they are read to."""
    path, x = stored(kind, tmp_path, 0)
    whole = tuple(slice(0, n) for n in SHAPE)
    with closing(open_source(path)) as source:
        for out in (
            np.empty((*SHAPE, 2), "f4")[..., 0],
            np.empty((64, 65, 65), "f4")[:, 1:, 1:],
            np.empty(SHAPE, "f4"),
        ):
            source.read(whole, out)
            tracemalloc.start()
            source.read(whole, out)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            np.testing.assert_array_equal(out, x)
            assert peak < NBYTES / 2


def test_parts_are_read_of_chunks_of_zarr_from_8_mib_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for rows in (127, 128):
        path = tmp_path / f"{rows}.zarr"
        array = zarr.create_array(path, shape=(rows, 128, 128), chunks=(rows, 128, 128), dtype="f4", compressors=None)
        array[...] = 1
        with closing(open_source(path)) as source:
            assert source.spec.by_parts == (rows == 128)
    np.testing.assert_array_equal(cf.mean(path, axis=(1, 2), budget="2MB", device="cpu"), 1)

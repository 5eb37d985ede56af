"""Runs on every device into every kind of sink: what other programs read is what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from support.devices import Place, everywhere
from support.foreign import HDF5_READERS, NPY_READERS, ZARR_READERS

import chunkflow as cf
from chunkflow.testing import ForeignReader, filled

h5py = pytest.importorskip("h5py")

SHAPE = (37, 29)


class Destination(NamedTuple):
    """An output for an array like the given one in a directory, its name there, and who reads it."""

    make: Callable[[Path, np.ndarray], Any]
    name: str
    readers: Sequence[ForeignReader]


def path(name: str, readers: Sequence[ForeignReader], member: str = "") -> Destination:
    return Destination(lambda folder, array: f"{folder / name}{member}", name, readers)


def zarr_array(readers: Sequence[ForeignReader] = ZARR_READERS, **options: Any) -> Destination:
    def make(folder: Path, array: np.ndarray) -> Any:
        kept: dict[str, Any] = {"shape": SHAPE, "dtype": array.dtype, "chunks": (8, 10), "fill_value": 1}
        return zarr.create_array(folder / "u.zarr", **(kept | options))

    return Destination(make, "u.zarr", readers)


def hdf5_dataset(**options: Any) -> Destination:
    def make(folder: Path, array: np.ndarray) -> Any:
        return h5py.File(folder / "x.h5", "w").create_dataset("u", SHAPE, array.dtype, **options)

    return Destination(make, "x.h5", HDF5_READERS)


def npy_map(order: Any = "C", byteorder: str = "=") -> Destination:
    def make(folder: Path, array: np.ndarray) -> Any:
        np.save(folder / "x.npy", np.zeros(SHAPE, array.dtype.newbyteorder(byteorder), order))
        return np.load(folder / "x.npy", mmap_mode="r+")

    return Destination(make, "x.npy", NPY_READERS)


BIG: Any = zarr.codecs.BytesCodec(endian="big")
DESTINATIONS = {
    "a new .npy": path("x.npy", NPY_READERS),
    "a memmap": npy_map(),
    "a memmap in Fortran order, big-endian": npy_map("F", ">"),
    "a new zarr array": path("u.zarr", ZARR_READERS),
    "raw zarr": zarr_array(compressors=None),
    "raw zarr, big-endian": zarr_array(compressors=None, serializer=BIG),
    "raw zarr, empty chunks kept": zarr_array(compressors=None, config={"write_empty_chunks": True}),
    "raw zarr of format 2 in Fortran order": zarr_array(ZARR_READERS[::2], compressors=None, zarr_format=2, order="F"),
    "zarr in zstd": zarr_array(),
    "zarr in shards": zarr_array(chunks=(4, 5), shards=(8, 10)),
    "raw zarr in shards": zarr_array(chunks=(4, 5), shards=(8, 10), compressors=None),
    "a new HDF5 dataset": path("x.h5", HDF5_READERS, ":/u"),
    "HDF5": hdf5_dataset(),
    "HDF5 in chunks": hdf5_dataset(chunks=(8, 10)),
    "HDF5, compressed": hdf5_dataset(chunks=(8, 10), compression="gzip", shuffle=True, fletcher32=True),
}


@everywhere
@pytest.mark.parametrize("name", DESTINATIONS)
def test_others_read_what_a_run_writes(name: str, place: Place, tmp_path: Path) -> None:
    destination = DESTINATIONS[name]
    array = filled(SHAPE, "i4")
    array[:8, :10] = 0  # the result is the fill value there
    out = destination.make(tmp_path, array)
    result = cf.map(lambda block: block + 1, array, out=out, device=place.device(), budget=place.budget(16_000))
    if isinstance(result, np.memmap):
        result.flush()
    if isinstance(result, h5py.Dataset):
        result.file.close()
    for reader in destination.readers:
        found = reader.read(str(tmp_path / destination.name))
        np.testing.assert_array_equal(found, array + 1, reader.name)

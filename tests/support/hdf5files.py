"""HDF5 files for the tests of their stores."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkflow.core.grid import whole
from chunkflow.stores import open_source

h5py = pytest.importorskip("h5py")

FILTERS: dict[str, dict[str, Any]] = {
    "raw": {},
    "gzip": {"compression": "gzip", "compression_opts": 1},
    "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "all": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "lzf": {"compression": "lzf", "shuffle": True},
}


def halves(array: np.ndarray) -> tuple[int, ...] | None:
    """Chunks that do not divide the array; None where it can have none."""
    return tuple(max(1, n // 2) for n in array.shape) if array.ndim and array.size else None


def save(path: Path, array: np.ndarray, name: str = "u", **options: Any) -> str:
    if options.get("chunks") is None:
        options = {}  # neither nothing nor a scalar can have filters
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=array, **options)
    return f"{path}:/{name}"


def read(obj: Any) -> np.ndarray:
    source = open_source(obj)
    out = np.empty(source.spec.shape, source.spec.dtype)
    try:
        source.read(whole(out.shape), out)
    finally:
        source.close()
    return out


def properties(dataset: Any) -> dict[str, Any]:
    """What HDF5 itself says of a dataset, besides its elements: how it was created, its type, its attributes."""
    made, kind = dataset.id.get_create_plist(), dataset.id.get_type()
    chunked = made.get_layout() == h5py.h5d.CHUNKED
    return {
        "layout": made.get_layout(),
        "chunks": made.get_chunk() if chunked else None,
        "chunk options": chunk_options(made) if chunked else None,
        "filters": [made.get_filter(i) for i in range(made.get_nfilters())],
        "allocated": made.get_alloc_time(),
        "filled": made.get_fill_time(),
        "fill value": (made.fill_value_defined(), np.asarray(dataset.fillvalue).tobytes()),
        "times tracked": made.get_obj_track_times(),
        "attributes in order": made.get_attr_creation_order(),
        "elsewhere": made.get_external_count(),
        "type": kind.encode(),
        "shapes": (dataset.shape, dataset.maxshape),
        "attributes": {name: np.asarray(value).tobytes() for name, value in dataset.attrs.items()},
        "scales": [(dim.label, [scale.name for scale in dim.values()]) for dim in dataset.dims],
        "is a scale": dataset.is_scale,
    }


def libhdf5() -> Any:
    """The HDF5 library that h5py uses; h5py has no function for each of its own."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")
    folder = os.path.dirname(os.path.dirname(h5py.__file__))  # another library may bring an HDF5 of its own
    names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libhdf5" in line}
    found = sorted(name for name in names if "_hl" not in os.path.basename(name) and name.startswith(folder))
    found = [name for name in found if "h5py" in os.path.basename(os.path.dirname(name))] or found
    if not found:
        pytest.skip("h5py is linked with HDF5 in another way")
    return ctypes.CDLL(found[0])


def filter_no_edges(made: Any) -> None:
    """Have a dataset's chunks beyond the array's edge stored unfiltered (H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS)."""
    set_options = libhdf5().H5Pset_chunk_opts
    set_options.argtypes = [ctypes.c_int64, ctypes.c_uint]
    assert set_options(made.id, 2) >= 0


def chunk_options(made: Any) -> int:
    """The options of a dataset's chunks."""
    get_options, found = libhdf5().H5Pget_chunk_opts, ctypes.c_uint()
    get_options.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint)]
    assert get_options(made.id, ctypes.byref(found)) >= 0
    return found.value


def no_space(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

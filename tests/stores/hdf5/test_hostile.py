"""HDF5 files that would have other files opened, or chunks decoded to more than they declare."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.examples import each

import chunkflow as cf
from chunkflow.errors import ArgumentError, ChunkflowError, ReadError, SourceNotFoundError
from chunkflow.stores import open_source

h5py = pytest.importorskip("h5py")

BOMB = 160 << 20


def links(path: Path) -> None:
    """A file with links of every kind, some into `other.h5`."""
    with h5py.File(path.parent / "other.h5", "w") as file:
        file["u"] = file["group/u"] = np.arange(3)
    with h5py.File(path, "w") as file:
        file["u"] = np.arange(3)
        file["inner/u"] = np.arange(3)
        file["good"], file["inner/near"] = h5py.SoftLink("/inner/u"), h5py.SoftLink("u")
        file["far"], file["group"] = h5py.ExternalLink("other.h5", "/u"), h5py.ExternalLink("other.h5", "/")
        file["soft"], file["softer"] = h5py.SoftLink("/group/u"), h5py.SoftLink("soft")
        file["pipe"] = h5py.ExternalLink("pipe.h5", "/u")
        file["gone"] = h5py.ExternalLink("gone.h5", "/u")
        for i in range(30):  # each leads twice to the next
            file[f"l{i}"] = h5py.SoftLink(f"/l{i + 1}/l{i + 1}")
    os.mkfifo(path.parent / "pipe.h5")


LINKS: list[tuple[str, type[ChunkflowError], str]] = [
    ("far", ArgumentError, r"'other\.h5'.*not opened because a file says so.*h5py\.Dataset"),
    ("group/u", ArgumentError, r"'/group' .*'other\.h5'"),
    ("group/group/u", ArgumentError, r"'/group' .*'other\.h5'"),
    ("./group//u", ArgumentError, r"'/group' .*'other\.h5'"),
    ("soft", ArgumentError, r"'/group' .*'other\.h5'"),
    ("softer", ArgumentError, r"'/group' .*'other\.h5'"),
    ("pipe", SourceNotFoundError, r"'pipe\.h5', which has no such name, or is no HDF5 file"),
    ("gone", SourceNotFoundError, r"'gone\.h5', which does not exist"),
    ("l0", SourceNotFoundError, "'/l0' is a link"),
]


@pytest.mark.parametrize(("name", "kind", "said"), LINKS, ids=[name for name, *_ in LINKS])
def test_a_link_into_another_file_is_not_followed(
    name: str, kind: type[ChunkflowError], said: str, tmp_path: Path
) -> None:
    links(tmp_path / "x.h5")
    with pytest.raises(kind, match=said):
        cf.sum(f"{tmp_path}/x.h5:/{name}", device="cpu")


@pytest.mark.parametrize("name", ["u", "good", "inner/u", "inner/near"])
def test_links_inside_the_file_are_followed(name: str, tmp_path: Path) -> None:
    links(tmp_path / "x.h5")
    assert cf.sum(f"{tmp_path}/x.h5:/{name}", device="cpu") == 3


def test_a_dataset_that_the_user_opened_may_lie_in_another_file(tmp_path: Path) -> None:
    links(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        assert cf.sum(file["far"], device="cpu") == 3


@pytest.mark.parametrize("name", ["x.npy", "x.h5", "x.zarr", "x"])
def test_a_pipe_is_no_array(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ChunkflowError):
        open_source(tmp_path / name)


# -- Bombs ------------------------------------------------------------------------------------------------------------


def deflated(times: int, dtype: Any = "<i4", maxshape: Any = None) -> Any:
    """Makes a dataset of deflate's, once or twice, and puts a chunk of 64 bytes that holds `BOMB` bytes in place."""

    def make(file: Any) -> None:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        shape = (16,) if maxshape is None else (1, 16)
        properties.set_chunk(shape)
        for _ in range(times):
            properties.set_deflate(6)
        space = h5py.h5s.create_simple(shape, maxshape)
        kind = dtype if isinstance(dtype, h5py.h5t.TypeID) else h5py.h5t.py_create(np.dtype(dtype))
        made = h5py.Dataset(h5py.h5d.create(file.id, b"x", kind, space, properties))
        raw = bytes(BOMB)
        for _ in range(times):
            raw = zlib.compress(raw, 6)
        made.id.write_direct_chunk((0,) * len(shape), raw)

    return make


def short_integer() -> Any:
    """An integer of 24 bits, which HDF5 converts."""
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    return kind


def szip(file: Any) -> None:
    made = file.create_dataset("x", (64,), "i4", chunks=(64,), compression="szip")
    made.id.write_direct_chunk((0,), BOMB.to_bytes(4, "little") + bytes(40))


BOMBS = {
    "deflate": deflated(1),
    "deflate twice": deflated(2),
    "deflate three times": deflated(3),
    "deflate of what is converted": deflated(1, short_integer()),
    "deflate twice of what is converted": deflated(2, short_integer()),
    "deflate of what grows": deflated(1, maxshape=(1, h5py.h5s.UNLIMITED)),
    **({"szip": szip} if h5py.h5z.filter_avail(4) and h5py.h5z.get_filter_info(4) & 1 else {}),
}

RUN = """
import resource, sys
import numpy as np
import chunkflow as cf
cf.sum(np.ones(9), device="cpu")
cf.open(sys.argv[1])
def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = most()
try:
    cf.sum(sys.argv[1], device="cpu", budget="1MB")
except cf.ReadError as error:
    assert most() - before < 60, f"{most() - before} MB"
    print("refused:", error)
"""


@pytest.mark.parametrize("name", each(BOMBS, 2))
def test_a_bomb_is_an_error_in_little_memory(name: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        BOMBS[name](file)
    command = [sys.executable, "-c", RUN, f"{tmp_path}/x.h5:/x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("refused:"), done.stdout + done.stderr


def test_what_hdf5_decodes_is_read_as_before(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, options in {"lzf": {"compression": "lzf"}, "scaled": {"scaleoffset": 0}}.items():
            file.create_dataset(name, data=np.arange(100), chunks=(30,), **options)
        kind = h5py.Datatype(short_integer())
        made = file.create_dataset("short", (100,), kind, chunks=(30,), compression="gzip", shuffle=True)
        made[...] = np.arange(100)
    for name in ("lzf", "scaled", "short"):
        np.testing.assert_array_equal(cf.copy(f"{tmp_path}/x.h5:/{name}", device="cpu"), np.arange(100))


def test_a_chunk_that_is_stored_in_too_many_bytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("x", (16,), "i4", chunks=(16,), compression="lzf")
        made.id.write_direct_chunk((0,), bytes(1 << 20))
    with pytest.raises(ReadError, match="chunk"):
        cf.sum(f"{tmp_path}/x.h5:/x", device="cpu")

"""Nothing that lies in the directory of a zarr array, and is no part of it, is lost with the array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.errors import ArgumentError

OUTPUTS = ["x.npy", "x.h5", "x.nc:/u", "x.tif", "x.zarr"]


@pytest.fixture(params=[2, 3])
def array(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A zarr array of each format in a directory."""
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=np.arange(10.0), chunks=(4,), zarr_format=request.param, attributes={"units": "m"})
    return path


@pytest.mark.combinations
@pytest.mark.parametrize("where", [".", "c", "deep/er"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_no_output_lies_inside_a_zarr_array(name: str, where: str, array: Path) -> None:
    folder = array / where
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.raises(ArgumentError, match=r"would lie inside the zarr array .*a\.zarr"):
        cf.copy(np.arange(3.0), f"{folder}/{name}", device="cpu")


@pytest.mark.parametrize("name", OUTPUTS)
def test_groups_may_hold_any_files(name: str, tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "g.zarr", mode="w")
    if not name.endswith(".npy"):  # in a group of zarr's any other name is an array's
        return
    cf.copy(np.arange(3.0), f"{tmp_path}/g.zarr/{name}", device="cpu")


@pytest.mark.parametrize("other", ["notes.txt", "x.npy", "sub", "0a", "c.txt"])
def test_an_array_that_holds_other_files_is_not_replaced(other: str, array: Path) -> None:
    (array / other).mkdir() if other == "sub" else (array / other).write_text("kept")
    with pytest.raises(ArgumentError, match=rf"holds {other}, which is no part of the zarr array"):
        cf.copy(np.arange(3.0), array, overwrite=True, device="cpu")
    assert (array / other).exists()
    (zarr.open_array(array)[...] == np.arange(10.0)).all()


ENCODINGS: list[dict[str, Any]] = [
    {},
    {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    {"chunk_key_encoding": {"name": "default", "separator": "."}},
]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("how", ENCODINGS, ids=str)
def test_what_is_of_the_array_is_replaced(how: dict[str, Any], sharded: bool, tmp_path: Path) -> None:
    for shape in ((), (9,), (9, 9)):
        path, ndim = tmp_path / f"{len(shape)}.zarr", len(shape)
        chunks: dict[str, Any] = {"chunks": (4,) * ndim} if shape else {}
        shards: dict[str, Any] = {"shards": (8,) * ndim} if shape and sharded else {}
        zarr.create_array(path, data=np.ones(shape), **chunks, **shards, **how)
        (path / ".DS_Store").write_text("hidden")
        cf.copy(np.zeros(3), path, overwrite=True, device="cpu")
        assert (zarr.open_array(path)[...] == np.zeros(3)).all()

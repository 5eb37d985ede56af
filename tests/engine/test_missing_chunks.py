"""Chunks that are missing are counted, and refused on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from fsspec.implementations.memory import MemoryFileSystem

import chunkflow as cf
from chunkflow.errors import ArgumentError, ReadError

SHAPE, WRITTEN = (64, 64), np.s_[:24]


def zarred(folder: Path, **options: Any) -> str:
    how = {"chunks": (8, 32), "dtype": "f8", "fill_value": 7.0} | options
    zarr.create_array(folder / "x.zarr", shape=SHAPE, **how)[WRITTEN] = 1.0
    return str(folder / "x.zarr")


def hdf5(folder: Path, **options: Any) -> str:
    how = {"chunks": (8, 32), "dtype": "f8", "fillvalue": 7.0} | options
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("u", SHAPE, **how)[WRITTEN] = 1.0
    return f"{folder / 'x.h5'}:/u"


MAKERS: dict[str, tuple[Callable[[Path], str], str]] = {
    "zstd": (zarred, "10 of 16"),
    "raw": (lambda folder: zarred(folder, compressors=None), "10 of 16"),
    "shards": (lambda folder: zarred(folder, shards=(16, 64)), "10 of 16"),  # one shard has half of its chunks
    "format 2": (lambda folder: zarred(folder, zarr_format=2), "10 of 16"),
    "by zarr": (lambda folder: zarred(folder, compressors=[codecs.ZstdCodec(), codecs.GzipCodec()]), "10 of 16"),
    "hdf5": (lambda folder: hdf5(folder, compression="gzip"), "10 of 16"),
    "by h5py": (lambda folder: hdf5(folder, compression="lzf"), ""),  # it does not tell when it reads
}


@pytest.mark.parametrize("kind", MAKERS)
def test_they_are_counted_in_the_report(kind: str, tmp_path: Path) -> None:
    make, counted = MAKERS[kind]
    path = make(tmp_path)
    with cf.Profile() as profile:
        assert cf.sum(path, device="cpu", budget="64kB") == 24 * 64 + 7 * 40 * 64
    notes = [note for note in profile.report.notes if "missing" in note]
    assert [f"{counted} chunks are missing" in note for note in notes] == ([True] if counted else [])


@pytest.mark.parametrize("kind", MAKERS)
def test_they_are_refused_on_demand(kind: str, tmp_path: Path) -> None:
    make, _ = MAKERS[kind]
    x = cf.open(make(tmp_path), missing="error")
    with pytest.raises(ReadError, match=r"missing, and missing='error' was asked for"):
        x.sum().compute(device="cpu")
    assert x[WRITTEN].sum().compute(device="cpu") == 24 * 64


def test_explain_says_so(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=SHAPE, chunks=(8, 32), dtype="f8")
    assert "16 of the chunks that were tried are missing" in str(cf.explain(np.sqrt, array, device="cpu"))


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="missing='none' is unknown"):
        cf.open(np.ones(3), missing="none")
    with pytest.raises(ArgumentError, match="missing= is for arrays that have a path, not for a ndarray"):
        cf.open(np.ones(3), missing="error")
    np.save(tmp_path / "x.npy", np.ones(3))
    assert cf.open(tmp_path / "x.npy", missing="error").sum().compute(device="cpu") == 3


def test_a_server_that_has_no_chunk_at_all() -> None:
    url = "memory://doubted/x.zarr"
    zarr.create_array(url, shape=SHAPE, chunks=(8, 32), dtype="f8", fill_value=1.0)
    assert cf.sum(url, device="cpu") == 64 * 64, "it lists nothing"
    MemoryFileSystem().pipe_file("/doubted/x.zarr/c/9/9", b"what it does not find when asked for")
    with pytest.raises(ReadError, match=r"every chunk of memory://doubted/x\.zarr is missing, .* but it lists 'c'"):
        cf.sum(url, device="cpu")
    assert cf.open(url, missing="fill").sum().compute(device="cpu") == 64 * 64

"""Metadata of zarr arrays that lack something, or say what cannot be: refused in words before anything is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.errors import ReadError


def changed(path: Path, version: int, change: dict[str, Any]) -> Path:
    """An array whose metadata say something else, or lack what is None."""
    zarr.create_array(path, data=np.arange(16), chunks=(4,), zarr_format=version)
    document = path / {2: ".zarray", 3: "zarr.json"}[version]
    said = json.loads(document.read_text())
    said = {key: value for key, value in {**said, **change}.items() if value is not None or key not in change}
    document.write_text(json.dumps(said))
    return path


@pytest.mark.parametrize(
    ("version", "change", "said"),
    [
        (3, {"fill_value": None}, "zarr.json has no fill_value, which each array has: say it there"),
        (3, {"codecs": None, "shape": None}, "zarr.json has no shape and no codecs"),
        (2, {"fill_value": None}, ".zarray has no fill_value"),
        (2, {"chunks": [0]}, r".zarray says that chunks are \(0,\)"),
        (
            3,
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}},
            r"zarr.json says that chunks are \(0,\), and each side has one element or more",
        ),
        (
            2,
            {"dtype": "<u8", "fill_value": 1.8446744073709552e19},
            "missing elements are 1.8.*, which <u8",
        ),
        (3, {"data_type": "uint8", "fill_value": -1}, "missing elements are -1, which uint8 does not hold"),
    ],
)
def test_what_cannot_be_is_said_with_its_document(
    version: int, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = changed(tmp_path / "x.zarr", version, change)
    with pytest.raises(ReadError, match=said):
        cf.open(path)


@pytest.mark.parametrize("raw", ["", "{bad", "[1, 2"])
def test_damaged_documents_are_named(raw: str, tmp_path: Path) -> None:
    old = changed(tmp_path / "old.zarr", 2, {})
    (old / ".zattrs").write_text(raw)
    with pytest.raises(ReadError, match=r"\.zattrs is damaged"):
        cf.open(old)
    new = changed(tmp_path / "new.zarr", 3, {})
    (new / "zarr.json").write_text(raw)
    with pytest.raises(ReadError, match=r"zarr\.json is damaged"):
        cf.open(new)


def test_chunks_of_nothing_are_those_of_no_elements(tmp_path: Path) -> None:
    path = changed(tmp_path / "x.zarr", 2, {"shape": [0], "chunks": [0]})
    assert cf.open(path).shape == (0,)


def test_what_can_be_is_read(tmp_path: Path) -> None:
    for version in (2, 3):
        path = changed(tmp_path / f"{version}.zarr", version, {"fill_value": -(1 << 63)})
        np.testing.assert_array_equal(cf.open(path).compute(device="cpu"), np.arange(16))

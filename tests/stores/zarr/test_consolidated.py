"""What other readers of a group believe stays true when an array is created in it."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.foreign import ZARR_READERS, tensor_spec

import chunkflow as cf

xr = pytest.importorskip("xarray")

B = np.arange(30.0).reshape(5, 6)
pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")


@pytest.fixture(params=[2, 3])
def group(request: Any, tmp_path: Path) -> str:
    path = str(tmp_path / "a.zarr")
    made = xr.Dataset(
        {"u": (("x", "y"), np.arange(30).reshape(5, 6)), "v": (("x", "y"), np.ones((5, 6)))}, attrs={"title": "kept"}
    )
    made.to_zarr(path, zarr_format=request.param, consolidated=True)
    return path


def test_xarray_reads_what_was_written(group: str) -> None:
    cf.copy(np.sqrt(B).astype("f4"), out=f"{group}/u", overwrite=True, device="cpu")
    cf.copy(B, out=f"{group}/w", device="cpu")
    cf.copy(np.ones((7, 2)), out=f"{group}/other", device="cpu")
    found = xr.open_zarr(group)
    np.testing.assert_array_equal(found["u"], np.sqrt(B).astype("f4"))
    np.testing.assert_array_equal(found["w"], B)
    assert found["u"].dtype == np.float32
    assert found["u"].dims == ("x", "y")  # of the array that it replaced
    assert found["other"].shape == (7, 2)
    assert found.attrs == {"title": "kept"}
    for name, expected in (("u", np.sqrt(B).astype("f4")), ("w", B), ("other", np.ones((7, 2)))):
        np.testing.assert_array_equal(zarr.open_consolidated(group)[name][...], expected)
        for reader in ZARR_READERS:
            if reader.name != "zarrs" or zarr.open_group(group).metadata.zarr_format == 3:
                np.testing.assert_array_equal(reader.read(f"{group}/{name}"), expected, reader.name)


def test_a_neighbour_that_zarr_does_not_understand(group: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    version = zarr.open_group(group).metadata.zarr_format
    metadata = {"dtype": "bfloat16"} if version == 2 else {"data_type": "bfloat16"}
    spec = tensor_spec(f"{group}/odd", version, **metadata)
    tensorstore.open(spec, create=True, shape=[4], dtype=tensorstore.bfloat16).result()
    for name in ("u", "w"):
        cf.copy(B.astype("f4"), out=f"{group}/{name}", overwrite=True, device="cpu")
        np.testing.assert_array_equal(xr.open_zarr(group)[name], B.astype("f4"))


def test_runs_at_once_are_all_in_it(group: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: cf.copy(B + i, out=f"{group}/deep/{i}", device="cpu"), range(12)))
    found: Any = zarr.open_consolidated(group)
    assert sorted(found["deep"].array_keys(), key=int) == [str(i) for i in range(12)]
    assert dict(found.attrs) == {"title": "kept"}
    for i in range(12):
        np.testing.assert_array_equal(found[f"deep/{i}"][...], B + i)


@pytest.mark.parametrize("text", ["{", "[]", '{"metadata": 3}', "null"])
def test_damaged_metadata_that_nobody_believes_are_left(text: str, tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    (tmp_path / "a.zarr" / ".zmetadata").write_text(text)
    cf.copy(B, out=tmp_path / "a.zarr" / "w", device="cpu")
    assert (tmp_path / "a.zarr" / ".zmetadata").read_text() == text


def test_groups_below_are_in_it(group: str) -> None:
    cf.copy(B, out=f"{group}/deep/down/w", device="cpu")
    found = zarr.open_consolidated(group)
    np.testing.assert_array_equal(found["deep/down/w"][...], B)


def test_a_group_without_collected_metadata_gets_none(tmp_path: Path) -> None:
    cf.copy(B, out=tmp_path / "plain.zarr/u", device="cpu")
    cf.copy(B, out=tmp_path / "plain.zarr/v", device="cpu")
    with pytest.raises(ValueError, match=r"[Cc]onsolidated"):
        zarr.open_consolidated(tmp_path / "plain.zarr")
    assert zarr.open_array(tmp_path / "plain.zarr/v").metadata.dimension_names is None


def test_a_remote_group() -> None:
    pytest.importorskip("fsspec")
    url = "memory://consolidated/a.zarr"
    made = zarr.open_group(url, mode="w")
    made.create_array("u", shape=(5, 6), dtype="i4")[...] = 1
    zarr.consolidate_metadata(made.store)
    cf.copy(B.astype("f4"), out=f"{url}/u", overwrite=True, device="cpu")
    cf.copy(B, out=f"{url}/w", device="cpu")
    found = zarr.open_consolidated(url)
    assert found["u"].dtype == np.float32
    np.testing.assert_array_equal(found["w"][...], B)


def test_a_remote_group_of_xarrays() -> None:
    pytest.importorskip("fsspec")
    url = "memory://consolidated/x.zarr"
    made = xr.Dataset({"u": (("x", "y"), np.arange(30).reshape(5, 6))}, attrs={"title": "kept"})
    made.to_zarr(url, zarr_format=3, consolidated=True)
    cf.copy(np.sqrt(B).astype("f4"), out=f"{url}/u", overwrite=True, device="cpu")
    cf.copy(B, out=f"{url}/w", device="cpu")
    cf.copy(B, out=f"{url}/deep/v", device="cpu")
    found = xr.open_zarr(url)
    np.testing.assert_array_equal(found["u"], np.sqrt(B).astype("f4"))
    np.testing.assert_array_equal(found["w"], B)
    assert found["u"].dims == ("x", "y")
    assert found["w"].dims == ("w_0", "w_1")
    assert found.attrs == {"title": "kept"}
    assert zarr.open_array(f"{url}/deep/v").metadata.dimension_names is None  # in a group of its own


def test_a_neighbour_in_a_plain_directory_is_none_of_a_group(tmp_path: Path) -> None:
    xr.DataArray(B, dims=("x", "y"), name="u").to_dataset().to_zarr(tmp_path / "other", consolidated=False)
    zarr.create_array(tmp_path / "named", shape=(2, 2), dtype="f4", dimension_names=("x", "y"))
    cf.copy(B, out=tmp_path / "mine.zarr", device="cpu")
    assert zarr.open_array(tmp_path / "mine.zarr").metadata.dimension_names is None


def test_a_directory_becomes_a_group_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing hidden is left to be removed, which a disk might refuse once the array is there."""
    unlink = os.unlink

    def refused(path: Any, **options: Any) -> None:
        if str(path).endswith(".partial"):
            raise OSError(errno.EIO, "refused", path)
        unlink(path, **options)

    folder = tmp_path / "d.zarr"
    folder.mkdir()
    monkeypatch.setattr(os, "unlink", refused)
    cf.copy(B, out=folder / "a", device="cpu")
    monkeypatch.undo()
    assert not list(folder.rglob("*.partial"))
    np.testing.assert_array_equal(zarr.open_group(folder, mode="r")["a"][...], B)

"""Arrays as tensorstore and zarr-python write them: read right, written into, and their metadata left as they are."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.foreign import ZARR_READERS, create_tensor, tensor, tensor_spec

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.stores import open_source, open_target
from chunkflow.stores.zarr.multiscales import level_in
from chunkflow.testing import ForeignReader, filled

SHAPE = (23, 17, 5)
METADATA = ("zarr.json", ".zarray", ".zattrs")

# -- Each way in which tensorstore stores an array --------------------------------------------------------------------

BLOSC = {"id": "blosc", "clevel": 5, "shuffle": 1}
FORMAT_2: dict[str, dict[str, Any]] = {
    "raw": {"compressor": None},
    "zlib": {"compressor": {"id": "zlib", "level": 4}},
    "gzip": {"compressor": {"id": "gzip", "level": 4}},
    "bz2": {"compressor": {"id": "bz2", "level": 1}},
    "zstd": {"compressor": {"id": "zstd", "level": 3}},
    **{
        f"blosc of {name}": {"compressor": BLOSC | {"cname": name}}
        for name in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
    },
    "blosc, no shuffle": {"compressor": BLOSC | {"cname": "lz4", "shuffle": 0}},
    "blosc, bits": {"compressor": BLOSC | {"cname": "lz4", "shuffle": 2}},
    "blosc, automatic shuffle": {"compressor": BLOSC | {"cname": "lz4", "shuffle": -1}},
    "nested": {"dimension_separator": "/"},
    "Fortran order": {"order": "F"},
    "a fill value": {"fill_value": 1},
    "all": {"compressor": BLOSC | {"cname": "zstd"}, "dimension_separator": "/", "order": "F", "fill_value": 0},
}
LITTLE, BIG = ({"name": "bytes", "configuration": {"endian": endian}} for endian in ("little", "big"))
GZIP = {"name": "gzip", "configuration": {"level": 3}}
ZSTD = {"name": "zstd", "configuration": {"level": 3}}
CRC = {"name": "crc32c"}
BLOSC_3 = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}


def turned(*order: int) -> dict[str, Any]:
    return {"name": "transpose", "configuration": {"order": order}}


def sharded(*codecs: Any, at: str = "end", chunk: tuple[int, ...] = (4, 4, 5)) -> dict[str, Any]:
    """Metadata of shards of 2 x 2 chunks."""
    how = {"chunk_shape": chunk, "codecs": codecs, "index_codecs": [LITTLE, CRC], "index_location": at}
    return {"codecs": [{"name": "sharding_indexed", "configuration": how}], **chunked(8, 8, 5)}


def chunked(*sides: int) -> dict[str, Any]:
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": sides}}}


def keyed(name: str, separator: str) -> dict[str, Any]:
    return {"chunk_key_encoding": {"name": name, "configuration": {"separator": separator}}}


FORMAT_3: dict[str, dict[str, Any]] = {
    "raw": {"codecs": [LITTLE]},
    "big-endian": {"codecs": [BIG]},
    "gzip": {"codecs": [LITTLE, GZIP]},
    "zstd": {"codecs": [BIG, ZSTD]},
    "blosc": {"codecs": [LITTLE, {"name": "blosc", "configuration": BLOSC_3}]},
    "checksum": {"codecs": [LITTLE, CRC]},
    "checksum before gzip": {"codecs": [LITTLE, CRC, GZIP]},
    "checksum behind zstd": {"codecs": [LITTLE, ZSTD, CRC]},
    "transposed": {"codecs": [turned(2, 0, 1), LITTLE]},
    "transposed twice": {"codecs": [turned(2, 0, 1), turned(1, 0, 2), BIG, GZIP]},
    "keys with dots": keyed("default", "."),
    "keys of format 2": keyed("v2", "."),
    "keys of format 2, nested": keyed("v2", "/"),
    "a fill value": {"fill_value": 1},
    "names": {"dimension_names": ["x", None, "z"], "attributes": {"units": "m"}},
    "shards": sharded(LITTLE),
    "shards, index first": sharded(LITTLE, ZSTD, at="start"),
    "shards, transposed": sharded(turned(2, 1, 0), BIG, GZIP, CRC),
    "shards of one chunk": sharded(LITTLE, chunk=(8, 8, 5)),
    "one chunk": {"codecs": [LITTLE, ZSTD], **chunked(64, 64, 64)},
}


def created(path: Path, version: int, name: str, dtype: str) -> np.ndarray:
    """An array that tensorstore writes; its elements. One chunk holds nothing but the fill value."""
    array = filled(SHAPE, dtype)
    if version == 2:
        metadata = {"chunks": [5, 4, 5], "dtype": dtype, **FORMAT_2[name]}
    else:
        metadata = {"data_type": array.dtype.name, **chunked(5, 4, 5), **FORMAT_3[name]}
        if array.dtype.itemsize == 1 and "codecs" in metadata and metadata["codecs"][0] in (LITTLE, BIG):
            metadata["codecs"] = [{"name": "bytes"}, *metadata["codecs"][1:]]
    fill = metadata.get("fill_value", 0)
    array[:5, :4] = fill
    if "fill_value" in metadata:  # as JSON has it
        metadata["fill_value"] = {"c": [fill, 0], "b": bool(fill)}.get(array.dtype.kind, fill)
    create_tensor(array, tensor_spec(path, version, **metadata))
    return array


def readers(version: int, name: str, dtype: str) -> tuple[ForeignReader, ...]:
    """Programs that read an array. Zarrs is of format 3, and takes the halves of complex numbers for one number."""
    swapped = dtype == "<c8" and (name == "shards, transposed" or BIG in FORMAT_3.get(name, {}).get("codecs", []))
    return tuple(reader for reader in ZARR_READERS if reader.name != "zarrs" or (version == 3 and not swapped))


def metadata(path: Path) -> dict[str, bytes]:
    """All that is known of an array besides its elements."""
    return {name: (path / name).read_bytes() for name in METADATA if (path / name).exists()}


CASES = [*((2, name) for name in FORMAT_2), *((3, name) for name in FORMAT_3)]


@pytest.mark.parametrize(("version", "name"), CASES)
@pytest.mark.parametrize("dtype", ["<f4", ">i2", "|b1", "<c8", "|u1"])
def test_what_tensorstore_writes(version: int, name: str, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "u.zarr"
    array = created(path, version, name, dtype)
    budget = "40kB" if name != "one chunk" else "2MB"
    np.testing.assert_array_equal(cf.copy(path, budget=budget, device="cpu"), array)
    np.testing.assert_array_equal(cf.copy(tensor(path), budget=budget, device="cpu"), array)
    before = metadata(path)
    new = np.roll(array, 3, 0)
    cf.copy(new, out=zarr.open_array(path, mode="r+"), budget=budget, device="cpu")
    for reader in readers(version, name, dtype):
        np.testing.assert_array_equal(reader.read(str(path)), new, reader.name)
    assert metadata(path) == before


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("fill", [0.0, -0.0, 1.5, float("nan"), float("-inf")])
def test_chunks_of_the_fill_value(version: int, fill: float, tmp_path: Path) -> None:
    """Tensorstore leaves them out, and so does zarr; what reads as another zero is kept."""
    path = tmp_path / "u.zarr"
    for values in (np.full((9, 7), fill), np.zeros((9, 7)), -np.zeros((9, 7)), filled((9, 7), "f8")):
        for mode in ("w", "r+"):
            options: dict[str, Any] = {"config": {"write_empty_chunks": False}}
            made = zarr.create_array(
                path,
                shape=(9, 7),
                dtype="f8",
                chunks=(4, 4),
                fill_value=fill,
                zarr_format=version,
                overwrite=True,
                **options,
            )
            if mode == "r+":
                made[...] = 5
            cf.copy(values, out=made, device="cpu")
            for reader in readers(version, "", "<f8"):
                found = reader.read(str(path))
                assert found.tobytes() == values.tobytes(), reader.name


@pytest.mark.parametrize("version", [2, 3])
def test_a_codec_that_was_not_built_is_refused_at_once(version: int, tmp_path: Path) -> None:
    path = tmp_path / "u.zarr"
    if version == 2:
        create_tensor(filled((23, 17), "f4"), tensor_spec(path, 2, compressor=BLOSC | {"cname": "snappy"}))
    else:
        codecs = [LITTLE, {"name": "blosc", "configuration": BLOSC_3 | {"cname": "snappy"}}]
        create_tensor(filled((23, 17), "f4"), tensor_spec(path, 3, codecs=codecs))
    for opened in (open_source, lambda path: open_target(zarr.open_array(path, mode="r+"))):
        with pytest.raises(ArgumentError, match=r"u\.zarr.*snappy is not built into numcodecs.*tensorstore\.open"):
            opened(path)
    np.testing.assert_array_equal(cf.copy(tensor(path), device="cpu"), filled((23, 17), "f4"))


@pytest.mark.parametrize("version", [2, 3])
def test_a_dtype_that_zarr_has_not_is_refused_by_name(version: int, tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    kind: dict[str, Any] = {"dtype": "bfloat16"} if version == 2 else {"data_type": "bfloat16"}
    spec = tensor_spec(tmp_path / "a.zarr" / "odd", version, **kind)
    made = tensorstore.open(spec, create=True, shape=[3], dtype=tensorstore.bfloat16).result()
    made[...] = [1, 2, 3]
    zarr.open_group(tmp_path / "a.zarr", mode="a", zarr_format=version)
    with pytest.raises(ArgumentTypeError, match=r"a\.zarr/odd has a dtype.*bfloat16.*tensorstore\.open.*astype"):
        open_source(tmp_path / "a.zarr" / "odd")
    with pytest.raises(ArgumentError, match=r"group.*a\.zarr/odd"):
        open_source(tmp_path / "a.zarr")
    assert cf.copy(made.astype("float32"), device="cpu").tolist() == [1, 2, 3]


def test_zarrs_decodes_what_is_left_to_zarr(tmp_path: Path) -> None:
    """Where the user has it for a pipeline."""
    pytest.importorskip("zarrs")
    array = filled((60, 50), "f4")
    twice: Any = [zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()]
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        made = zarr.create_array(tmp_path / "u.zarr", shape=(60, 50), dtype="f4", chunks=(16, 20), compressors=twice)
        assert "through zarr" in open_source(made).spec.storage.how
        cf.copy(array, out=made, budget="100kB", device="cpu")
        np.testing.assert_array_equal(cf.copy(made, budget="100kB", device="cpu"), array)
    for reader in ZARR_READERS:
        np.testing.assert_array_equal(reader.read(str(tmp_path / "u.zarr")), array, reader.name)


# -- Images of several scales -----------------------------------------------------------------------------------------


def image(path: Path, version: int, *, named: bool = True) -> dict[str, Any]:
    """A group of an image at two scales, as OME-Zarr 0.4 and 0.5 have it; what the group says of itself."""
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    scales = [{"path": str(i), "coordinateTransformations": [{"type": "scale", "scale": [2**i] * 2}]} for i in range(2)]
    images = [{"axes": axes, "datasets": scales, "name": "cells"}]
    says = {"ome": {"version": "0.5", "multiscales": images}} if version == 3 else {"multiscales": images}
    group = zarr.create_group(path, zarr_format=version, attributes=says)
    for i in range(2):
        options: dict[str, Any] = {"dimension_names": ("y", "x")} if version == 3 and named else {}
        keys: Any = {"name": "v2" if version == 2 else "default", "separator": "/"}
        group.create_array(
            str(i), shape=(40 >> i, 60 >> i), chunks=(16, 16), dtype="u2", chunk_key_encoding=keys, **options
        )
        group[str(i)][...] = filled((40 >> i, 60 >> i), "u2")
    return says


@pytest.mark.parametrize("version", [2, 3])
def test_a_level_of_an_image(version: Any, tmp_path: Path) -> None:
    path = tmp_path / "cells.ome.zarr"
    says = image(path, version)
    np.testing.assert_array_equal(cf.copy(path / "0", device="cpu"), filled((40, 60), "u2"))
    cf.copy(filled((40, 60), "u2") * 2, out=path / "0", overwrite=True, device="cpu")
    cf.copy(filled((10, 15), "u2"), out=path / "2", device="cpu")
    cf.copy(filled((20, 30), "u2") * 3, out=zarr.open_array(path / "1", mode="r+"), device="cpu")
    for reader in readers(version, "", "<u2"):
        for name, expected in (
            ("0", filled((40, 60), "u2") * 2),
            ("1", filled((20, 30), "u2") * 3),
            ("2", filled((10, 15), "u2")),
        ):
            np.testing.assert_array_equal(reader.read(os.path.join(path, name)), expected, reader.name)
    for name in "01":
        assert (path / name / ("" if version == 2 else "c") / "0" / "0").exists(), "chunks lie in folders"
    group = zarr.open_group(path, mode="r")
    assert dict(group.attrs) == says
    if version == 3:
        assert zarr.open_array(path / "0").metadata.dimension_names == ("y", "x")


def names_of(path: Path) -> Any:
    array = zarr.open_array(path, mode="r")
    return array.metadata.dimension_names if array.metadata.zarr_format == 3 else array.attrs["_ARRAY_DIMENSIONS"]


@pytest.mark.parametrize("version", [2, 3])
def test_results_have_the_names_of_an_images_axes(version: Any, tmp_path: Path) -> None:
    path = tmp_path / "cells.ome.zarr"
    image(path, version, named=False)
    cf.copy(path / "0", out=tmp_path / "copy.zarr", device="cpu")
    cf.rechunk(path / "1", (8, -1), tmp_path / "chunks.zarr", device="cpu")
    cf.copy(path / "1", out=path / "2", device="cpu")
    cf.copy(zarr.open_group(path, mode="r")["1"], out=path / "3", device="cpu")
    cf.store([cf.open(path / "0").max(axis=0)], [tmp_path / "line.zarr"], device="cpu")
    for made in (tmp_path / "copy.zarr", tmp_path / "chunks.zarr", path / "2", path / "3"):
        assert list(names_of(made)) == ["y", "x"], made
    assert list(names_of(tmp_path / "line.zarr")) == ["x"]


@pytest.mark.parametrize("version", [2, 3])
def test_new_levels_of_an_image_are_as_its_metadata_say(version: Any, tmp_path: Path) -> None:
    path, source = tmp_path / "cells.ome.zarr", tmp_path / "source.zarr"
    says = image(source, version)
    zarr.create_group(path, zarr_format=version, attributes=says)
    cf.copy(filled((40, 60), "u2"), out=path / "0", device="cpu")
    cf.store([cf.coarsen(np.mean, cf.open(path / "0"), {0: 2, 1: 2})], [path / "1"], device="cpu")
    for name in "01":
        assert list(names_of(path / name)) == ["y", "x"]
        assert (path / name / ("" if version == 2 else "c") / "0" / "0").is_file(), "chunks lie in folders"
    cf.store([cf.coarsen(np.mean, cf.open(path / "1"), {0: 2, 1: 2})], [path / "7"], device="cpu")
    assert list(names_of(path / "7")) == ["y", "x"], "one beside the others, which is not described yet"


def test_an_image_behind_a_url_names_its_axes(tmp_path: Path) -> None:
    image(tmp_path / "cells.ome.zarr", 3, named=False)
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").put(str(tmp_path / "cells.ome.zarr"), "/axes/cells.ome.zarr", recursive=True)
    with closing(open_source("memory://axes/cells.ome.zarr/1")) as source:
        assert (source.level().names, source.level().scale) == (("y", "x"), (2.0, 2.0))  # type: ignore[attr-defined]
        assert source.labels().dimension_names == ("y", "x")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [{"axes": ["y"], "datasets": [{"path": "0"}]}],
        [{"axes": ["y", "y"], "datasets": [{"path": "0"}]}],
        [{"axes": [{"name": "y"}, 3], "datasets": [{"path": "0"}]}],
        [{"axes": ["y", "x"], "datasets": [{"path": 0}, None]}],
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_images_that_are_not_understood_name_nothing(wrong: Any, version: Any, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr", zarr_format=version, attributes={"multiscales": wrong, "ome": 1})
    group.create_array("0", data=filled((4, 6), "u2"))
    cf.copy(tmp_path / "g.zarr" / "0", out=tmp_path / "o.zarr", device="cpu")
    assert zarr.open_array(tmp_path / "o.zarr").metadata.dimension_names is None


def test_axes_that_are_texts_have_no_units_and_scales_are_multiplied() -> None:
    steps = [{"type": "scale", "scale": [2, 3]}]
    levels = [{"path": "s0/image", "coordinateTransformations": [*steps, {"type": "translation"}]}]
    said = {"multiscales": [{"axes": ["y", "x"], "datasets": levels, "coordinateTransformations": steps}]}
    assert level_in(said, "s0/image", 2) == (("y", "x"), (None, None), (4.0, 9.0))

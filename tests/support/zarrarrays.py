"""Zarr arrays of every kind that is read and written directly, for the tests beside this file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
import zarr.codecs as codecs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from support.examples import examples

from chunkflow.core.grid import Region, Shape
from chunkflow.stores.kvstore.folder import Folder
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.stores.zarr.metadata import direct
from chunkflow.stores.zarr.shards import Shards

BLOSC = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
DTYPES = ("f4", "f8", ">f4", ">i2", "?", "c8", "u1", "f2", "i8", ">c16")

modest = settings(
    max_examples=examples(3 / 2),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

compressors_3 = st.one_of(
    st.just([]),
    st.builds(lambda level, sure: [codecs.ZstdCodec(level=level, checksum=sure)], st.integers(0, 3), st.booleans()),
    st.builds(
        lambda name, shuffle: [codecs.BloscCodec(cname=name, shuffle=shuffle)],
        st.sampled_from(BLOSC),
        st.sampled_from(SHUFFLES),
    ),
    st.just([codecs.GzipCodec(level=1)]),
)
compressors_2 = st.one_of(
    st.none(),
    st.builds(numcodecs.Zstd, st.integers(0, 3)),
    st.builds(lambda name, s: numcodecs.Blosc(name, shuffle=s), st.sampled_from(BLOSC), st.integers(0, 2)),
    st.just(numcodecs.LZ4()),
    st.just(numcodecs.GZip()),
    st.just(numcodecs.Zlib()),
)


def filters_2(dtype: np.dtype) -> st.SearchStrategy[Any]:
    """Filters of format 2, all of which give back the numbers they were given."""
    chains = [None, [numcodecs.Shuffle(dtype.itemsize)]]
    if dtype.kind in "iu":
        wide = np.dtype("f8")
        chains += [
            [numcodecs.Delta(dtype), numcodecs.Shuffle(2)],
            [numcodecs.AsType(wide, dtype), numcodecs.Delta(wide)],
        ]
    return st.sampled_from(chains)


@st.composite
def chains_3(draw: st.DrawFn, ndim: int) -> dict[str, Any]:
    """Filters, serializer and compressors of format 3, checksums before and behind."""
    sums = [[codecs.Crc32cCodec()] * draw(st.integers(0, 1)) for _ in range(2)]
    return {
        "filters": [codecs.TransposeCodec(order=o) for o in draw(st.lists(st.permutations(range(ndim)), max_size=2))],
        "serializer": codecs.BytesCodec(endian=draw(st.sampled_from(["little", "big"]))),
        "compressors": sums[0] + draw(compressors_3) + sums[1],
    }


@st.composite
def arrays(draw: st.DrawFn, sharded: bool | None = None) -> dict[str, Any]:
    """What `zarr.create_array` is told, for an array that is read and written directly."""
    ndim = draw(st.integers(1, 3))
    sides = st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim).map(tuple)
    chunks = draw(sides)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    fills = [0, 1] if dtype.kind in "bui" else [0.0, 1.5, float("nan")]
    if dtype.kind == "f":  # of complex numbers zarr itself leaves out chunks of zeros with another sign
        fills.append(-0.0)
    options: dict[str, Any] = {
        "shape": tuple(draw(st.lists(st.integers(1, 10), min_size=ndim, max_size=ndim))),
        "chunks": chunks,
        "dtype": dtype,
        "fill_value": draw(st.sampled_from(fills)),
        "config": {"write_empty_chunks": draw(st.booleans())},
    }
    if sharded is None:
        sharded = draw(st.booleans())
    if not sharded and draw(st.booleans()):
        return options | {
            "zarr_format": 2,
            "order": draw(st.sampled_from("CF")),
            "compressors": draw(compressors_2),
            "filters": draw(filters_2(dtype)),
        }
    if sharded:
        shards = tuple(c * n for c, n in zip(chunks, draw(sides), strict=True))
        options["shards"] = {"shape": shards, "index_location": draw(st.sampled_from(["start", "end"]))}
    return options | draw(chains_3(ndim))


@st.composite
def regions(draw: st.DrawFn, shape: Shape) -> Region:
    starts = [draw(st.integers(0, n - 1)) for n in shape]
    return tuple(slice(a, draw(st.integers(a + 1, n))) for a, n in zip(starts, shape, strict=True))


def fresh(tmp_path: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=tmp_path)) / "u.zarr"


def create(path: Path, options: dict[str, Any]) -> Any:
    return zarr.create_array(path, **options)


def values(options: dict[str, Any], seed: int = 0) -> np.ndarray:
    """Native values for such an array; some chunks hold nothing but the fill value."""
    rng = np.random.default_rng(seed)
    dtype = options["dtype"].newbyteorder("=")
    array = np.asarray(rng.integers(0, 2 if dtype.kind == "b" else 100, options["shape"])).astype(dtype)
    for _ in range(3):
        sides = zip(options["shape"], options["chunks"], strict=True)
        corner = tuple(slice(c * i, c * (i + 1)) for i, c in [(int(rng.integers(0, -(-n // c))), c) for n, c in sides])
        array[corner] = options["fill_value"]
    return array


def ours(array: Any) -> Chunks | Shards:
    return direct(array, Folder(str(array.store.root)))


def same(one: np.ndarray, two: np.ndarray) -> None:
    """The same to the bit, NaN's and zero's signs too."""
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    assert np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(two).tobytes()

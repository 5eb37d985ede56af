"""zarr arrays of several codecs to their sums; the bound is the link, or to decode their chunks if that is less."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numcodecs
import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, Goal, close_to
from benchmarks.data import in_threads
from benchmarks.peers.streams import cubed_sum, dask_sum
from benchmarks.probe import installed
from benchmarks.timing import median_seconds

CHUNK = 128  # side of a zarr chunk
SHARD = 2 * CHUNK


def cases(bench: Bench) -> Iterator[Case]:
    """zarr arrays of several codecs to their sums; the bound is the link, or to decode their chunks if that is less."""
    side = max(SHARD, round((bench.gib * 2**30 / 16) ** (1 / 3) / SHARD) * SHARD)
    ax = np.linspace(0, 8 * np.pi, side, dtype="f4")
    x = np.sin(ax)[:, None, None] * np.cos(ax)[:, None] + np.sin(ax * 1.7)
    x += np.round(np.random.default_rng(0).standard_normal((side, side, side), dtype="f4") * 64) / 16384
    check, amount = close_to(float(x.sum(dtype="f8"))), x.nbytes / 1e9
    blosc, zstd, sharded = zarr.codecs.BloscCodec, zarr.codecs.ZstdCodec, {"chunks": (64,) * 3, "shards": (SHARD,) * 3}
    on_device = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.libnvcomp")
    kinds: dict[str, tuple[dict[str, Any], Any, Goal]] = {
        "raw": ({"compressors": None}, None, Goal(rate=38)),
        "blosc lz4": ({"compressors": blosc(cname="lz4", clevel=5)}, numcodecs.Blosc("lz4", 5, 1), Goal(rate=24)),
        "blosc zstd": ({"compressors": blosc(cname="zstd", clevel=3)}, numcodecs.Blosc("zstd", 3, 1), Goal(rate=20)),
        "zstd": ({"compressors": zstd(level=1)}, numcodecs.Zstd(1), Goal(rate=20 if on_device else 10)),
        "zstd in shards": ({"compressors": zstd(level=1), **sharded}, numcodecs.Zstd(1), Goal(0.8)),
    }
    there, missing = installed("dask", "zarrs", *([] if bench.is_gpu else ["cubed"]))
    whole = str(bench.directory / "whole.zarr")
    for name, (options, codec, goal) in kinds.items():
        path = str(bench.directory / f"{name.replace(' ', '-')}.zarr")
        store = zarr.create_array(path, shape=x.shape, dtype="f4", **{"chunks": (CHUNK,) * 3, **options})
        for i in range(0, side, SHARD):
            store[i : i + SHARD] = x[i : i + SHARD]

        def slabs(store: Any = store) -> float:
            return float(sum(bench.xp.asarray(store[i : i + CHUNK]).sum(dtype="f8") for i in range(0, side, CHUNK)))

        def through_zarrs(path: str = path, slabs: Callable[..., float] = slabs) -> float:
            with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                return slabs(zarr.open_array(path, mode="r"))

        runs: dict[str, Callable[[], Any]] = {OURS: lambda path=path: cf.sum(path, **bench.options)}
        runs["zarr-python, by slabs"] = slabs
        if "zarrs" in there:
            runs["zarrs, by slabs"] = through_zarrs
        if "dask" in there:
            runs["dask, threads"] = dask_sum(bench, store, store.shards or store.chunks)
        if "cubed" in there:
            runs["cubed, threads"] = cubed_sum(bench, path)
        limit: tuple[str, float | None] = ("the link", bench.link)
        if codec is not None and store.shards is None:
            own = decoding(x[tuple(slice(0, n) for n in store.chunks)], codec)
            limit = ("decoding by all cores", own) if own < bench.link else limit
        if store.shards is not None:
            zarr.create_array(whole, data=x, chunks=store.chunks, compressors=options["compressors"], overwrite=True)
            limit = ("the same without shards", None)
            runs[limit[0]] = lambda: cf.sum(whole, **bench.options)
        what = f"{x.shape} in chunks of {store.chunks}"
        yield Case(f"zarr, {name}", what, amount, runs, check, limit, goal, missing=missing)
        shutil.rmtree(path)
    shutil.rmtree(whole, ignore_errors=True)


def decoding(x: np.ndarray, codec: Any) -> float:
    """GB/s at which all cores decode chunks of `x` into buffers of their own."""
    encoded, local, number = codec.encode(np.ascontiguousarray(x)), threading.local(), 4 * (os.cpu_count() or 1)

    def decode(i: int) -> None:
        if not hasattr(local, "out"):
            local.out = np.empty(x.nbytes, np.uint8)
        codec.decode(encoded, local.out)

    return number * x.nbytes / 1e9 / median_seconds(lambda: in_threads(decode, number))

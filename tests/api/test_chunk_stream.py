"""`chunks` hands out an array's blocks in order, prefetched, and leaves nothing behind however the loop ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.devices import Place, at_work, everywhere, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.testing import CountingSource, FailingArray, filled


def volume() -> np.ndarray:
    return filled((80, 500), "f4")


def stored(kind: str, array: np.ndarray, folder: Path) -> Any:
    if kind == "npy":
        np.save(folder / "x.npy", array)
        return folder / "x.npy"
    if kind == "zarr":
        made = zarr.create_array(folder / "x.zarr", shape=array.shape, dtype=array.dtype, chunks=(7, 300))
        made[...] = array
        return folder / "x.zarr"
    return CountingSource(array) if kind == "generic" else array


def stream(place: Place, array: Any, **options: Any) -> cf.ChunkStream:
    return cf.chunks(array, **({"budget": place.budget(100_000), "device": place.device()} | options))


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    def held() -> tuple[list[str], list[str]]:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        files = [os.readlink(link) for link in links if os.path.islink(link)]
        return at_work(), sorted(f for f in files if f.startswith(str(folder)))

    before = held()
    yield
    assert held() == before


sources = pytest.mark.parametrize("kind", ["ndarray", "npy", "zarr", "generic"])


@everywhere
@sources
def test_the_blocks_come_in_order_and_tile_the_array(place: Place, kind: str, tmp_path: Path) -> None:
    x = volume()
    with nothing_left(tmp_path):
        blocks = stream(place, stored(kind, x, tmp_path), chunks=None if kind == "zarr" else (9, -1))
        seen, indices, copy = np.zeros(x.shape, int), [], np.zeros_like(x)
        for chunk in blocks:
            seen[chunk.region] += 1
            indices.append(chunk.index)
            copy[chunk.region] = place.host(chunk.data)
            assert chunk.data.shape == copy[chunk.region].shape
            assert str(chunk.index) in repr(chunk)
    assert (seen == 1).all()
    assert len(indices) == len(blocks) == len(blocks.plan.grid)
    assert len(indices) > 1 or kind == "zarr"
    assert indices == sorted(indices)
    same(copy, x)


@everywhere
@given(
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    dtype=st.sampled_from(["?", "i2", "f4", ">f8", "c16"]),
    share=st.sampled_from([0.1, 0.4, 3]),
)
@settings(max_examples=examples(1 / 4), suppress_health_check=[HealthCheck.too_slow])
def test_random_arrays(place: Place, shape: tuple[int, ...], dtype: str, share: float) -> None:
    x = filled(shape, dtype)
    budget = place.budget(max(1, int(x.nbytes * share)))
    try:
        blocks = stream(place, x, budget=budget)
    except cf.BudgetError as error:
        blocks = stream(place, x, budget=error.smallest)
    copy = np.zeros(shape, np.dtype(dtype).newbyteorder("="))
    for chunk in blocks:
        copy[chunk.region] = place.host(chunk.data)
    same(copy, x.astype(copy.dtype))


@everywhere
@pytest.mark.parametrize(
    ("chunks", "counts"), [(50, (2, 10)), ((50, 100), (2, 5)), ((-1, 250), (1, 2)), ((33, None), (3, 1))]
)
def test_chunks_fix_the_blocks(place: Place, chunks: Any, counts: tuple[int, int]) -> None:
    blocks = stream(place, volume(), chunks=chunks, budget=place.budget(1 << 20))
    assert blocks.plan.grid.counts == counts
    assert len(blocks) == counts[0] * counts[1]
    assert sum(float(chunk.data.sum()) for chunk in blocks) == volume().sum()


@everywhere
def test_each_element_is_read_once(place: Place) -> None:
    x = CountingSource(volume())
    blocks = stream(place, x, chunks=(3, -1))
    assert x.bytes_read == 0, "the plan reads nothing"
    for _ in blocks:
        pass
    assert x.bytes_read == volume().nbytes


@everywhere
def test_a_chunk_is_stale_when_the_loop_has_moved_on(place: Place) -> None:
    chunk, *_ = list(stream(place, volume(), chunks=(20, -1)))
    with pytest.raises(errors.StaleChunkError, match="own iteration"):
        chunk.data  # noqa: B018
    assert (chunk.index, chunk.region) == ((0, 0), (slice(0, 20), slice(0, 500)))
    blocks = stream(place, volume(), chunks=(20, -1))
    first = next(blocks)
    assert first.data.shape == (20, 500)
    blocks.close()
    with pytest.raises(errors.StaleChunkError):
        first.data  # noqa: B018


@everywhere
@pytest.mark.parametrize("kind", ["npy", "zarr", "generic"])
def test_what_the_loop_keeps_stays_as_it_is(place: Place, kind: str, tmp_path: Path) -> None:
    x = volume()
    blocks = stream(place, stored(kind, x, tmp_path), chunks=(7, -1), budget=place.budget(1 << 20))
    kept = [(chunk.region, chunk.data[1:, ::2]) for chunk in blocks]  # views of them too
    for region, array in kept:
        same(place.host(array), x[region][1:, ::2])


@everywhere
def test_every_other_block_may_be_kept(place: Place, tmp_path: Path) -> None:
    x = volume()
    blocks = stream(place, stored("npy", x, tmp_path), chunks=(7, -1), budget=place.budget(1 << 20))
    kept = []
    for number, chunk in enumerate(blocks):
        data = chunk.data
        if number % 2:
            kept.append((chunk.region, data))
        if len(kept) > 2:
            region, array = kept.pop(0)
            same(place.host(array), x[region])
    for region, array in kept:
        same(place.host(array), x[region])


def test_what_the_loop_keeps_counts_in_its_budget(tmp_path: Path) -> None:
    path = stored("npy", volume(), tmp_path)
    with cf.Budget("100kB") as budget:
        with pytest.raises(errors.BudgetError, match=r"keeps blocks of 14.00 kB .* keep copies"):
            _ = [chunk.data for chunk in cf.chunks(path, chunks=(7, -1), device="cpu")]
        copies = [chunk.data.copy() for chunk in cf.chunks(path, chunks=(7, -1), device="cpu")]
        same(np.concatenate(copies), volume())
        assert budget.peak <= 100_000
        last = None
        for chunk in cf.chunks(path, chunks=(7, -1), device="cpu"):
            last = chunk.data  # a name of the last block's is no reason to refuse
        assert last is not None
        same(last, volume()[77:])


def test_a_tensor_or_a_view_of_one_keeps_the_memory(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = stored("npy", volume(), tmp_path)
    tensors = [torch.from_dlpack(chunk.data)[1:] for chunk in cf.chunks(path, chunks=(7, -1), device="cpu")]
    for start, tensor in zip(range(0, 80, 7), tensors, strict=True):
        same(tensor.numpy(), volume()[start : start + 7][1:])


@pytest.mark.parametrize("kind", ["ndarray", "npy"])
def test_the_data_are_read_only_on_the_cpu(kind: str, tmp_path: Path) -> None:
    for chunk in cf.chunks(stored(kind, volume(), tmp_path), chunks=(20, -1), budget="1MB", device="cpu"):
        with pytest.raises(ValueError, match="read-only"):
            chunk.data[...] = 0


def fail(chunk: cf.Chunk) -> None:
    raise ZeroDivisionError(f"at {chunk.index}")


@everywhere
@sources
@pytest.mark.parametrize("how", ["close", "with", "del", "break", "error", "exhaust"])
def test_leaving_early_leaves_nothing_behind(place: Place, kind: str, how: str, tmp_path: Path) -> None:
    x = stored(kind, volume(), tmp_path)
    with nothing_left(tmp_path):
        options = {} if kind == "zarr" else {"chunks": (3, -1)}
        blocks = stream(place, x, **options)
        if how == "close":
            next(blocks)
            blocks.close()
            blocks.close()
            assert list(blocks) == []
        elif how == "with":
            with blocks:
                next(blocks)
            assert next(blocks, None) is None
        elif how == "break":
            for _chunk in blocks:
                break
        elif how == "error":
            with pytest.raises(ZeroDivisionError), blocks:
                fail(next(blocks))
        elif how == "exhaust":
            assert sum(1 for _ in blocks) == len(blocks)
            assert next(blocks, None) is None
        if how != "del":
            blocks.close()
        del blocks
    # and what comes after works at once
    options = {} if kind == "zarr" else {"chunks": (8, -1)}
    with nothing_left(tmp_path):
        assert sum(float(chunk.data.sum()) for chunk in stream(place, x, **options)) == volume().sum()


@everywhere
def test_a_stream_that_nobody_iterates_holds_nothing(place: Place, tmp_path: Path) -> None:
    x = stored("npy", volume(), tmp_path)
    with nothing_left(tmp_path):
        blocks = stream(place, x)
        assert len(blocks) >= 1
        blocks.close()
        assert list(blocks) == []


@everywhere
@pytest.mark.parametrize("after", [0, 1, 5, 19])
@pytest.mark.parametrize("cause", [OSError("gone"), KeyboardInterrupt()], ids=["OSError", "KeyboardInterrupt"])
def test_a_failed_read_ends_the_loop(place: Place, after: int, cause: BaseException, tmp_path: Path) -> None:
    x = FailingArray(volume(), after, cause)
    error = KeyboardInterrupt if isinstance(cause, KeyboardInterrupt) else cf.ReadError
    with nothing_left(tmp_path):
        blocks = stream(place, x, chunks=(4, -1))
        read = []

        def loop() -> None:
            for chunk in blocks:
                same(place.host(chunk.data), volume()[chunk.region])
                read.append(chunk.index)

        with pytest.raises(error):
            loop()
        assert len(read) <= after
        assert list(blocks) == []


@everywhere
def test_a_map_inside_the_loop_shares_the_budget(place: Place, tmp_path: Path) -> None:
    x, got = volume(), np.zeros((80, 500), "f4")
    with nothing_left(tmp_path), cf.Budget(place.budget(300_000)) as budget:
        for chunk in cf.chunks(x, chunks=(20, -1), device=place.device(), budget=place.budget(130_000)):
            cf.map(np.negative, x[chunk.region], out=got[chunk.region], device=place.device())
        assert 0 < budget.peak <= budget.limit
    same(got, -x)


@everywhere
def test_two_loops_at_once(place: Place) -> None:
    x = volume()
    pairs = zip(stream(place, x, chunks=(4, -1)), stream(place, -x, chunks=(4, -1)), strict=True)
    assert all((one.data == -other.data).all() for one, other in pairs)


@on_cpu_and_gpu
def test_the_loops_own_work_on_the_data_is_waited_for(place: Place) -> None:
    """A block is overwritten only when what the loop's body did with it is done."""
    total = None
    for chunk in stream(place, filled((4000, 500), "f8"), chunks=(100, -1), budget=place.budget(4_000_000)):
        part = (chunk.data * 2).sum(axis=0)
        total = part if total is None else total + part
    same(place.host(total), (filled((4000, 500), "f8") * 2).sum(axis=0))


def test_bad_arguments(tmp_path: Path) -> None:
    x = CountingSource(volume())
    for options, error in [
        ({"budget": -1}, errors.ArgumentError),
        ({"budget": "1 furlong"}, errors.ArgumentError),
        ({"chunks": (1, 2, 3)}, errors.ArgumentError),
        ({"chunks": 0}, errors.ArgumentError),
        ({"device": "toaster"}, errors.DeviceError),
        ({"budget": 100, "chunks": (10, -1)}, cf.BudgetError),
    ]:
        with nothing_left(tmp_path), pytest.raises(error):
            cf.chunks(x, **({"device": "cpu"} | options))
    with pytest.raises(errors.SourceNotFoundError, match=r"missing\.npy"):
        cf.chunks(tmp_path / "missing.npy", device="cpu")
    assert x.bytes_read == 0


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (1, 1)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    found = [chunk.data.copy() for chunk in cf.chunks(filled(shape, "f4"), device="cpu")]
    assert len(found) == (0 if 0 in shape else 1)
    for block in found:
        same(block, filled(shape, "f4"))

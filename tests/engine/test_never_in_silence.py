"""What a run must not do quietly: each case once gave wrong data, a hang or an error from the inside."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.devices import MODES, Place, at_work, checking, everywhere, same

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.mapping import blockwise
from chunkflow.devices.protocol import Edge
from chunkflow.testing import CountingSource, filled


@pytest.mark.parametrize("name", ["y.zarr", "y.npy"])
def test_blocks_may_be_whole_along_an_empty_axis(name: str, tmp_path: Path) -> None:
    got = cf.map(np.negative, np.zeros((15, 0, 16), "f4"), out=tmp_path / name, chunks=(5, -1, 16))
    assert got.shape == (15, 0, 16)


def test_an_empty_axis_that_the_function_removes_leaves_nothing_to_compute_from(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match="no block"):
        cf.map(lambda b: b.prod(axis=0), np.zeros((0, 80)), drop_axis=0, out=tmp_path / "p.npy", device="cpu")
    assert not list(tmp_path.iterdir())


def test_two_mappings_of_a_file_without_a_name_overlap() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(200 * 256 * 8)
        a = np.memmap(file, "f8", "r+", shape=(199, 256))
        b = np.memmap(file, "f8", "r+", shape=(200, 256))[1:]
        with pytest.raises(errors.ArgumentError, match="overlaps the input"):
            cf.map(lambda x: x + 1, a, out=b, device="cpu")


def test_a_zarr_store_that_disappears_is_a_read_error_and_no_fill_value(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(80, 50), chunks=(4, 50), dtype="f4")[...] = filled((80, 50), "f4")
    calls: list[int] = []

    def fn(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            shutil.rmtree(tmp_path / "x.zarr")
        return x

    with pytest.raises(errors.ReadError, match="removed"):
        cf.map(fn, tmp_path / "x.zarr", chunks=(4, -1), dtype="f4", workspace=0, device="cpu")


class Masked:
    """A source whose slices are masked, as those of some file formats are."""

    shape, dtype = (10,), np.dtype("f4")

    def __getitem__(self, region: Any) -> Any:
        return np.ma.masked_greater(np.arange(10, dtype="f4"), 5)[region]


def test_masks_are_not_lost() -> None:
    with pytest.raises(errors.ResultTypeError, match="MaskedArray"):
        cf.map(lambda x: np.ma.masked_less(x, 0), np.arange(-5.0, 5.0), device="cpu")
    with pytest.raises(errors.ReadError, match="mask"):
        cf.map(np.sqrt, Masked(), device="cpu")


MASK = np.ma.masked_greater(np.arange(6.0), 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.hstack([x, MASK]),
        lambda x: np.append(x, MASK),
        lambda x: np.concatenate([x, MASK], axis=None),
        lambda x: np.column_stack((x, MASK)),
        lambda x: np.interp(x, MASK, MASK),
        lambda x: np.digitize(x, MASK),
        lambda x: np.isin(x, MASK),
        lambda x: np.sum(x, initial=MASK[5]),
        lambda x: np.sum(x, where=MASK > 1),
        lambda x: np.broadcast_arrays(x, MASK),
        lambda x: cf.fft.convolve(x, MASK),
        lambda x: cf.stack([MASK, MASK]),
        lambda x: cf.cov(np.ones((2, 6)), aweights=MASK),
        lambda x: cf.histogram(np.arange(6.0), MASK),
        lambda x: cf.pad(np.arange(6.0), 1, constant_values=MASK[:2]),
        lambda x: cf.quantile(np.arange(6.0), MASK[:2] / 5),
        lambda x: cf.label_statistics(np.ones(6), np.arange(6), index=np.ma.masked_array([1, 2], [0, 1])),
    ],
)
def test_no_argument_loses_its_mask(call: Callable[[Any], Any]) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="mask"):
        call(cf.open(np.arange(6.0)))


def test_a_result_of_one_length_whatever_its_block_is_refused() -> None:
    x, chunks = np.ones(8192, "f4"), (1024,)
    with pytest.raises(errors.ResultError, match=r"of \(4096,\) into \(1024,\) and one of \(2048,\) into \(1024,\)"):
        cf.map(lambda x: x[:1024], x, chunks=chunks, budget=200_000, device="cpu")
    same(cf.map(lambda x: x[::4], x, chunks=chunks, budget=200_000, device="cpu"), x[::4])


@everywhere
def test_a_result_that_does_not_grow_with_its_block_is_refused(place: Place) -> None:
    with pytest.raises(errors.ResultError, match="does not grow"):
        cf.map(
            lambda x: x.sum(keepdims=True),
            np.ones(4096, "f4"),
            chunks=(1,),
            budget=place.budget(200_000),
            device=place.device(),
        )


@pytest.mark.parametrize("ending", ["", "raise ValueError('the body fails')"])
def test_a_script_that_leaves_a_loop_open_ends(ending: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((64, 1000)))
    script = f"""
        import chunkflow as cf
        stream = cf.chunks({str(tmp_path / "x.npy")!r}, chunks=(4, -1), device="cpu")
        for chunk in stream:
            break
        {ending}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, capture_output=True, text=True)
    assert (done.returncode == 0) == (not ending)
    assert "ValueError: the body fails" in done.stderr if ending else not done.stderr


def test_a_run_inside_fn_cannot_wait_for_its_own_budget() -> None:
    budget = cf.Budget("50MB")

    def fn(x: Any) -> Any:
        return cf.map(np.sqrt, np.array(x), budget=budget, device="cpu")

    with pytest.raises(errors.ArgumentError, match="inside fn"):
        cf.map(fn, np.ones((2000, 2000)), budget=budget, device="cpu")
    same(
        cf.map(lambda x: cf.map(np.sqrt, np.array(x), device="cpu"), np.ones((20, 20)), device="cpu"), np.ones((20, 20))
    )


@everywhere
def test_two_loops_in_one_budget_take_their_shares_or_say_so(place: Place, tmp_path: Path) -> None:
    x = filled((400, 1000), "f4")
    np.save(tmp_path / "x.npy", x)
    with cf.Budget(place.budget(400_000)):
        first = cf.chunks(tmp_path / "x.npy", chunks=(10, -1), device=place.device())
        second = cf.chunks(tmp_path / "x.npy", chunks=(10, -1), device=place.device())
        for a, b in zip(first, second, strict=True):
            assert a.region == b.region
            assert bool((a.data == b.data).all())


def test_a_budget_may_be_left_once_too_often() -> None:
    budget = cf.Budget("1MB")
    budget.__exit__(None, None, None)
    with budget:
        pass
    budget.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("fn", "options", "error"),
    [
        (None, {}, errors.ArgumentTypeError),
        (lambda x: (), {}, errors.ResultError),
        (lambda x: [1, 2], {}, errors.ResultTypeError),
        (lambda x: None, {}, errors.ResultTypeError),
        (np.sqrt, {"dtype": (), "workspace": 0}, errors.ArgumentError),
        (np.sqrt, {"budget": 10**30}, errors.ArgumentError),
    ],
    ids=["no function", "empty tuple", "list", "None", "no dtypes", "astronomic budget"],
)
def test_odd_arguments_are_refused_by_name(fn: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        cf.map(fn, np.ones((20, 30)), device="cpu", **options)
    if fn is None:
        with pytest.raises(error):
            cf.explain(fn, np.ones(3), device="cpu")


def test_outputs_under_one_name_through_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to(tmp_path / "d")
    with pytest.raises(errors.ArgumentError, match="twice"):
        cf.map(lambda x: (x, x), np.ones(5), out=(tmp_path / "d" / "a.npy", tmp_path / "l" / "a.npy"), device="cpu")


def test_a_chunk_of_which_little_is_needed_is_not_read_with_its_neighbours(tmp_path: Path) -> None:
    """Blocks of a few rows cross many chunks; each read decodes as few of them at a time as it can."""
    zarr.create_array(tmp_path / "x.zarr", shape=(400, 2500), chunks=(50, 400), dtype="f4")
    plan = cf.explain(np.negative, tmp_path / "x.zarr", chunks=(2, -1), device="cpu")
    pieces = plan.cuts_in[0].pieces((slice(0, 2), slice(0, 2500)))
    chunk = 50 * 400 * 4
    assert all((piece.shape[1] + 399) // 400 * chunk <= max(chunk, plan.machine.piece) for piece in pieces)
    assert plan.memory.staging >= 2 * chunk


# -- Folds over several blocks and lanes ---------------------------------------------------------------------

modes = pytest.mark.parametrize("mode", MODES)
ways = pytest.mark.parametrize("staged", [True, False], ids=["staged", "direct"])


def totals(device: Any, x: Any, fn: Callable[[Any], Any] = lambda b: b.sum(axis=0), **options: Any) -> np.ndarray:
    """Sums over the first axis: lines of several blocks, whose partial results several lanes hold."""
    found: np.ndarray = blockwise(fn, "j", x, "ij", combine=np.add, device=device, **({"budget": "30kB"} | options))
    return found


@modes
@ways
def test_partial_results_are_merged_only_after_they_were_computed(mode: str, staged: bool) -> None:
    x = CountingSource(filled((400, 50), "f8"))
    same(totals(checking(mode, staged=staged, lanes=2, piece=400), x), x[...].sum(axis=0))
    with pytest.raises(errors.RaceError, match="nothing orders it"):
        totals(checking(mode, staged=staged, lanes=2, piece=400, drop=Edge.FOLDED), x)
    assert not at_work()


@everywhere
def test_a_fold_is_the_same_to_the_bit_from_run_to_run(place: Place) -> None:
    x = CountingSource(np.random.default_rng(0).standard_normal((200, 300)))
    runs = [totals(place.device(), x, budget=place.budget(100_000)) for _ in range(5)]
    np.testing.assert_allclose(runs[0], x[...].sum(axis=0), rtol=1e-9, atol=1e-9)
    for run in runs[1:]:
        same(run, runs[0])


@everywhere
@pytest.mark.parametrize("most", [100, 20])
def test_a_fold_that_runs_out_of_memory_halves_along_what_it_folds(place: Place, most: int) -> None:
    x = filled((90, 20), "i8")
    seen: list[tuple[int, ...]] = []

    def greedy(block: Any) -> Any:
        if block.size > most:
            raise place.out_of_memory(f"{block.size} elements are too many")
        seen.append(block.shape)
        return block.sum(axis=0)

    with cf.Profile() as profile:
        same(totals(place.device(), x, greedy, budget=place.budget(100_000)), x.sum(axis=0))
    assert any("halves" in note for note in profile.report.notes)
    assert {shape[1] for shape in seen[1:]} == {20}


@everywhere
@pytest.mark.parametrize("call", [2, 5])
def test_what_fn_raises_in_a_fold_names_its_block_and_leaves_no_thread(place: Place, call: int) -> None:
    calls = itertools.count(1)

    def fn(block: Any) -> Any:
        if next(calls) == call:
            raise ZeroDivisionError("fn fails")
        return block.sum(axis=0)

    if place.is_gpu and call > 2:
        pytest.skip("its pages hold all of the array: there is one block")
    x = CountingSource(filled((200, 300), "f8"))
    with pytest.raises(ZeroDivisionError) as caught:
        totals(place.device(), x, fn, budget=place.budget(60_000))
    assert any(note.startswith("chunkflow: in block (") for note in caught.value.__notes__)
    assert not at_work()

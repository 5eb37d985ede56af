"""Copies to memory on a device that shares it: blocks are read to where they belong, and written no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.stores.memory import ArraySink

BUDGET = "1MB"
X = np.random.default_rng(0).random((30, 40, 50)).astype("f4")


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the blocks that are written to memory after they were read elsewhere."""
    found: list[tuple[int, ...]] = []
    write = ArraySink.write

    def noted(self: ArraySink, region: Any, block: np.ndarray) -> None:
        found.append(block.shape)
        write(self, region, block)

    monkeypatch.setattr(ArraySink, "write", noted)
    return found


def stored(folder: Path, array: np.ndarray = X) -> zarr.Array:
    place = zarr.create_array(folder / "x.zarr", shape=array.shape, dtype=array.dtype, chunks=(7, 9, 50))
    place[...] = array
    return place


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (lambda x, **o: cf.copy(x, **o), lambda x: x),
        (lambda x, **o: cf.pad(x, 2, "reflect", **o), lambda x: np.pad(x, 2, "reflect")),
        (lambda x, **o: cf.flip(x, (0, 2), **o), lambda x: x[::-1, :, ::-1]),
        (lambda x, **o: cf.roll(x, 7, 1, **o), lambda x: np.roll(x, 7, 1)),
        (lambda x, **o: cf.repeat(x, 3, 1, **o), lambda x: np.repeat(x, 3, 1)),
        (lambda x, **o: cf.concatenate([x, x], 1, **o), lambda x: np.concatenate([x, x], 1)),
    ],
    ids=["copy", "pad", "flip", "roll", "repeat", "concatenate"],
)
def test_what_is_copied_to_memory_is_read_to_its_place(
    ours: Callable[..., Any], numpys: Callable[..., Any], tmp_path: Path, blocks: list[tuple[int, ...]]
) -> None:
    expected = numpys(X)
    out = np.full(expected.shape, -1, "f4")
    budget = cf.Budget(BUDGET)
    assert ours(stored(tmp_path), out=out, budget=budget, device="cpu") is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(ours(stored(tmp_path / "new"), budget=BUDGET, device="cpu"), expected)
    assert not blocks
    assert budget.peak <= budget.limit


@pytest.mark.parametrize(
    "out",
    [
        pytest.param(np.empty(X.shape, ">f4"), id="big-endian"),
        pytest.param(np.empty(X.shape, "f8"), id="wider"),
        pytest.param(np.empty(X.shape, "f4", order="F"), id="Fortran's order"),
        pytest.param(np.empty((*X.shape[:2], 101), "f4")[..., 1::2], id="every other"),
        pytest.param(np.empty(X.nbytes + 1, "u1")[1:].view("f4").reshape(X.shape), id="unaligned"),
    ],
)
def test_memory_of_another_kind_gets_the_same(out: np.ndarray, tmp_path: Path) -> None:
    out[...] = -1
    cf.copy(stored(tmp_path), out=out, budget=BUDGET, device="cpu")
    np.testing.assert_array_equal(out, X)


def test_a_file_is_written(tmp_path: Path) -> None:
    plan = cf.explain(cf.copy, stored(tmp_path), out=str(tmp_path / "out.npy"), budget=BUDGET, device="cpu")
    assert not plan.in_place
    assert cf.explain(cf.copy, stored(tmp_path / "new"), budget=BUDGET, device="cpu").in_place


def test_what_is_computed_or_transposed_has_blocks_of_its_own(tmp_path: Path) -> None:
    x = stored(tmp_path)
    for plan in (
        cf.explain(cf.map, np.negative, x, budget=BUDGET, device="cpu"),
        cf.explain(cf.transpose, x, budget=BUDGET, device="cpu"),
        cf.explain(cf.copy, X, budget=BUDGET, device="cpu"),  # its blocks are views already
    ):
        assert not plan.in_place


@given(width=st.tuples(st.integers(0, 9), st.integers(0, 9)), budget=st.integers(40_000, 2_000_000))
def test_any_budget_gives_the_same(width: tuple[int, int], budget: int) -> None:
    np.testing.assert_array_equal(cf.pad(X, width, budget=budget, device="cpu"), np.pad(X, width))


def test_a_read_that_fails_is_raised_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    stored(tmp_path)
    (chunk,) = (tmp_path / "x.zarr").rglob("c/4/4/0")
    chunk.write_bytes(b"no chunk")
    out = np.full(X.shape, -1, "f4")
    with pytest.raises(cf.errors.ReadError, match=r"c/4/4/0|\(4, 4, 0\)"):
        cf.copy(tmp_path / "x.zarr", out=out, budget=BUDGET, device="cpu")
    np.testing.assert_array_equal(out[28:, 36:], -1)


def test_a_profile_counts_each_element_once(tmp_path: Path) -> None:
    with cf.Profile() as profile:
        cf.copy(stored(tmp_path), budget=BUDGET, device="cpu")
    (seen,) = profile.report.seen
    assert seen.busy["read"] > 0
    assert not seen.busy.get("write")

"""On the CPU a lane that is alone decodes a chunk once for all the blocks that follow one another in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.stores.zarr.chunks import Chunks

X = np.random.default_rng(0).standard_normal((60, 20, 30))
LABELS = np.arange(60) % 4


@pytest.fixture
def stored(tmp_path: Path) -> str:
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(30, 10, 15))
    return str(tmp_path / "x.zarr")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of chunks that were decoded to be kept."""
    names: list[str] = []
    whole = Chunks._whole

    def noted(self: Chunks, name: str) -> np.ndarray:
        names.append(name)
        return whole(self, name)

    monkeypatch.setattr(Chunks, "_whole", noted)
    return names


def tightest(call: Any, *args: Any, **options: Any) -> int:
    with pytest.raises(cf.BudgetError) as caught:
        call(*args, budget=1, device="cpu", **options)
    return caught.value.smallest or 0


def test_groups_in_a_budget_that_holds_little_more_than_a_chunk(stored: str, decoded: list[str]) -> None:
    options = {"func": "mean", "axis": 0, "device": "cpu"}
    budget = tightest(cf.groupby_reduce, stored, LABELS, func="mean", axis=0) + 8_000
    plan = cf.explain(cf.groupby_reduce, stored, LABELS, budget=budget, **options)
    assert plan.kept == {0}
    assert plan.lanes == 1
    found = cf.groupby_reduce(stored, LABELS, budget=budget, **options)[0]
    np.testing.assert_allclose(found, np.stack([X[n == LABELS].mean(axis=0) for n in range(4)], axis=-1))
    assert len(decoded) == plan.bytes_in // X[:30, :10, :15].nbytes
    assert plan.block[0] < 30  # or nothing was cut


def test_what_reads_a_chunk_for_each_block_is_not_said_to_be_kept(stored: str) -> None:
    """Blocks of whole lines have parts of several chunks, and each of them comes after the other."""
    budget = tightest(cf.groupby_reduce, stored, LABELS, func="median", axis=0) + 10_000
    plan = cf.explain(cf.groupby_reduce, stored, LABELS, func="median", axis=0, budget=budget, device="cpu")
    assert plan.block[0] == 60
    assert not plan.kept


def test_marked_elements_of_a_chunk(tmp_path: Path, decoded: list[str]) -> None:
    x, mask = X.ravel(), np.arange(X.size) % 3 == 0
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(6_000,))
    np.save(tmp_path / "mask.npy", mask)
    marked = cf.open(tmp_path / "x.zarr")[cf.open(tmp_path / "mask.npy")]
    budget = tightest(cf.explain, cf.sum, marked) + 2_000
    plan = cf.explain(cf.sum, marked, budget=budget, device="cpu")
    assert plan.kept == {0}
    assert len(plan.grid) > 2 * len(mask) / 6_000
    decoded.clear()
    assert float(cf.sum(marked).compute(budget=budget, device="cpu")) == pytest.approx(x[mask].sum())
    assert sorted(decoded) == sorted(set(decoded))


def test_points_of_a_mask_are_read_row_of_chunks_by_row_of_chunks(tmp_path: Path) -> None:
    """In C order each row of elements has some of every chunk of a row of chunks."""
    x = np.random.default_rng(0).standard_normal((400, 400))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(40, 40))
    mask = np.random.default_rng(1).random(x.shape) < 0.01
    marked = cf.open(tmp_path / "x.zarr")[mask]
    plan = cf.explain(cf.sum, marked, budget="400kB", device="cpu")
    spec = plan.operands[0]
    assert spec.chunks == (-(-int(mask.sum()) // 10),)
    assert spec.storage.pieces == 10
    assert spec.storage.decoded * math.prod(spec.chunks) == pytest.approx(10 * 40 * 40)
    assert plan.block[0] % spec.chunks[0] == 0
    assert float(cf.sum(marked).compute(budget="400kB", device="cpu")) == pytest.approx(x[mask].sum())

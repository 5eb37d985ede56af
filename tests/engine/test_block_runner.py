"""Which results may travel as they are, while later blocks compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.devices import checking

import chunkflow as cf
from chunkflow.engine.block_runner import travels

KEPT = np.zeros((4, 6))


def buffered(x: np.ndarray) -> np.ndarray:
    np.multiply(x, 2, out=KEPT)
    return KEPT


def result_of(fn: Callable[[np.ndarray], object], x: np.ndarray) -> list[object]:
    """What `fn` returns, in the only list that names it."""
    return [fn(x)]


@pytest.mark.parametrize(
    ("fn", "safe"),
    [
        (lambda x: x + 1, True),
        (lambda x: np.sqrt(np.abs(x)) * 2 + 1, True),
        (lambda x: x.copy(), True),
        (lambda x: np.asfortranarray(x + 1), False),  # not in the order that is asked for
        (lambda x: x, False),
        (lambda x: x[:], False),
        (lambda x: x.T.T, False),
        (lambda x: (x + 1)[::2], False),
        (lambda x: (x + 1)[:], False),
        (lambda x: np.broadcast_to(1.0, x.shape), False),
        (buffered, False),
    ],
    ids=[
        "fresh", "expression", "copy", "fortran", "input", "view of input", "twice transposed", "strided",
        "view of fresh", "broadcast", "kept buffer",
    ],
)  # fmt: skip
def test_only_fresh_contiguous_arrays_travel(fn: Callable[[np.ndarray], object], safe: bool) -> None:
    x = np.arange(24.0).reshape(4, 6)
    assert travels(result_of(fn, x), 0, (0, 1)) is safe


def test_the_order_is_the_sinks() -> None:
    values = [np.zeros((3, 4, 5), order="F")]
    assert travels(values, 0, (2, 1, 0))
    assert not travels(values, 0, (0, 1, 2))


def test_a_result_that_somebody_else_names_stays() -> None:
    values = [np.zeros(3)]
    kept = values[0]
    assert not travels(values, 0, (0,))
    del kept
    assert travels(values, 0, (0,))


def test_one_array_returned_twice_stays() -> None:
    array = np.zeros(3)
    values = [array, array]
    del array
    assert not travels(values, 0, (0,))
    assert not travels(values, 1, (0,))


@pytest.mark.gpu
def test_cupy_arrays_too() -> None:
    import cupy as cp

    x, kept = cp.arange(24.0).reshape(4, 6), cp.zeros((4, 6))
    for fn, safe in [
        (lambda x: x + 1, True),
        (lambda x: cp.sqrt(cp.abs(x)) * 2 + 1, True),
        (lambda x: x, False),
        (lambda x: x[1:], False),
        (lambda x: (x + 1)[:, ::2], False),
        (lambda x: kept, False),
    ]:
        assert travels(result_of(fn, x), 0, (0, 1)) is safe


# -- A block in whose place its result comes -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "threaded", "lazy"])
def test_results_take_the_place_of_a_block(mode: str, tmp_path: Path) -> None:
    """Where a block is computed tile by tile, and one of them lies as the result does."""
    u, v = np.random.default_rng(2).random((2, 60, 64), "f4")
    paths = [str(tmp_path / f"{name}.zarr") for name in "uv"]
    for path, array in zip(paths, (u, v), strict=True):
        zarr.create_array(path, data=array, chunks=(20, 64))
    seen = []

    def fn(a: Any, b: Any) -> Any:
        seen.append((a.shape, a.flags.writeable, b.flags.writeable))
        return a * 2 + b

    device = checking(mode, staged=False, lanes=2)
    plan = cf.explain(fn, *paths, out=str(tmp_path / "out.zarr"), device=device)
    assert plan.recycled == 0
    assert plan.memory.outputs == 0
    assert plan.tile != plan.block
    with cf.Budget("10MB") as budget:
        out = cf.map(fn, *paths, out=str(tmp_path / "out.zarr"), device=device)
        assert budget.peak <= plan.memory.total
    np.testing.assert_array_equal(out[...], u * 2 + v)
    assert not any(writeable for _, *flags in seen for writeable in flags)
    assert cf.explain(lambda a, b: (a + b).astype("f8"), *paths, device=device).recycled is None
    assert cf.explain(cf.blockwise, np.transpose, "ji", paths[0], "ij", device=device).recycled is None

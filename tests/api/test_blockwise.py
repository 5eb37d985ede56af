"""`blockwise` does what `einsum` says, whatever the indices, the cut and the device."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.devices import CHECKING, Place, everywhere, same

from chunkflow import errors
from chunkflow.api.lazy.compute import explain
from chunkflow.api.mapping import blockwise
from chunkflow.testing import CountingSource, filled


def whole_numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Floats whose sums and products are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("f8")


@st.composite
def cases(draw: Any) -> tuple[list[str], str, dict[str, int], list[frozenset[str]]]:
    """Indices of one to three arrays and of the result, lengths, and what each array broadcasts along."""
    names = st.permutations("ijkl").flatmap(lambda p: st.integers(0, 3).map(lambda n: "".join(p[:n])))
    inputs = draw(st.lists(names, min_size=1, max_size=3).filter(any))
    used = sorted(set("".join(inputs)))
    out = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    lengths = {name: draw(st.integers(1, 9)) for name in used}
    ones = [frozenset(draw(st.sets(st.sampled_from(used), max_size=1))) for _ in inputs]
    for name in used:  # somebody has each index's full length
        if all(name in one or name not in index for index, one in zip(inputs, ones, strict=True)):
            lengths[name] = 1
    return inputs, "".join(out), lengths, ones


@given(case=cases(), fold=st.booleans(), place=st.sampled_from(CHECKING), budget=st.sampled_from([40_000, 400_000]))
def test_as_einsum(case: Any, fold: bool, place: Place, budget: int) -> None:
    inputs, out, lengths, ones = case
    arrays = [
        whole_numbers(tuple(1 if name in one else lengths[name] for name in index), seed)
        for seed, (index, one) in enumerate(zip(inputs, ones, strict=True))
    ]
    subscripts = ",".join(inputs) + "->" + out
    pairs = [value for pair in zip(arrays, inputs, strict=True) for value in pair]
    combine = np.add if fold else None
    options: dict[str, Any] = {"combine": combine, "budget": budget, "device": place.device()}

    def fn(*blocks: Any) -> Any:
        # A contraction over a block of an extent that only others have would count it too seldom.
        return np.einsum(subscripts, *np_broadcast(blocks, inputs))

    got = blockwise(fn, out, *pairs, **options)
    same(got + 0.0, np.einsum(subscripts, *np_broadcast(arrays, inputs)) + 0.0)


def np_broadcast(arrays: Any, inputs: list[str]) -> list[Any]:
    """Arrays with every index at its full length."""
    full: dict[str, int] = {}
    for array, index in zip(arrays, inputs, strict=True):
        for name, n in zip(index, array.shape, strict=True):
            full[name] = max(full.get(name, 1), n)
    return [
        np.broadcast_to(array, tuple(full[name] for name in index)) for array, index in zip(arrays, inputs, strict=True)
    ]


@everywhere
@pytest.mark.parametrize("combine", [np.add, None], ids=["fold", "whole"])
def test_a_product_of_many_blocks(place: Place, combine: Any) -> None:
    a, b = whole_numbers((120, 100), 1), whole_numbers((100, 80), 2)
    x, y = CountingSource(a), CountingSource(b)
    if place.is_gpu:  # the library of its products takes memory of its own when it is used first
        blockwise(np.matmul, "ik", a, "ij", b, "jk", combine=combine, device=place.device())
    got = blockwise(
        np.matmul, "ik", x, "ij", y, "jk", combine=combine, budget=place.budget(40_000), device=place.device()
    )
    same(got, a @ b)
    assert x.reads > 2 or place.is_gpu  # whose pages hold all of it


@everywhere
def test_the_largest_by_another_combine_than_a_sum(place: Place) -> None:
    x = filled((50, 60), "i4")
    options = {"budget": place.budget(12_000), "device": place.device()}
    same(blockwise(lambda b: b.max(axis=0), "j", x, "ij", combine=np.maximum, **options), x.max(axis=0))
    both = blockwise(lambda b: (b.max(axis=1), b.max(axis=1).astype("f8")), "i", x, "ij", combine=np.maximum, **options)
    same(both[0], x.max(axis=1))
    same(both[1], x.max(axis=1).astype("f8"))


@everywhere
def test_a_view_of_a_block_outlives_it(place: Place) -> None:
    x = CountingSource(np.broadcast_to(np.arange(100.0), (40, 100)))
    options = {"budget": place.budget(12_000), "device": place.device()}
    same(blockwise(lambda b: b[0], "j", x, "ij", combine=np.maximum, **options), np.arange(100.0))
    same(blockwise(lambda b: b[0], "j", x, "ij", combine=lambda a, b: b, **options), np.arange(100.0))


@everywhere
def test_new_axes_and_arguments_passed_on(place: Place) -> None:
    x, table = filled((30, 40), "f4"), {"power": 2}

    def fn(b: Any, t: Any, scale: float, *, shift: float) -> Any:
        return np.stack([b, b ** t["power"], b * scale + shift], axis=1)

    expected = np.stack([x, x**2, x * np.float32(3) + np.float32(1)], axis=1)
    options = {"budget": place.budget(30_000), "device": place.device(), "shift": 1.0}
    same(blockwise(fn, "izj", x, "ij", table, None, 3.0, None, new_axes={"z": 3}, **options), expected)
    folded = blockwise(
        lambda b: np.stack([b.min(axis=0), -b.max(axis=0)]),
        ("both", 1),
        x,
        (0, 1),
        combine=np.minimum,
        new_axes={"both": 2},
        budget=place.budget(30_000),
        device=place.device(),
    )
    same(folded, np.stack([x.min(axis=0), -x.max(axis=0)]))
    with pytest.raises(errors.ResultError, match="new_axes, or output_sizes, says 4 along axis 1, not 3"):
        blockwise(fn, "izj", x, "ij", table, None, 3.0, None, new_axes={"z": 4}, **options)


def test_a_transpose_and_the_blocks_ids() -> None:
    x = filled((20, 30), "i4")
    same(blockwise(np.transpose, "ji", x, "ij", budget="4kB", device="cpu"), x.T)

    def fn(b: Any, block_id: Any = None) -> Any:
        assert len(block_id) == 2
        return b.T

    same(blockwise(fn, "ji", x, "ij", budget="4kB", device="cpu"), x.T)


def test_stores_in_and_out(tmp_path: Path) -> None:
    a, b = whole_numbers((40, 30), 1), whole_numbers((30, 20), 2)
    zarr.create_array(tmp_path / "a.zarr", shape=a.shape, chunks=(7, 10), dtype="f8")[...] = a
    np.save(tmp_path / "b.npy", b)
    product = functools.partial(blockwise, np.matmul, "ik", tmp_path / "a.zarr", "ij", tmp_path / "b.npy", "jk")
    options: dict[str, Any] = {"combine": np.add, "budget": "100kB", "device": "cpu"}
    same(product(out=tmp_path / "c.zarr", **options)[...], a @ b)
    same(np.asarray(product(out=tmp_path / "c.npy", dtype="f4", **options)), (a @ b).astype("f4"))
    with pytest.raises(errors.OutputExistsError):
        product(out=tmp_path / "c.npy", **options)
    product(out=tmp_path / "c.npy", overwrite=True, **options)


def test_nothing_to_combine() -> None:
    x = np.zeros((0, 4))
    same(blockwise(lambda b: b.sum(axis=0), "j", x, "ij", combine=np.add, device="cpu"), np.zeros(4))
    same(blockwise(lambda b: b.sum(axis=1), "i", x, "ij", combine=np.add, device="cpu"), np.zeros(0))
    same(blockwise(np.negative, "ij", np.ones((2, 3)), "ij", combine=np.add, device="cpu"), -np.ones((2, 3)))


def test_its_plan_can_be_shown() -> None:
    plan = explain(
        blockwise, np.matmul, "ik", np.ones((40, 30)), "ij", np.ones((30, 20)), "jk", combine=np.add, device="cpu"
    )
    assert plan.op.extents == (40, 20, 30)


class Untouchable:
    """An array that must not be read."""

    dtype = np.dtype("f8")

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("read")


@pytest.mark.parametrize(
    ("given", "options", "error", "words"),
    [
        ([3, "ij", Untouchable(4, 5), "ij"], {}, errors.ArgumentTypeError, "must be callable, not a int"),
        ([np.add, "ij", Untouchable(4, 5)], {}, errors.ArgumentError, "pairs, and 1"),
        ([np.add, "ij", Untouchable(4, 5), "i"], {}, errors.ArgumentError, r"'i' has 1 names.*\(4, 5\)"),
        ([np.add, "ij", Untouchable(4, 5), "ii"], {}, errors.ArgumentError, "'ii' names a dimension twice"),
        ([np.add, "ii", Untouchable(4, 5), "ij"], {}, errors.ArgumentError, "out_ind='ii'"),
        ([np.add, 3, Untouchable(4, 5), "ij"], {}, errors.ArgumentTypeError, "out_ind=3"),
        ([np.add, "ik", Untouchable(4, 5), "ij"], {}, errors.ArgumentError, "'k'.*new_axes"),
        (
            [np.add, "ik", Untouchable(4, 5), "ij", Untouchable(6, 7), "jk"],
            {},
            errors.ArgumentError,
            r"'j' is 5 long in an array of shape \(4, 5\) and 6 in one of shape \(6, 7\)",
        ),
        ([np.add, "ij", Untouchable(4, 5), "ij"], {"new_axes": {"k": 2}}, errors.ArgumentError, "'k' is not in"),
        ([np.add, "ij", Untouchable(4, 5), "ij"], {"new_axes": {"i": 2}}, errors.ArgumentError, "'i' is one of"),
        ([np.add, "ijk", Untouchable(4, 5), "ij"], {"new_axes": {"k": -2}}, errors.ArgumentError, "not -2"),
        ([np.add, "ijk", Untouchable(4, 5), "ij"], {"new_axes": {"k": 2.5}}, errors.ArgumentTypeError, "2.5"),
        ([np.add, "ijk", Untouchable(4, 5), "ij"], {"new_axes": 2}, errors.ArgumentTypeError, "dict"),
        ([np.add, "i", Untouchable(4, 5), "ij"], {"combine": "sum"}, errors.ArgumentTypeError, "combine"),
        ([np.add, "ij", Untouchable(4, 5), "ij", 3.0, "i"], {}, errors.ArgumentTypeError, "3.0"),
        ([np.add, "i", 3.0, None], {}, errors.ArgumentError, "at least one array"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_read(
    given: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        blockwise(*given, device="cpu", **options)


def test_every_order_of_indices() -> None:
    x = filled((6, 7, 8), "i4")
    for out in itertools.permutations((0, 1, 2)):
        same(
            blockwise(lambda b, o=out: b.transpose(o), out, x, (0, 1, 2), budget="4kB", device="cpu"), x.transpose(out)
        )


def test_several_results_are_combined_one_by_one() -> None:
    x = np.random.default_rng(1).integers(0, 9, (40, 50)).astype("f8")

    def both(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return block.max(axis=1), block.max(axis=1) * 2

    how: dict[str, Any] = {"dtype": ("f8", "f8"), "budget": 4000, "device": "cpu"}
    one, other = blockwise(both, "i", x, "ij", combine=np.maximum, **how)
    np.testing.assert_array_equal(one, x.max(axis=1))
    np.testing.assert_array_equal(other, 2 * x.max(axis=1))

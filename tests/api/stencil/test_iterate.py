"""Stencils applied many times, several steps a pass: equal to the bit to one pass after another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import Place, everywhere, on_cpu_and_gpu, same
from support.examples import examples
from support.stencils import box, one_by_one

import chunkflow as cf
from chunkflow.api.operation import MultiPass, description_of
from chunkflow.api.stencil import iterate
from chunkflow.errors import BudgetError, ResultTypeError
from chunkflow.kernels.stencil.iterate import Steps
from chunkflow.testing import CountingSource

KINDS = ["none", "nearest", "reflect", "mirror", "periodic", 3]


@st.composite
def stencils(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    depth, boundary = [], []
    for n in shape:
        kind: Any = draw(st.sampled_from(KINDS))
        most = {"reflect": n, "mirror": n - 1, "periodic": n}.get(kind, 3)
        depth.append((draw(st.integers(0, min(most, 3))), draw(st.integers(0, min(most, 3)))))
        boundary.append(kind)
    return {
        "shape": shape,
        "depth": tuple(depth),
        "boundary": tuple(boundary),
        "dtype": draw(st.sampled_from(["f4", "f8", "i4", "u1", "c8"])),
        "order": draw(st.sampled_from("CF")),
        "source": draw(st.sampled_from(["memory", "counting", "zarr"])),
        "out": draw(st.sampled_from(["new", "given", "npy", "zarr"])),
        "chunks": draw(st.sampled_from([None, None, *[(c,) * len(shape) for c in (1, 2, 4)]])),
        "others": draw(st.sampled_from(["", "", "alike", "flat", "thin", "deeper"])),
        "iterations": draw(st.integers(2, 6)),
        "steps": draw(st.sampled_from([None, 1, 2, 3, 6])),
        "budget": draw(st.sampled_from([30_000, 100_000, 2_000_000])),
    }


def check_stencil(case: dict[str, Any], place: Place) -> None:
    """One case, with stores of its own."""
    rng, shape, depth = np.random.default_rng(1), case["shape"], case["depth"]
    x = (rng.random(shape) * 50).astype(case["dtype"], order=case["order"])
    others: tuple[Any, ...] = ()
    deep, edges, fn = depth, case["boundary"], lambda block: box(block, depth)
    if case["others"] == "alike":  # just as deep, with another boundary where there is one
        others = ((rng.random(shape) * 3).astype(x.dtype),)
        edges = [edges, tuple("nearest" if k in ("mirror", 3) else k for k in edges)]
        fn = lambda block, w: box(block * w, depth)  # noqa: E731
    elif case["others"] in ("flat", "thin") and "none" not in edges:  # without a halo: fn says where it goes
        small = shape if case["others"] == "flat" else (1,) * (len(shape) - 1) + shape[-1:]
        others = ((rng.random(small) * 3).astype(x.dtype),)
        deep, edges = [depth, 0], [edges, "none"]

        def fn(block: Any, w: Any) -> Any:
            found = box(block, depth)
            inner = tuple(slice(b, n - a) for n, (b, a) in zip(block.shape, depth, strict=True))
            found[inner] = found[inner] * w
            return found

    elif case["others"] == "deeper" and "none" not in edges:
        others = ((rng.random(shape) * 3).astype(x.dtype),)
        more = tuple((before + 1, after + 1) for before, after in depth)
        fits = [max(pair) < n for pair, n in zip(more, shape, strict=True)]
        deep, edges = [depth, more], [edges, tuple(k if ok else "nearest" for k, ok in zip(edges, fits, strict=True))]

        def fn(block: Any, w: Any) -> Any:
            found, inner = box(w, more), box(block, depth)
            inner = inner[tuple(slice(b, n - a) for n, (b, a) in zip(inner.shape, depth, strict=True))]
            middle = tuple(slice(b, n - a) for n, (b, a) in zip(found.shape, more, strict=True))
            found[middle] = found[middle] * inner
            return found

    options = {"depth": deep, "boundary": edges, "budget": place.budget(case["budget"])}
    with tempfile.TemporaryDirectory() as folder:
        source: Any = x
        if case["source"] == "counting":
            source = CountingSource(x)
        elif case["source"] == "zarr":
            source = f"{folder}/x.zarr"
            zarr.create_array(source, shape=shape, chunks=tuple(min(3, n) for n in shape), dtype=x.dtype)[...] = x
        out: Any = {"new": None, "given": np.empty_like(x)}.get(case["out"], f"{folder}/y.{case['out']}")
        before = sorted(os.listdir(folder))
        try:
            expected = one_by_one(case["iterations"], fn, source, *others, device=place.device(), **options)
            got = cf.map_overlap(
                fn, source, *others, iterations=case["iterations"], steps_per_pass=case["steps"], out=out,
                chunks=case["chunks"], device=place.device(), **options,
            )  # fmt: skip
        except BudgetError:
            assert case["budget"] < 2_000_000
            assert sorted(os.listdir(folder)) == before
            return
        same(place.host(got[...]), place.host(expected))
        assert sorted(os.listdir(folder)) == before + [f"y.{case['out']}"] * isinstance(out, str)
        same(np.asarray(zarr.open_array(source)) if isinstance(source, str) else x, x)


@everywhere
@settings(max_examples=examples(1 / 4))
@given(case=stencils())
def test_it_equals_one_pass_after_another(case: dict[str, Any], place: Place) -> None:
    check_stencil(case, place)


@settings(max_examples=examples(2))
@given(case=stencils())
def test_it_equals_one_pass_after_another_in_many_cases(case: dict[str, Any]) -> None:
    check_stencil(case, Place("cpu"))


@everywhere
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, (2, 0), (0, 3)], ids=str)
def test_every_boundary_in_slabs_and_bricks(place: Place, kind: Any, depth: Any) -> None:
    x = np.random.default_rng(2).random((23, 11, 7)).astype("f4")
    halo = ((depth, depth) if isinstance(depth, int) else depth,) * 3
    options: dict[str, Any] = {"depth": halo, "boundary": kind, "budget": place.budget(400_000)}
    expected = place.host(one_by_one(5, lambda b: box(b, halo), x, device=place.device(), **options))
    for chunks in ((5, -1, -1), (8, 6, 4)):
        got = cf.map_overlap(
            lambda b: box(b, halo), CountingSource(x), iterations=5, steps_per_pass=2, chunks=chunks,
            device=place.device(), **options,
        )  # fmt: skip
        same(place.host(got), expected)


# -- What the test must see ----------------------------------------------------------------------------------


class Forgetful(Steps):
    """Does not make up the edges anew after a step."""

    def _edges(self) -> tuple[Any, ...]:
        return (float("nan"),) * len(self.edges)


class Shallow(Steps):
    """Steps by a stencil that is one element too narrow, so that blocks' own edges come in."""

    def _next(self, result: Any, have: Any, wanted: Any) -> Any:
        found = super()._next(result, have, wanted).copy()
        found[:1] = 0
        return found


def asked(fn: Callable[..., Any], *arrays: Any, **options: Any) -> iterate.Iteration:
    several = description_of(cf.map_overlap, (fn, *arrays), options)
    assert isinstance(several, MultiPass)
    found = several.run.__self__  # type: ignore[attr-defined]
    assert isinstance(found, iterate.Iteration)
    return found


@pytest.mark.parametrize("kind", ["nearest", "reflect", "mirror", 3, "periodic", "none"])
def test_a_step_that_is_planted_wrong_shows(kind: Any) -> None:
    x = np.random.default_rng(0).random((20, 6))
    plan = asked(
        lambda b: box(b, ((1, 1),) * 2), x, depth=1, boundary=kind, iterations=4, steps_per_pass=2, device="cpu",
        chunks=(5, -1),
    )  # fmt: skip
    right = np.asarray(plan.run())
    same(right, one_by_one(4, plan.fn, x, depth=1, boundary=kind, device="cpu"))
    forgotten = np.asarray(replace(plan, kernel=Forgetful).run())
    # Nothing is made up beyond these.
    assert np.array_equal(right, forgotten) is (kind in ("periodic", "none"))
    assert not np.array_equal(right, np.asarray(replace(plan, kernel=Shallow).run()))


# -- Dtypes --------------------------------------------------------------------------------------------------


@on_cpu_and_gpu
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_first_step_may_change_the_dtype(place: Place, steps: int) -> None:
    x = np.arange(60, dtype="i4").reshape(20, 3)
    options: dict[str, Any] = {"depth": 1, "boundary": 7, "budget": place.budget(200_000), "device": place.device()}

    def half(block: Any) -> Any:
        return box(block, ((1, 1),) * 2) / 2

    got = cf.map_overlap(half, x, iterations=3, steps_per_pass=steps, **options)
    expected = one_by_one(3, half, x, **options)
    assert expected.dtype == "f8"
    same(place.host(got), place.host(expected))


@pytest.mark.parametrize("steps", [1, 3])
def test_a_dtype_that_is_given_is_that_of_every_step(steps: int) -> None:
    x = np.random.default_rng(0).random((30, 5)).astype("f4")
    options: dict[str, Any] = {"depth": 1, "boundary": 0.1, "device": "cpu", "dtype": "f4"}
    wide = lambda b: box(b.astype("f8"), ((1, 1),) * 2)  # noqa: E731
    got = cf.map_overlap(wide, x, iterations=4, steps_per_pass=steps, **options)
    same(got, one_by_one(4, wide, x, **options))
    assert not np.array_equal(got, cf.map_overlap(wide, x, iterations=4, depth=1, boundary=0.1, device="cpu"))


def test_a_constant_is_rounded_to_the_dtype_of_each_step() -> None:
    x = np.ones((12, 3), "f4")
    wide = lambda b: box(b.astype("f8"), ((1, 1),) * 2)  # noqa: E731
    options: dict[str, Any] = {"depth": 1, "boundary": 0.1, "device": "cpu"}
    same(cf.map_overlap(wide, x, iterations=3, **options), one_by_one(3, wide, x, **options))


def test_an_output_of_another_dtype_takes_the_last_result_only() -> None:
    x = np.random.default_rng(0).random((30, 5))
    out = np.empty((30, 5), "f4")
    options: dict[str, Any] = {"depth": 1, "boundary": "mirror", "device": "cpu"}
    fn = lambda b: box(b, ((1, 1),) * 2)  # noqa: E731
    assert cf.map_overlap(fn, x, iterations=5, steps_per_pass=2, out=out, **options) is out
    same(out, one_by_one(5, fn, x, **options).astype("f4"))


def test_a_dtype_that_goes_on_changing_is_refused() -> None:
    widen = {"i2": "i4", "i4": "i8", "i8": "i8"}
    with pytest.raises(ResultTypeError, match="int16 into int32, and that into int64"):
        cf.map_overlap(
            lambda b: b.astype(widen[b.dtype.str[1:]]), np.ones(9, "i2"), depth=1, iterations=3, device="cpu"
        )

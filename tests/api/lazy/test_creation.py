"""Arrays that are made where they are computed: NumPy's values, whatever blocks, slices and passes there are."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import Place, everywhere, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow.api.lazy.random import _bits

NUMBERS = st.integers(-60, 60) | st.floats(-20, 20).map(lambda v: round(v, 3))
DTYPES = st.sampled_from([None, "i2", "i8", "f2", "f4", "f8"])


@given(NUMBERS, NUMBERS, NUMBERS.filter(lambda v: abs(v) > 0.01), DTYPES, st.data())
@settings(max_examples=examples(4), deadline=None)
def test_arange(start: Any, stop: Any, step: Any, dtype: Any, data: st.DataObject) -> None:
    with np.errstate(all="ignore"):
        expected = np.arange(start, stop, step, dtype)
    x = cf.arange(start, stop, step, dtype)
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    same(x.compute(budget="16kB", device="cpu"), expected)
    cut = data.draw(st.slices(len(expected)) | st.lists(st.integers(0, max(len(expected) - 1, 0)), max_size=4))
    if isinstance(cut, slice) or len(expected):
        same(x[cut].compute(device="cpu"), expected[cut] if isinstance(cut, slice) else expected[np.asarray(cut, int)])


@given(NUMBERS, NUMBERS, st.integers(0, 40), st.booleans(), st.sampled_from([None, "i4", "f4", "c8"]))
@settings(max_examples=examples(4), deadline=None)
def test_linspace(start: Any, stop: Any, num: int, endpoint: bool, dtype: Any) -> None:
    expected, each = np.linspace(start, stop, num, endpoint, True, dtype)
    found, step = cf.linspace(start, stop, num, endpoint, True, dtype)
    same(found.compute(budget="16kB", device="cpu"), expected)
    same(step, each)


SCALARS = [int, float, bool, *(np.dtype(code).type for code in "?bBiIqQefd")]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_arange_has_numpys_dtype_of_scalars(count: int) -> None:
    for kinds in itertools.product(SCALARS, repeat=count):
        args = [kind(value) for kind, value in zip(kinds, (5,) if count == 1 else (1, 5, 2), strict=False)]
        if sum(isinstance(value, bool | np.bool_) for value in args) > 1:  # of bools NumPy's own sums are bools
            continue
        lazy, expected = cf.arange(*args), np.arange(*args)
        assert (lazy.dtype, lazy.shape) == (expected.dtype, expected.shape), args
    same(lazy.compute(device="cpu"), expected)


EXAMPLES: list[Callable[[Any], Any]] = [
    lambda xp: xp.linspace(0, 5e-324, 3),
    lambda xp: xp.linspace(np.int8(1), np.float32(7), 3),
    lambda xp: xp.linspace([1, 2], [[3], [4.0]], 7),
    lambda xp: xp.linspace(np.arange(3, dtype="f4"), 9, 5, endpoint=False, axis=-1),
    lambda xp: xp.linspace(0, [1, 5], 7, dtype="i4", axis=1),
    lambda xp: xp.linspace([0, 1], [1, 2j], 1),
    lambda xp: xp.arange(7),
    lambda xp: xp.arange(2**62, 2**62 + 9, 4),
    lambda xp: xp.arange(stop=np.array(5), dtype="c8"),
    lambda xp: xp.arange(0, 5 + 5j, 1 + 0.5j),
    lambda xp: xp.arange(1, 3, dtype="?"),
    lambda xp: xp.arange(0, dtype="?"),
    lambda xp: xp.arange(5, 0, -1, dtype="u1"),
    # Times.
    lambda xp: xp.arange(np.datetime64("2000-01"), np.datetime64("2000-02-01"), 3),
    lambda xp: xp.arange(np.datetime64("2000-01-01"), np.timedelta64(50, "h")),
    lambda xp: xp.arange(np.datetime64("2000-01-01"), np.datetime64("1999-12-01"), -7),
    lambda xp: xp.arange("2000-01", "2000-03", dtype="M8[D]"),
    lambda xp: xp.arange(0, 5, dtype="M8[h]"),
    lambda xp: xp.arange(date(2000, 1, 1), date(2000, 1, 9)),
    lambda xp: xp.arange(np.timedelta64(5, "h"), np.timedelta64(2, "D"), timedelta(minutes=90)),
    lambda xp: xp.arange(5, dtype="m8[s]"),
    lambda xp: xp.full((2, 3), np.datetime64("2000-01-01"), "M8[s]"),
    lambda xp: xp.full(3, np.datetime64("2000-01-01"), "f8"),
    lambda xp: xp.full((2, 3), ["2000", "NaT", "2001"], "M8[Y]"),
    lambda xp: xp.full(2, np.timedelta64(3, "h")),
    lambda xp: xp.zeros((), "M8[D]"),
    lambda xp: xp.ones(3, "m8[s]", order="F"),
    lambda xp: xp.arange(2**63, 2**63 + 9, 4, dtype="u8"),
    lambda xp: xp.zeros((3, 4)),
    lambda xp: xp.zeros(5, "?"),
    lambda xp: xp.ones((2, 0), "c8"),
    lambda xp: xp.empty((2, 0)),
    lambda xp: xp.full((2, 3), 7),
    lambda xp: xp.full((2, 3), [1, 2.5, 3]),
    lambda xp: xp.full((2, 3), 2.5, "i4"),
    lambda xp: xp.full((), np.float32(3)),
    lambda xp: xp.eye(40, 30, -2, "i2"),
    lambda xp: xp.eye(4),
    lambda xp: xp.tri(30, 40, 1),
    lambda xp: xp.indices((30, 4, 5)),
    lambda xp: xp.indices((3, 4), "f4", sparse=True),
    lambda xp: xp.fromfunction(lambda i, j: i * 10 + j, (40, 30)),
    lambda xp: xp.fromfunction(lambda i, j, k: i == k + j, (4, 3), dtype=int, k=1),
    lambda xp: xp.meshgrid(xp.arange(3), [1.5, 2], indexing="ij"),
    # What is made of them.
    lambda xp: xp.arange(50)[:, None] * xp.ones(30) + xp.linspace(0, 1, 30),
    lambda xp: np.roll(xp.arange(30), 7)[::-2],
    lambda xp: np.diff(xp.arange(40) ** 2, 2),
    lambda xp: np.cumsum(xp.arange(100)),
    lambda xp: (xp.arange(24) * 2).reshape(2, 3, 4).T[1:, ::-1],
    lambda xp: np.pad(xp.arange(5), 3, mode="wrap"),
    lambda xp: np.sort(-xp.arange(50)),
    lambda xp: xp.arange(100)[10:][::3][[3, 1, 1]],
    lambda xp: (xp.eye(30) @ xp.ones((30, 2))).sum(axis=0),
]


@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")  # by NumPy 2.5, which counts steps so
@on_cpu_and_gpu
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_as_numpy(place: Place, number: int) -> None:
    call = EXAMPLES[number]
    expected, found = call(np), call(cf)
    for lazy, value in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, expected)), strict=True):
        assert (lazy.shape, lazy.dtype) == (value.shape, value.dtype)
        same(lazy.compute(device=place.device(), budget=place.budget(50_000)), value)


@on_cpu_and_gpu
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("beyond", [-1, 1])
def test_whole_numbers_of_floats(place: Place, dtype: str, beyond: int) -> None:
    """They are made as floats where each is one exactly, and by NumPy's rounding beyond that."""
    start = 2 ** (np.finfo(dtype).nmant + 1) - 4000 * (dtype != "f2") - 1000
    step, stop = (2 if beyond < 0 else 3), start + (beyond * 200 + 1200 if dtype == "f2" else 6000 + beyond * 5000)
    lazy, value = cf.arange(start, stop, step, dtype=dtype), np.arange(start, stop, step, dtype=dtype)
    same(lazy.compute(device=place.device(), budget=place.budget(50_000)), value)
    same(lazy[5:90:7][[3, 1]].compute(device=place.device()), value[5:90:7][[3, 1]])


def test_tasks_and_other_processes_make_the_same() -> None:
    x = cf.arange(100)[5:].reshape(5, 19) * cf.random.default_rng(2).integers(9, size=(5, 19)) + cf.zeros(19)
    expected = x.compute(device="cpu")
    same(pickle.loads(pickle.dumps(x)).compute(device="cpu"), expected)
    (found,) = dask.compute(x.to_dask(partition="200B", device="cpu"), scheduler="sync")
    same(found, expected)
    (total,) = dask.compute(x.sum(axis=0).to_dask(partition="200B", device="cpu"), scheduler="sync")
    same(total, expected.sum(axis=0))


def test_nothing_is_read_and_what_is_as_long_as_the_array_is_not_kept() -> None:
    plan = cf.explain((cf.arange(10**9) * cf.ones(10**9)).sum(), budget="16MB", device="cpu")
    assert len(plan.passes) == 1
    assert plan.bytes_in <= 64
    same(np.zeros_like(cf.open(np.full(3, np.nan)), shape=(2, 2)).compute(device="cpu"), np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: cf.zeros((2, -1)), "negative"),
        (lambda: cf.zeros(2.5), "int"),
        (lambda: cf.zeros(3, "U4"), "numbers"),
        (lambda: cf.full(3, [1, 2]), "broadcast"),
        (lambda: cf.arange(0, 9, 0), "step=0"),
        (lambda: cf.arange(0, np.inf), "inf steps"),
        (lambda: cf.arange("2"), "must be a number"),
        (lambda: cf.arange(1j, dtype="f8"), "real number"),
        (lambda: cf.arange(3, dtype="?"), "3 bools"),
        (lambda: cf.arange(300, 310, dtype="u1"), "300 is no number that uint8 holds"),
        (lambda: cf.arange(np.False_, np.True_), "NumPy's bools have no difference"),
        (lambda: cf.arange(np.datetime64("2000")), "stop=2000.*requires both a start and a stop"),
        (lambda: cf.arange(np.datetime64("NaT"), np.datetime64("2000")), "cannot use NaT"),
        (lambda: cf.arange(np.datetime64("2000"), np.datetime64("2001"), dtype="f8"), "dtype='f8' is none of times"),
        (lambda: cf.full(3, 300, dtype="u1"), "300 is no number that uint8 holds"),
        (lambda: cf.full(3, "x", dtype="M8[D]"), "fill_value='x'"),
        (lambda: cf.ones(3, order="x"), "order='x' must be"),
        (lambda: cf.zeros(3, device="gpu"), "device='gpu'"),
        (lambda: cf.linspace([1, 2], [1, 2, 3]), "linspace of start="),
        (lambda: cf.linspace(0, 1, axis=2), "out of bounds"),
        (lambda: cf.linspace("a", 2), "start='a' must be a number"),
        (lambda: cf.linspace(cf.arange(2), 2), "start= is an expression"),
        (lambda: cf.linspace(0, 1, -3), "num=-3 must be at least 0"),
        (lambda: cf.fromfunction(lambda: 3, ()), "no axis"),
        (lambda: cf.random.default_rng("a"), "seed='a'"),
        (lambda: cf.random.default_rng(0).normal([1, 2, 3], size=2), r"size=2, and arguments of shape \(3,\)"),
        (lambda: cf.random.default_rng(-1), "negative"),
        (lambda: cf.random.default_rng(0).random(3, "f2"), "float64 or float32"),
        (lambda: cf.random.default_rng(0).integers(5, 5, size=3), "0 integers"),
        (lambda: cf.random.default_rng(0).integers(300, size=3, dtype="u1"), "hold each"),
        (lambda: cf.random.default_rng(0).integers(3.5, size=3), "must be an int"),
        (lambda: cf.random.default_rng(0).normal(0, -1, size=3), "scale=-1"),
    ],
)
def test_what_cannot_be_made_is_refused(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(cf.ChunkflowError, match=match):
        call()


RANDOM: list[Callable[[Any], Any]] = [
    lambda rng: rng.random((300, 40)),
    lambda rng: rng.random((300, 40), "f4"),
    lambda rng: rng.integers(-5, 9, size=(300, 40)),
    lambda rng: rng.integers(0, 2**64, size=(300, 40), dtype="u8"),
    lambda rng: rng.integers(-(2**40), 2**41, size=(300, 40)),
]


@everywhere
@pytest.mark.parametrize("number", range(len(RANDOM)))
def test_the_same_numbers_for_any_blocks_and_parts(place: Place, number: int) -> None:
    x = RANDOM[number](cf.random.default_rng(5))
    whole = x.compute(device="cpu")
    same(RANDOM[number](cf.random.default_rng(5)).compute(device=place.device(), budget=place.budget(20_000)), whole)
    same(x[7::3, [5, 2]].compute(device=place.device()), whole[7::3, [5, 2]])


@everywhere
def test_normal_numbers_are_the_same_but_for_rounding(place: Place) -> None:
    for call in (lambda rng: rng.normal(3, 2, size=999), lambda rng: rng.exponential(2.0, size=999)):
        found, expected = (call(cf.random.default_rng(5)).compute(device=d) for d in (place.device(), "cpu"))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_random_arrays_have_the_size_that_numpys_have() -> None:
    x = cf.open(np.ones((2, 3)))
    for call in (
        lambda r, x: r.random(), lambda r, x: r.uniform(0, 1), lambda r, x: r.integers(5),
        lambda r, x: r.uniform(0, 1, 3), lambda r, x: r.normal(0, 1, (2, 3)), lambda r, x: r.integers(0, 5, 3),
        lambda r, x: r.exponential(1, 3), lambda r, x: r.normal([1, 2, 3]), lambda r, x: r.uniform([0, 1], 2),
        lambda r, x: r.normal([1, 2, 3], size=(2, 3)), lambda r, x: r.uniform(x, 2), lambda r, x: r.exponential(x),
    ):  # fmt: skip
        found, expected = call(cf.random.default_rng(1), x), call(np.random.default_rng(1), np.ones((2, 3)))
        assert found.shape == np.shape(expected)
        assert found.compute(device="cpu").dtype == np.asarray(expected).dtype
        assert found.size < 3 or len(set(found.reshape(-1).compute(device="cpu"))) > 1  # no number for all of them


def test_other_methods_of_numpys_generators_are_refused_by_name() -> None:
    rng = cf.random.default_rng(1)
    with pytest.raises(AttributeError, match=r"no poisson: it has random, .*default_rng\(seed\)\.poisson"):
        rng.poisson(3)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = rng.nonsense


def test_random_numbers_have_their_distribution() -> None:
    """Means and variances within five standard deviations; each value of few as often; no two calls alike."""
    rng, n = cf.random.default_rng(11), 100_000
    moments = {
        "uniform": (rng.uniform(2, 5, size=n), 3.5, 0.75),
        "random": (rng.random(n, "f4"), 0.5, 1 / 12),
        "normal": (rng.normal(1, 2, size=n), 1, 4),
        "standard_normal": (rng.standard_normal(n, "f4"), 0, 1),
        "exponential": (rng.exponential(2.0, size=n), 2, 4),
        "large": (rng.integers(0, 10**12, size=n) / 1e12, 0.5, 1 / 12),
    }
    for name, (x, mean, variance) in moments.items():
        values = x.compute(device="cpu").astype("f8")
        assert abs(values.mean() - mean) < 5 * np.sqrt(variance / n), name
        assert abs(values.var() - variance) < 5 * variance * np.sqrt(8 / n), name
    counts = np.bincount(rng.integers(1, 6, size=n, endpoint=True).compute(device="cpu"), minlength=7)
    assert counts[0] == 0
    assert np.abs(counts[1:] - n / 6).max() < 5 * np.sqrt(n / 6)
    one, other = (rng.random(n).compute(device="cpu") for _ in range(2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 5 / np.sqrt(n)
    assert rng.random(()).shape == ()
    assert "seed 11" in repr(rng)


def test_splitmix64() -> None:
    """The published generator, in Python's integers."""
    mask, state = (1 << 64) - 1, 1234567
    x = _bits(np.arange(5), np.uint64(state))
    for found in x:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        assert int(found) == z ^ (z >> 31)
    assert int(x[0]) == 6457827717110365317  # as the algorithm's authors print it


@pytest.mark.parametrize(("low", "high"), [(3, 0), (0, np.inf), (-np.inf, 0), (0, np.nan), (-1.7e308, 1.7e308)])
def test_uniform_numbers_lie_a_finite_distance_apart(low: float, high: float) -> None:
    with pytest.raises(cf.errors.ArgumentError, match=r"high=.* must not be below low="):
        cf.random.default_rng(0).uniform(low, high, size=3)
    with pytest.raises(cf.errors.ArgumentError, match="finite distance"):
        cf.random.default_rng(0).uniform(np.array([0, low]), np.array([1, high]))

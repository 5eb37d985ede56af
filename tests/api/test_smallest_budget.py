"""A refused budget: for every operation the error names one that does, before the arrays are read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budgets import traced
from support.examples import each, examples

import chunkflow as cf
from chunkflow.api.operation import is_operation
from chunkflow.core.grid import Region
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.trial import SHARED_HOST_BYTES


class Recorded:
    """A source that notes which of its elements are read."""

    footprint = None

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.seen = array, np.zeros(array.shape, bool)
        self.spec = ArraySpec("recorded", array.shape, array.dtype)

    @property
    def nbytes_read(self) -> int:
        """Bytes that were read, each counted once."""
        return int(self.seen.sum()) * self.spec.dtype.itemsize

    def read(self, region: Region, out: np.ndarray) -> None:
        self.seen[region] = True
        out[...] = self.array[region]

    def view(self, region: Region) -> None:
        return None

    def close(self) -> None: ...

    def __chunkflow_source__(self) -> Recorded:
        return self


def samples(scale: int = 1) -> dict[str, np.ndarray]:
    """Arrays by letter: x and y, m for products; z is complex, i whole, k small, t tall; v, w and j are lines."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 4 * scale, 6 * scale)).astype("f4")
    i = rng.integers(0, 9, x.shape, "i2")
    k = np.ones((3, 3), "f4")
    vectors = {"v": x[0], "w": y[0], "j": i[0]}
    tall = rng.integers(0, 9999, (600 * scale, 3), "i2")
    return {"x": x, "y": y, "m": x.T.copy(), "z": x + 1j * y, "i": i, "k": k, "t": tall, **vectors}


def test_medians_whose_last_pass_has_few_bits_left(tmp_path: Path) -> None:
    """It is refused with more bins than there are bits left for: with fewer of them it fits."""
    x = np.random.default_rng(0).integers(-9, 10, 555)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        stored = file.create_dataset("x", data=x, chunks=x.shape)
        smallest = refused(lambda b: cf.median(stored, budget=b, device="cpu"), 1)
        assert cf.median(stored, budget=smallest, device="cpu") == np.median(x)


def test_transforms_that_fit_a_budget_fit_a_larger_one() -> None:
    """The library's tables take more than long lines: they count where the budget has room for them."""
    x = np.random.default_rng(0).standard_normal((3908, 2)) + 0j
    smallest = refused(lambda b: cf.fft.irfftn(x, axes=(0,), budget=b, device="cpu"), 1)
    for budget in (smallest, 4 * smallest, 1 << 20, (1 << 20) + 4096, 16 * smallest, 64 * smallest):
        found = cf.fft.irfftn(x, axes=(0,), budget=budget, device="cpu")
        np.testing.assert_allclose(found, np.fft.irfftn(x, axes=(0,)), atol=1e-12)


@dataclass(frozen=True)
class Case:
    """A call of an operation, with letters in place of arrays, and the function of these arrays that gives the result.

    With `lazy` it makes an expression, too. If the memory that it takes `depends` on the elements, a budget may be
    refused after they were read.
    """

    args: tuple[Any, ...]
    right: Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    lazy: bool = True
    depends: bool = False

    def filled(self, arrays: dict[str, Any]) -> list[Any]:
        """The positional arguments."""
        return [
            [arrays[b] for b in a] if isinstance(a, list) and isinstance(a[0], str) else
            arrays[a] if isinstance(a, str) and a in arrays else a
            for a in self.args
        ]  # fmt: skip

    def expected(self) -> Any:
        """What NumPy gives."""
        arrays = samples()
        names = [b for a in self.args for b in (a if isinstance(a, list) else [a]) if isinstance(b, str)]
        return self.right(*[arrays[name] for name in names if name in arrays])


def along(fn: Callable[..., Any]) -> Case:
    return Case(("x",), lambda x: fn(x, axis=0), {"axis": 0})


def averaged(block: np.ndarray) -> np.ndarray:
    found: np.ndarray = (np.roll(block, 1, 0) + np.roll(block, -1, 0)) / np.float32(2)
    return found


def convolved(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, 1), k.shape)
    found: np.ndarray = (windows * k[::-1, ::-1]).sum(axis=(2, 3))
    return found


def of_labels(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    return np.array([x[i == label].sum(dtype="f8") for label in np.unique(i)])


def of_groups(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    return np.array([x[i == group].sum(dtype="f8") for group in range(9)])


REDUCTIONS = ("sum", "mean", "prod", "std", "var", "max", "min", "argmax", "argmin")

NUMPYS = (
    *REDUCTIONS,
    *(f"nan{name}" for name in REDUCTIONS),
    *("ptp", "all", "any", "count_nonzero", "average", "median", "nanmedian", "cumsum", "cumprod", "diff"),
)

CASES: dict[str, Case] = {
    **{name: along(getattr(np, name)) for name in NUMPYS},
    "norm": along(np.linalg.norm),
    "maximum_accumulate": along(np.maximum.accumulate),
    "ffill": Case(("x",), lambda x: x),
    "minimum_accumulate": along(np.minimum.accumulate),
    "percentile": Case(("x", [10, 75]), lambda x: np.percentile(x, [10, 75], axis=1), {"axis": 1}),
    "quantile": Case(("x", 0.75), lambda x: np.quantile(x, 0.75)),
    "nanpercentile": Case(("x", [10, 75]), lambda x: np.nanpercentile(x, [10, 75], axis=1), {"axis": 1}),
    "nanquantile": Case(("x", 0.75), lambda x: np.nanquantile(x, 0.75)),
    "sort": Case(("x",), lambda x: np.sort(x, 0), {"axis": 0}),
    "argsort": Case(("x",), lambda x: np.argsort(x, stable=True), {"stable": True}),
    "topk": Case(("x", 2), lambda x: np.sort(x)[:, :-3:-1]),
    "argtopk": Case(("x", -2), lambda x: np.argsort(x, stable=True)[:, :2]),
    "mode": Case(("i",), lambda i: np.array([np.bincount(line).argmax() for line in i]), {"axis": 1}, lazy=False),
    "histogram": Case(("x",), lambda x: np.histogram(x)[0], lazy=False),
    "histogram2d": Case(("x", "y"), lambda x, y: np.histogram2d(x.ravel(), y.ravel())[0], lazy=False),
    "histogramdd": Case((["x", "y"], 3), lambda x, y: np.histogramdd((x.ravel(), y.ravel()), 3)[0], lazy=False),
    "bincount": Case(("j",), np.bincount, lazy=False, depends=True),
    "unique": Case(("i",), np.unique, lazy=False, depends=True),
    "label_statistics": Case(("x", "i", "sum"), of_labels, lazy=False, depends=True),
    "groupby_reduce": Case(("x", "i"), of_groups, {"func": "sum", "expected_groups": 9}, lazy=False),
    "map": Case((np.exp, "x"), np.exp),
    "blockwise": Case((np.add, "ab", "x", "ab", "y", "ab"), np.add),
    "map_overlap": Case((averaged, "x"), averaged, {"depth": 1, "boundary": "periodic"}),
    "reduction": Case(("x", np.sum, np.sum), lambda x: x.sum(axis=0), {"axis": 0}),
    "copy": Case(("x",), np.copy),
    "flip": Case(("x",), np.flip),
    "roll": Case(("x", 3), lambda x: np.roll(x, 3)),
    "repeat": Case(("x", 2), lambda x: np.repeat(x, 2, axis=0), {"axis": 0}),
    "transpose": Case(("x",), np.transpose),
    "pad": Case(("x", 1), lambda x: np.pad(x, 1)),
    "sliding_window_view": Case(("x", 3, 1), lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 1)),
    "gradient": Case(("x",), lambda x: np.gradient(x, axis=1), {"axis": 1}),
    "coarsen": Case((np.mean, "x", {1: 3}), lambda x: x.reshape(4, 2, 3).mean(axis=2)),
    "take": Case(("x", [3, 0, 2]), lambda x: np.take(x, [3, 0, 2], 0), {"axis": 0}),
    "compress": Case(([True, False, True], "x"), lambda x: np.compress([True, False, True], x, 0), {"axis": 0}),
    "take_along_axis": Case(("x", np.array([[3, 0]])), lambda x: x[:, [3, 0]], {"axis": 1}),
    "put": Case(("x", [3, 0], 7), lambda x: np.concatenate([np.full((1, 6), 7), x[1:3], np.full((1, 6), 7)])),
    "where": Case(("i", "x", "x"), np.where),
    "extract": Case(("i", "x"), np.extract, lazy=False, depends=True),
    "flatnonzero": Case(("i",), np.flatnonzero, lazy=False, depends=True),
    "argwhere": Case(("i",), np.argwhere, lazy=False, depends=True),
    "concatenate": Case((["x", "y"],), lambda x, y: np.concatenate([x, y])),
    "stack": Case((["x", "y"],), lambda x, y: np.stack([x, y])),
    "matmul": Case(("x", "m"), np.matmul),
    "dot": Case(("m", "x"), np.dot),
    "tensordot": Case(("m", "x", 1), lambda m, x: np.tensordot(m, x, 1)),
    "einsum": Case(("ab,ac->bc", "x", "y"), lambda x, y: np.einsum("ab,ac->bc", x, y)),
    "vecdot": Case(("x", "y"), np.vecdot),
    "outer": Case(("v", "w"), np.outer),
    "gram": Case(("x",), lambda x: x.T @ x),
    "cov": Case(("x",), np.cov),
    "corrcoef": Case(("x",), np.corrcoef),
    **{name: Case(("z",), getattr(np.fft, name)) for name in ("fft", "ifft", "fftn", "ifftn", "irfft", "irfftn")},
    **{name: Case(("x",), getattr(np.fft, name)) for name in ("rfft", "rfftn")},
    "convolve": Case(("x", "k"), convolved, {"mode": "same"}),
}

MORE: dict[str, tuple[str, Case]] = {
    "quantiles over several axes": ("quantile", Case(("x", [0.1, 0.75]), lambda x: np.quantile(x, [0.1, 0.75]))),
    "median of everything": ("median", Case(("t",), np.median)),
    "medians without NaN": ("nanmedian", Case(("t",), np.median)),
    "medians of long lines": ("median", Case(("t",), lambda t: np.median(t, axis=0), {"axis": 0})),
    "a rule for bins": ("histogram", Case(("x", "auto"), lambda x: np.histogram(x, "auto")[0], {}, False, True)),
    "mode of everything": ("mode", Case(("i",), lambda i: np.bincount(i.ravel()).argmax(), lazy=False, depends=True)),
    "places among distinct values": (
        "unique",
        Case(("i",), np.unique, {"return_inverse": True}, lazy=False, depends=True),
    ),
    "counts with weights": ("bincount", Case(("j", "v"), np.bincount, lazy=False, depends=True)),
    "a convolution by transforms": ("fft.convolve", Case(("x", "k"), convolved)),
    "iterations": (
        "map_overlap",
        Case((averaged, "x"), lambda x: averaged(averaged(x)), {"depth": 1, "boundary": "periodic", "iterations": 2}),
    ),
}

EVERY = {**{name: (name, case) for name, case in CASES.items()}, **MORE}


def operation_of(name: str) -> Callable[..., Any]:
    space = cf if name in cf.__all__ and name != "fft" else cf.fft
    found: Callable[..., Any] = getattr(space, name.removeprefix("fft."))
    return found


def test_every_operation_is_in_the_table() -> None:
    names = {name for space in (cf, cf.fft) for name in dir(space) if is_operation(getattr(space, name, None))}
    assert names - CASES.keys() == {"rechunk"}  # whose result is a file: see below


def plain(result: Any) -> Any:
    """The array that a case gives: of a histogram the counts, of labels the sums."""
    return result[0] if isinstance(result, tuple) else result.sum if hasattr(result, "labels") else result


def ways(name: str, arrays: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """How a case is run, eagerly and as an expression, with a budget."""
    op, (_, case) = operation_of(EVERY[name][0]), EVERY[name]
    found = {"eager": lambda b: op(*case.filled(arrays), **case.kwargs, budget=b, device="cpu")}
    if case.lazy:
        lazies = {key: cf.open(array) for key, array in arrays.items()}
        lazies["k"] = arrays["k"]
        found["lazy"] = lambda b: cf.compute(op(*case.filled(lazies), **case.kwargs), budget=b, device="cpu")
    return found


def refused(run: Callable[[int], Any], budget: int) -> int | None:
    """The budget that a refusal names; None if it is not refused."""
    try:
        run(budget)
    except cf.BudgetError as error:
        refusal = error
    else:
        return None
    assert refusal.smallest is not None
    assert refusal.smallest > budget
    assert f"at least {refusal.smallest}" in str(refusal)
    return refusal.smallest


@pytest.mark.parametrize("name", each(EVERY, 2))
@settings(max_examples=examples(1 / 10), deadline=None)
@given(share=st.floats(0, 0.99), stored=st.booleans())
def test_the_budget_that_a_refusal_names_does(name: str, share: float, stored: bool) -> None:
    arrays = {key: Recorded(a) if stored and key != "k" else a for key, a in samples().items()}
    expected = EVERY[name][1].expected()
    for run in ways(name, arrays).values():
        smallest = refused(run, 1)
        assert smallest is not None
        np.testing.assert_allclose(plain(run(smallest)), expected, rtol=1e-4, atol=1e-5)
        drawn = max(1, int(share * smallest))
        if (again := refused(run, drawn)) is not None:
            assert again <= smallest
            np.testing.assert_allclose(plain(run(again)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", each([name for name, (_, case) in EVERY.items() if not case.depends], 2, 1))
def test_it_is_no_more_than_it_takes(name: str) -> None:
    for run in ways(name, samples()).values():
        smallest = refused(run, 1)
        assert smallest is not None
        assert refused(run, smallest * 2 // 3) is not None


@pytest.mark.parametrize("name", each(EVERY, 2))
@settings(max_examples=examples(1 / 20), deadline=None)
@given(share=st.floats(0, 0.99))
def test_before_a_refusal_no_more_than_the_block_of_a_trial_is_read(name: str, share: float) -> None:
    arrays = {key: Recorded(a) if key != "k" else a for key, a in samples(150).items()}
    for run in ways(name, arrays).values():
        smallest = refused(run, 1)
        assert smallest is not None
        if not EVERY[name][1].depends:
            assert refused(run, min(int(share * smallest * 2 / 3) + 1, smallest - 1)) is not None
    for array in arrays.values():
        assert not isinstance(array, Recorded) or array.nbytes_read <= 2 * SHARED_HOST_BYTES


@pytest.mark.parametrize("name", each(EVERY, 2, 1))
def test_explain_names_it_too(name: str) -> None:
    arrays, (operation, case) = samples(), EVERY[name]
    op, run = operation_of(operation), ways(name, arrays)
    if case.lazy:
        lazies = {key: cf.open(array) for key, array in arrays.items()} | {"k": arrays["k"]}
        found = op(*case.filled(lazies), **case.kwargs)
        assert refused(lambda b: cf.explain(found, budget=b, device="cpu"), 1) == refused(run["lazy"], 1)
    explained = lambda b: cf.explain(op, *case.filled(arrays), **case.kwargs, budget=b, device="cpu")  # noqa: E731
    try:
        explained("1GB")
        refused(explained, 1)
    except TypeError:  # it makes several passes, of which there is not one plan to show
        return
    assert refused(explained, 1) == refused(run["eager"], 1)


def test_loops_and_rearrangements(tmp_path: Path) -> None:
    x = samples(4)["x"]
    smallest = refused(lambda b: list(cf.chunks(x, budget=b, device="cpu")), 1)
    assert sum(chunk.data.size for chunk in cf.chunks(x, budget=smallest, device="cpu")) == x.size
    path = str(tmp_path / "x.zarr")
    smallest = refused(lambda b: cf.rechunk(x, (4, 3), path, budget=b, device="cpu"), 1)
    assert smallest == refused(lambda b: cf.rechunk_plan(x, (4, 3), b, device="cpu"), 1)
    np.testing.assert_array_equal(cf.rechunk(x, (4, 3), path, budget=smallest, device="cpu")[...], x)


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (lambda x: np.column_stack([x[0]] * 2), lambda x: np.column_stack([x[0]] * 2)),
        (lambda x: (x - x.mean()) / x.std(), lambda x: (x - x.mean()) / x.std()),
        (lambda x: cf.cumsum(cf.median(x * 2, axis=0), axis=0), lambda x: np.cumsum(np.median(x * 2, axis=0))),
        (lambda x: (x @ x.T).sum(axis=0), lambda x: (x @ x.T).sum(axis=0)),
        (lambda x: cf.fft.fft(x - x.mean(axis=0)), lambda x: np.fft.fft(x - x.mean(axis=0))),
        (
            lambda x: np.cumprod(cf.map_overlap(np.tanh, x, depth=1, boundary="nearest", iterations=2)[0, :4]),
            lambda x: np.cumprod(np.tanh(np.tanh(x))[0, :4]),
        ),
        (
            lambda x: np.nancumprod(cf.map_overlap(np.tanh, x[0, :3], depth=1, boundary="nearest", iterations=2)),
            lambda x: np.nancumprod(np.tanh(np.tanh(x[0, :3]))),
        ),
    ],
)
def test_expressions_of_several_passes(make: Callable[[Any], Any], right: Callable[[Any], Any]) -> None:
    x = samples(2)["x"]
    expression = make(cf.open(x))
    smallest = refused(lambda b: cf.compute(expression, budget=b, device="cpu"), 1)
    assert smallest is not None
    found = cf.compute(expression, budget=smallest, device="cpu")
    np.testing.assert_allclose(found, right(x), rtol=1e-4, atol=1e-4)
    source = Recorded(np.tile(x, (200, 100)))
    for budget in (1, smallest // 2, smallest - 1):
        assert refused(lambda b: cf.compute(make(cf.open(source)), budget=b, device="cpu"), budget) is not None
    assert source.nbytes_read <= 2 * SHARED_HOST_BYTES


LONG = np.random.default_rng(2).integers(0, 300, (2, 400_000)).astype("f4")
LABELS = np.arange(LONG.shape[1]) % 7


def of_each_label(fn: Callable[..., Any], axis: Any) -> np.ndarray:
    return np.stack([fn(2 * LONG[:, label == LABELS], axis=axis) for label in range(7)], axis=-1)


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (lambda x: cf.groupby_reduce(x, LABELS, func="median")[0], lambda: of_each_label(np.median, 1)),
        (
            lambda x: cf.groupby_reduce(x, LABELS, func="nanquantile", q=0.3, axis=(0, 1))[0],
            lambda: of_each_label(lambda a, axis: np.quantile(a, 0.3, axis), None),
        ),
        (
            lambda x: cf.groupby_reduce(x, LABELS, func=["quantile", "max"], q=[0.1, 0.6])[0][0],
            lambda: of_each_label(lambda a, axis: np.quantile(a, [0.1, 0.6], axis), 1),
        ),
        (
            lambda x: cf.quantile(x, 0.3, 1, "inverted_cdf", weights=np.ones(LONG.shape[1])),
            lambda: np.quantile(2 * LONG, 0.3, 1, method="inverted_cdf"),
        ),
        (lambda x: abs(np.fft.fft(x, axis=1))[:, :9], lambda: abs(np.fft.fft(2 * LONG, axis=1))[:, :9]),
        (
            lambda x: cf.mode(x, axis=1)[0],
            lambda: np.array([2 * np.bincount(row.astype(int)).argmax() for row in LONG]),
        ),
    ],
    ids=["medians of groups", "quantiles of all", "several of groups", "weighted", "transforms", "mode"],
)
def test_expressions_whose_lines_take_more_than_a_trial_may(make: Callable[[Any], Any], right: Any) -> None:
    source = Recorded(LONG)
    expression = make(cf.open(source) * 2)
    smallest = refused(lambda b: cf.compute(expression, budget=b, device="cpu"), 100_000)
    assert smallest is not None
    assert refused(lambda b: cf.compute(expression, budget=b, device="cpu"), smallest * 2 // 3) is not None
    np.testing.assert_allclose(cf.compute(expression, budget=smallest, device="cpu"), right(), rtol=1e-6)


def test_a_refusal_says_what_asks_for_memory() -> None:
    x = cf.open(Recorded(LONG)) * 2
    with pytest.raises(cf.BudgetError) as caught:
        cf.compute(cf.groupby_reduce(x, LABELS, func="median")[0], budget="100kB", device="cpu")
    assert "chunkflow: in the pass of groupby_reduce" in caught.value.__notes__

    def reversed_lines(lines: np.ndarray) -> np.ndarray:
        return lines[:, ::-1]

    for fn in (reversed_lines, np.vectorize(reversed_lines, signature="(a,b)->(a,b)")):
        with pytest.raises(cf.BudgetError, match=r"^reversed_lines runs out .* or let reversed_lines allocate less$"):
            cf.map(fn, Recorded(LONG), chunks=(1, -1), budget="100kB", device="cpu")


@pytest.mark.parametrize("x", [np.arange(4).reshape(2, 2), np.arange(12.0).reshape(3, 4)])
def test_a_later_pass_copies_what_it_would_copy_of_real_results(x: np.ndarray) -> None:
    """A transposed result is copied by a reduction; ones without strides would not be."""
    expression = np.cumsum(cf.open(x), axis=0).T.sum(axis=0)
    smallest = refused(lambda b: cf.compute(expression, budget=b, device="cpu"), 1)
    assert smallest is not None
    found = cf.compute(expression, budget=smallest, device="cpu")
    np.testing.assert_array_equal(found, np.cumsum(x, axis=0).T.sum(axis=0))


FAR = np.append(np.zeros(9000, int), 100_000)
SPARSE = np.random.default_rng(1).integers(0, 10**6, 90, "u4")


@pytest.mark.parametrize("far", [FAR, SPARSE, np.array([200], "u1")], ids=["outlier", "sparse", "single"])
@pytest.mark.parametrize("out", ["", "there", "y.npy", "y.zarr"])
@pytest.mark.parametrize("weighted", [False, True])
def test_more_values_than_elements_are_counted_in_parts(
    far: np.ndarray, out: str, weighted: bool, tmp_path: Path
) -> None:
    weights = np.linspace(0, 1, far.size) if weighted else None
    right = np.bincount(far, weights)
    place: Any = np.empty_like(right) if out == "there" else tmp_path / out if out else None
    run = lambda b: cf.bincount(far, weights, out=place, budget=b, device="cpu")  # noqa: E731
    smallest = refused(run, 1)
    assert smallest is not None
    found = run(smallest)[...]
    assert found.dtype == right.dtype
    np.testing.assert_allclose(found, right)
    if right.size > 2 * far.size:
        assert smallest < 8 * max(right.size, 512)


def with_nan(x: np.ndarray) -> np.ndarray:
    found = x.copy()
    found[-1, -1] = np.nan
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda x: cf.fft.convolve(cf.cumsum(x, axis=0), np.ones(3, "f4"), axes=1),
        lambda x: cf.fft.convolve(cf.cumsum(x, axis=0).T, np.ones((3, 5), "f4")),
        lambda x: cf.fft.convolve(cf.cumsum(x, axis=0), np.ones((4, 6), "c8"), "valid"),
        lambda x: cf.nanmean(cf.cumsum(x, axis=0).T, axis=0),
        lambda x: cf.nanargmax(cf.cumsum(x, axis=0).T, axis=0),
    ],
)
def test_elements_that_are_not_finite_take_what_was_planned(make: Callable[[Any], Any]) -> None:
    expression = make(cf.open(with_nan(samples(9)["x"])))
    smallest = refused(lambda b: cf.compute(expression, budget=b, device="cpu"), 1)
    found = cf.compute(expression, budget=smallest, device="cpu")
    np.testing.assert_allclose(found, cf.compute(expression, budget="1GB", device="cpu"), rtol=1e-3, atol=1e-3)


def test_a_result_that_a_later_pass_reads_is_as_its_output(tmp_path: Path) -> None:
    x = samples(10)["x"]
    for number, out in enumerate((tmp_path / "m.zarr", str(tmp_path / "n.zarr"), np.empty(x.shape[1], "f4"))):
        median = cf.median(cf.open(x), axis=0)
        last = tmp_path / f"{number}.zarr"
        run = lambda b: cf.store([median, np.cumsum(median)], [out, last], budget=b, device="cpu")  # noqa: B023, E731
        smallest = refused(run, 1)
        assert smallest is not None
        run(smallest)
        np.testing.assert_allclose(cf.open(last).compute(), np.cumsum(np.median(x, axis=0)), rtol=1e-4)


def test_a_transform_that_a_later_pass_reads_has_the_chunks_of_its_output(tmp_path: Path) -> None:
    x = np.arange(112).reshape(8, 2, 7) % 19
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(2, 2, 6), compressors=None)
    lines = cf.fft.irfft(cf.open(tmp_path / "x.zarr"), axis=1)
    both = [lines, cf.fft.convolve(lines, np.array([[[-1.0]], [[0.0]]]), "valid")]
    run = lambda b: cf.store(both, [tmp_path / "l.zarr", tmp_path / "c.zarr"], budget=b, device="cpu")  # noqa: E731
    smallest = refused(run, 1)
    assert smallest is not None
    run(smallest)
    right = np.fft.irfft(x, axis=1)
    np.testing.assert_allclose(cf.open(tmp_path / "l.zarr").compute(), right, rtol=1e-12)
    np.testing.assert_allclose(cf.open(tmp_path / "c.zarr").compute(), -right[1:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: cf.map_overlap(np.tanh, -x, depth=2, boundary="nearest", iterations=3),
        lambda x: cf.fft.fftn(-x.reshape(31, 4)).real,
        lambda x: cf.fft.fftn(x.reshape(31, 4)),
    ],
)
def test_a_dataset_of_several_passes_is_what_was_planned(make: Callable[[Any], Any], tmp_path: Path) -> None:
    x = cf.open(np.arange(124.0))
    smallest = refused(lambda b: cf.store(make(x), f"{tmp_path}/o.h5:/d", budget=b, device="cpu"), 1)
    assert smallest is not None
    cf.store(make(x), f"{tmp_path}/o.h5:/d", budget=smallest, device="cpu")
    with h5py.File(tmp_path / "o.h5") as file:
        assert file["d"].chunks is None
        np.testing.assert_allclose(file["d"][...], make(x).compute(device="cpu"), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "i8", "f2", "f8"])
@pytest.mark.parametrize("bins", [4, "sqrt", "auto", "fd"])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("number", [1, 2000])
def test_bins_that_the_elements_choose(dtype: str, bins: Any, there: bool, number: int) -> None:
    x = np.random.default_rng(1).integers(0, 99, number).astype(dtype)
    weights = x if bins == 4 and dtype in ("u8", "i8", "f8") else None
    right = np.histogram(x.view("u1") if dtype == "?" else x, bins, weights=weights)[0]
    out = np.empty_like(right) if there else None
    run = lambda b: cf.histogram(x, bins, weights=weights, out=out, budget=b, device="cpu")  # noqa: E731
    smallest = refused(run, 1)
    assert smallest is not None
    np.testing.assert_array_equal(run(smallest)[0], right)


@pytest.mark.parametrize("rule", ["fd", "auto", "doane", "rice", "scott", "sqrt", "sturges"])
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("x", [np.append(np.linspace(0, 1, 99), 1e4), np.array([-99, *range(70), 10**5])])
def test_bins_far_out_are_counted_in_parts(rule: str, density: bool, x: np.ndarray, tmp_path: Path) -> None:
    right = np.histogram(x, rule, density=density)[0]
    for out in (None, np.empty_like(right), tmp_path / "h.zarr"):
        run = lambda b: cf.histogram(x, rule, density=density, out=out, budget=b, device="cpu")  # noqa: B023, E731
        smallest = refused(run, 1)
        assert smallest is not None
        np.testing.assert_array_equal(run(smallest)[0][...], right)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i2", "i4"])
@pytest.mark.parametrize("number", [2, 300, 70_000])
def test_values_of_a_pass_that_was_not_made_yet(dtype: str, number: int) -> None:
    """In place of its result a dry run has ones, of which one alone is different."""
    x = np.random.default_rng(1).integers(0, 2**31, (1, number)).astype(dtype)
    expression = cf.topk(cf.open(x), 1, axis=0)
    smallest = refused(lambda b: cf.unique(expression, budget=b, device="cpu"), 1)
    np.testing.assert_array_equal(cf.unique(expression, budget=smallest, device="cpu"), np.unique(x))


def test_memory_that_a_loop_has_taken_counts() -> None:
    x = samples()["x"]
    with cf.Budget(1024) as budget, cf.chunks(Recorded(x), device="cpu") as loop:
        taken = loop.plan.memory.total
        smallest = refused(lambda b: cf.median(x, axis=0, budget=budget, device="cpu"), 1)
    assert smallest == taken + (refused(lambda b: cf.median(x, axis=0, budget=b, device="cpu"), 1) or 0)


def test_a_call_that_fails_otherwise_names_what_shows_it() -> None:
    """A later pass has a mask: the budget that a refusal names does for all that is planned until then."""
    plain = da.from_array(np.zeros((2, 2, 1), bool), chunks=1)
    masked = plain.map_blocks(lambda block: np.ma.masked_array(block, ~block), meta=plain._meta)
    results = cf.median(cf.open(np.arange(1)[:, None]), axis=0), cf.cumprod(cf.open(masked), axis=0)
    with pytest.raises(cf.BudgetError) as refused:
        cf.compute(*results, device="cpu", budget=1)
    with pytest.raises(cf.ReadError, match="mask"):
        cf.compute(*results, device="cpu", budget=refused.value.smallest or 1)


def test_the_search_for_a_budget_stays_within_the_refused_one(tmp_path: Path) -> None:
    """Functions are tried on what the refused budget has room for, not the larger ones that are looked through."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 1000, 1 << 20).astype("u2"))
    budget = 5 << 19

    def run() -> None:
        assert refused(lambda b: cf.bincount(tmp_path / "x.npy", minlength=200_000, budget=b, device="cpu"), budget)

    run()
    with traced() as peak:
        run()
        assert peak() < budget // 2  # three quarters, where larger budgets are tried in full


SEVERAL: dict[str, Callable[..., Any]] = {
    "a percentile": lambda x, **options: cf.percentile(x, 90, axis=0, **options),
    "a median of all": lambda x, **options: cf.median(x, **options),
    "a standard deviation": lambda x, **options: cf.std(x, axis=0, **options),
    "a histogram": lambda x, **options: cf.histogram(x, bins=9, **options)[0],
    "an expression": lambda x, **options: (cf.open(x) - cf.open(x).mean(axis=0)).max().compute(**options),
    "a percentile of an expression": lambda x, **options: np.percentile(cf.open(x) + 1, 90, axis=0).compute(**options),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_passes_the_least_budget_does_and_hardly_less_is_refused(name: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((12, 40, 50), "f4")
    zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(6, 40, 50))
    work, path = SEVERAL[name], str(tmp_path / "x.zarr")
    with pytest.raises(cf.BudgetError) as caught:
        work(path, budget=1000, device="cpu")
    smallest, message = caught.value.smallest, str(caught.value)
    assert smallest is not None
    assert message.count(f"at least {smallest}") == 1
    np.testing.assert_array_equal(work(path, budget=smallest, device="cpu"), work(path, device="cpu"))
    with pytest.raises(cf.BudgetError):
        work(path, budget=smallest - smallest // 1000 - 1, device="cpu")


def test_the_figures_come_first_and_many_files_are_said_briefly(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for i in range(6):
        np.save(folder / f"x{i}.npy", np.ones((40, 50)))
    x = cf.stack([cf.open(folder / f"x{i}.npy") for i in range(6)])
    with pytest.raises(cf.BudgetError) as caught:
        x.mean().compute(budget=300, device="cpu")
    message = str(caught.value)
    assert message.startswith("the smallest block takes 2.05 kB, ")
    assert message.endswith(f". The block is of {folder}/x0.npy and 5 more (6, 40, 50)")
    assert message.count(str(folder)) == 1
    assert str(cf.explain(x.mean(), device="cpu")).count(str(folder)) == 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == message

"""NumPy's vocabulary: what is supported gives what NumPy gives; what is not says what to use. The docs list both."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing.overrides import get_overridable_numpy_array_functions, get_overridable_numpy_ufuncs
from support.devices import Place, on_cpu_and_gpu
from support.numpy_arguments import REFUSED_VALUES, every_function
from support.numpy_arguments import table as arguments_table
from support.numpy_examples import EXAMPLES, X, arrays, flat, rows

import chunkflow as cf
from chunkflow.api.lazy import fill, numpy_dispatch, numpy_signature
from chunkflow.api.lazy.open import ChunkedArray
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.nodes import SourceNode
from chunkflow.testing import CountingSource

TABLE = Path(__file__).resolve().parents[3] / "docs" / "numpy.md"

NUMBERS = set("?bBhHiIlLqQefdgFDG->")  # of the loops of a ufunc that takes numbers, and not text or dates alone


@on_cpu_and_gpu
@pytest.mark.parametrize("fn", rows(numpy_dispatch.FUNCTIONS), ids=numpy_dispatch.name_of)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_supported_functions_give_what_numpy_gives(place: Place, fn: Any) -> None:
    for example in EXAMPLES[fn]:
        expected = example(**arrays(np.asarray))
        lazy = example(**arrays(cf.open))
        room = 1 << (29 if place.is_gpu else 20)  # libraries of a GPU take much where they are first used
        got = cf.compute(lazy, budget=place.budget(room), device=place.device())
        if isinstance(lazy, cf.Array):
            assert (lazy.shape, lazy.dtype) == (np.shape(expected), np.asarray(expected).dtype)
        assert len(flat(got)) == len(flat(expected))
        for one, other in zip(flat(got), flat(expected), strict=True):
            if isinstance(other, np.ndarray | np.generic):
                assert np.shape(one) == np.shape(other)
                assert np.asarray(one).dtype == other.dtype
                np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)
            else:
                assert one == other


@pytest.mark.parametrize(
    "ufunc", sorted(get_overridable_numpy_ufuncs(), key=lambda u: u.__name__), ids=lambda u: u.__name__
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_ufunc_gives_what_numpy_gives_or_says_why_not(ufunc: np.ufunc) -> None:
    given = [np.arange(1, 13).reshape(3, 4), np.arange(2, 14).reshape(3, 4)][: ufunc.nin]
    if ufunc.__name__ in ("matvec", "vecmat"):
        given = [given[0], given[1][0]] if ufunc.__name__ == "matvec" else [given[0][:, 0], given[1]]
    dtypes = [d for d in ("?", "i8", "f8", "c16") if _takes(ufunc, [g.astype(d) for g in given])]
    for dtype in dtypes:
        values = [g.astype(dtype) for g in given]
        if ufunc is np.matmul:
            values[1] = values[1].T
        expected = ufunc(*values)
        got = cf.compute(ufunc(*(cf.open(v) for v in values)), device="cpu")
        for one, other in zip(flat(got), flat(expected), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-12)


def _takes(ufunc: np.ufunc, values: list[np.ndarray]) -> bool:
    try:
        ufunc(*values)
    except (TypeError, ValueError):
        return False
    return True


# -- Where arguments decide on the dtype, or are arrays themselves -----------------------------------------------------

B = np.arange(24, dtype="i1").reshape(4, 6) * 9


def as_numpy(fn: Callable[..., Any], *given: np.ndarray) -> None:
    """Check that a function gives of lazy arrays what it gives of NumPy's; what NumPy refuses is refused at once."""
    lazies = [cf.open(a) for a in given]
    try:
        expected = fn(*given)
    except (OverflowError, TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            fn(*lazies)
        return
    lazy = fn(*lazies)
    got = lazy.compute(device="cpu")
    assert lazy.dtype == got.dtype == expected.dtype
    assert lazy.shape == np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=4 * np.finfo("f4").eps if expected.dtype.char in "fF" else 1e-12)


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "?", "f4", "f8", "c8"])
@pytest.mark.parametrize("fn", [np.sum, np.prod, np.min, np.max], ids=numpy_dispatch.name_of)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_initial_is_cast_as_numpy_casts_it(fn: Any, dtype: str) -> None:
    for initial in (2.5, -1, 300, True, -np.inf, np.float64(2.5), np.float32(-np.inf), np.array(2.5), 1j, None):
        for options in ({}, {"axis": 0}, {"axis": 1, "keepdims": True}, {"where": B % 2 == 0}):
            if initial is not None or "where" not in options:
                as_numpy(lambda x: fn(x, initial=initial, **options), B.astype(dtype))  # noqa: B023
        if fn in (np.sum, np.prod):
            as_numpy(lambda x: fn(x, axis=0, dtype="f4", initial=initial), B.real.astype("i2"))  # noqa: B023


def test_ufuncs_reduce_with_where_and_initial() -> None:
    as_numpy(lambda x: np.add.reduce(x, axis=1, initial=0.5, where=B > 9), B)
    as_numpy(lambda x: np.maximum.reduce(x, initial=7), B)
    as_numpy(lambda x: np.logical_or.reduce(x, axis=0, where=B > 99), B)
    with pytest.raises(ArgumentError, match=r"initial=\[2\] has the shape \(1,\)"):
        np.sum(cf.open(B), initial=[2])


def test_what_an_array_in_memory_needs_for_a_lazy_mask() -> None:
    mask = cf.open(B > 9)
    for fn in (np.sum, np.prod, np.nansum, np.nanmean):
        with pytest.raises(UnsupportedError, match=r"where=.*chunkflow\.open\(array\)"):
            fn(B / 2, where=mask)
    as_numpy(lambda where: np.mean(B, where=where), B > 9)
    as_numpy(lambda where: np.any(B, axis=0, where=where), B > 9)


def test_select_has_the_dtype_of_all_choices() -> None:
    single = B.astype("f4")
    as_numpy(lambda x, y: np.select([x > 3, x > 0], [y, 1], 2.5), B, single)
    as_numpy(lambda x, y: np.select([x > 3, x > 0], [y, np.float64(1)], 2), B, single)
    as_numpy(lambda x: np.select([x > 3, x > 0], [1, 2]), B)
    as_numpy(lambda x: np.select([x > 3, B > 0], [1, x], 2.5), B)
    as_numpy(lambda x: np.select([B > 3, x > 0], [B, B], -1), B)
    as_numpy(lambda x: np.select([x > 3], [300], x), B)
    as_numpy(lambda x: np.select([x > 3, x[0] > 0], [x, x[:, :1]], True), B)
    as_numpy(lambda x: np.select([x > 3], [-1], np.uint8(3)), B)  # cannot be cast
    as_numpy(lambda x: np.select([x], [1]), B)  # is of no bools
    with pytest.raises(ArgumentTypeError, match="None"):
        np.select([cf.open(B > 3)], [1], None)


@pytest.mark.parametrize("dtype", ["i2", "f4", "c8", "?"])
@pytest.mark.parametrize("name", ["T", "mT", "real", "imag", "shape", "size", "ndim", "dtype", "itemsize", "nbytes"])
def test_attributes_are_numpys(name: str, dtype: str) -> None:
    x = (B * (1 + 1j if dtype == "c8" else 1)).astype(dtype)
    got, expected = getattr(cf.open(x), name), getattr(x, name)
    if isinstance(expected, np.ndarray):
        got = got.compute(device="cpu")
        assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_types_and_scalars_by_keyword_are_no_arrays_of_blocks() -> None:
    as_numpy(lambda x: np.add(x, 1, dtype=np.float32), B)
    as_numpy(lambda x: np.nan_to_num(x, nan=np.float32(3)), np.where(B > 20, np.nan, B))
    as_numpy(lambda x: np.full_like(x, np.int16(7), dtype=np.float64), B)


def test_arrays_by_keyword_are_cut_as_the_others_are() -> None:
    holes = np.where(B > 20, np.nan, B)
    row = [1, 2, 3, 4, 5, 6]
    as_numpy(lambda x: np.clip(x, a_min=B - 1, a_max=B + 1), B)
    as_numpy(lambda x: np.clip(x, min=B[0], max=B + 1), B)
    as_numpy(lambda x: np.clip(x, min=row, max=np.array(90)), B)
    as_numpy(lambda x: np.clip(x[:1], min=B), B)
    as_numpy(lambda x: np.isclose(x, 0, atol=B), B)
    as_numpy(lambda x: np.full_like(x, B * 2.5), B)
    as_numpy(lambda x: np.full_like(x, row, dtype="f4"), B)
    as_numpy(lambda x: np.nan_to_num(x, nan=B), holes)
    as_numpy(lambda x: np.nan_to_num(x, True, B[:, :1]), holes)
    ends = np.where(B > 50, np.inf, np.where(B < 0, -np.inf, holes))
    as_numpy(lambda x: np.nan_to_num(x, nan=-1.0, posinf=B, neginf=B + 1), ends)
    as_numpy(lambda x: np.nan_to_num(x, nan=B, posinf=3), (holes + 1j * B[::-1]).astype("c8"))
    as_numpy(lambda x: np.nan_to_num(x, nan=B * 1j), holes)  # cannot be cast
    as_numpy(lambda x: np.nan_to_num(x, nan=B / 2), B)
    as_numpy(lambda x: np.add(x, 1, signature=("f8", "f8", "f8")), B)
    # What would stretch the array:
    as_numpy(lambda x: np.nan_to_num(x[:1], nan=B), holes)
    as_numpy(lambda x: np.full_like(x[:1], B), B)
    as_numpy(lambda x: np.full_like(x, np.ones(5)), B)


SAMPLES: dict[str, Any] = {
    "axis": 0, "axis1": 0, "axis2": 1, "axes": 1, "bins": [0.0, 1.0, 2.0], "condlist": B > 3, "condition": B > 3,
    "destination": 1, "dtype": 1, "func": np.sum, "fp": [1.0, 2.0], "indices": 0, "indices_or_sections": 2,
    "pad_width": 1, "q": 0.5, "repeats": 2, "reps": 2, "shape": (4, 6), "shift": 1, "source": 0, "where": B > 3,
    "xp": [1.0, 2.0],
}  # fmt: skip
"""What parameters of these names take, others an array."""

NOT_ASKED = {
    *((fn, "axes") for fn in (np.fft.fftn, np.fft.ifftn, np.fft.rfftn, np.fft.irfftn)),
    *((fn, "axes") for fn in (np.fft.fft2, np.fft.ifft2, np.fft.rfft2, np.fft.irfft2, np.apply_over_axes)),
    *((fn, name) for fn in (np.nanvar, np.nanstd) for name in ("ddof", "correction", "mean")),
    (np.nanstd, "where"),
    *((np.pad, "pad_width"), (np.pad, "constant_values"), (np.repeat, "repeats"), (np.roll, "shift")),
    *((np.select, "default"), (np.take, "indices"), (np.partition, "kth"), (np.argpartition, "kth")),
    *((np.apply_along_axis, "axis"), (np.resize, "new_shape"), (np.linalg.matrix_rank, "tol")),
    *((np.linalg.matrix_rank, "rtol"), (np.linalg.pinv, "rcond"), (np.linalg.pinv, "rtol")),
    *((np.lib.stride_tricks.sliding_window_view, "window_shape"), (np.trapezoid, "dx")),
}
"""Arguments that NumPy makes arrays of without asking them, where no other is lazy."""


def calls(fn: Any, name: str, also_first: bool) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with a lazy array for the parameter of this name, and, if asked for, for the first one."""
    args: list[Any] = ["ij,ij"] if fn is np.einsum else []
    kwargs: dict[str, Any] = {}
    for place, (key, parameter) in enumerate(inspect.signature(fn).parameters.items()):
        value = SAMPLES.get(key, B)
        if key == name or (also_first and place == (fn is np.apply_over_axes)):  # which takes a function before
            value = cf.open(np.asarray(value))
        elif parameter.default is not parameter.empty and fn is not np.where:
            continue
        if key in ("condlist", "choicelist", "tup", "arrays"):
            value = [value, SAMPLES.get(key, B)]
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [B, value]
        elif parameter.kind is parameter.KEYWORD_ONLY or (place and parameter.default is not parameter.empty):
            kwargs[key] = value
        elif parameter.kind is not parameter.VAR_KEYWORD:
            args.append(value)
    if name == "constant_values":
        kwargs[name] = cf.open(np.array(3.0))
    return args, kwargs


@pytest.mark.parametrize("fn", rows(numpy_dispatch.FUNCTIONS, 3), ids=numpy_dispatch.name_of)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_building_an_expression_computes_no_other(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def loads(array: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        raise TypeError("computed")

    monkeypatch.setattr(cf.Array, "__array__", loads)
    monkeypatch.setattr(cf.Array, "compute", loads)
    monkeypatch.setattr(cf.Array, "item", lambda array: 1 / 0)  # a number is asked for in so many words
    names = [key for key in inspect.signature(fn).parameters if key not in ("out", "kwargs", "func")]
    for name in names + ["constant_values"] * (fn is np.pad):
        for also_first in (True, False):
            if not also_first and (fn, name) in NOT_ASKED:
                continue
            args, kwargs = calls(fn, name, also_first)
            with suppress(TypeError, ValueError, AttributeError, ZeroDivisionError):  # NumPy's, and our own
                fn(*args, **kwargs)
            assert asked == [], f"{name}, {also_first=}"


def test_arguments_that_are_wanted_whole_are_refused_by_name() -> None:
    x = cf.open(B)
    for call, says in (
        (lambda: np.interp(x, B[0], B[0], left=x.max()), r"np\.interp: left="),
        (lambda: np.searchsorted(B[0], x, sorter=x[0]), r"np\.searchsorted: sorter="),
        (lambda: np.quantile(x, q=x.max()), "q="),
        (lambda: np.percentile(B, x.max()), "q="),
        (lambda: np.max(x, where=B > 3, initial=x.max()), r"np\.max: initial="),
        (lambda: np.pad(x, 1, constant_values=x.max()), "pad: constant_values="),
        (lambda: np.pad(x, 1, constant_values=[(x.max(), 0)]), "pad: constant_values="),
        (lambda: np.cov(x, fweights=x[0]), "cov: fweights="),
    ):
        with pytest.raises(UnsupportedError, match=says + r" is an expression.*compute\(\)"):
            call()


# -- What is refused, and the docs -------------------------------------------------------------------------------------


def refused() -> list[Any]:
    """NumPy's functions for arrays that are not supported, without those that make arrays from nothing."""
    makers = """arange array asarray asanyarray ascontiguousarray asfortranarray empty eye frombuffer fromfile full
        fromfunction fromiter fromstring genfromtxt identity linspace loadtxt ones require tri zeros geomspace
        logspace busday_count busday_offset is_busday datetime_as_string can_cast fftfreq rfftfreq"""
    found = [
        fn
        for fn in get_overridable_numpy_array_functions()
        if fn not in numpy_dispatch.FUNCTIONS
        and fn.__name__ not in makers
        and fn.__module__ in ("numpy", "numpy.linalg")
    ]
    return sorted(found, key=numpy_dispatch.name_of)


@pytest.mark.parametrize("fn", refused(), ids=numpy_dispatch.name_of)
def test_other_functions_are_refused_with_advice(fn: Any) -> None:
    x = cf.open(X)
    with pytest.raises(UnsupportedError, match="use ") as caught:
        x.__array_function__(fn, (cf.Array,), (x,), {})
    assert numpy_dispatch.name_of(fn) in str(caught.value)


def table() -> str:
    ufuncs = [u for u in get_overridable_numpy_ufuncs() if u.signature is None or u in (np.matmul, np.vecdot)]
    ufuncs = [u for u in ufuncs if not u.__name__.startswith("_") and any(NUMBERS.issuperset(t) for t in u.types)]
    lines = [
        "# NumPy on lazy arrays",
        "",
        "Which of NumPy's functions take a `chunkflow.Array`. Each of them is tried by",
        "`tests/api/lazy/test_numpy_dispatch.py`, which writes this page at `make vocabulary`.",
        "",
        "## Supported",
        "",
        "All operators, all methods of `chunkflow.Array`, and what follows give expressions. `x += y` gives the name",
        "`x` another expression: other names of it, and slices that were taken before, keep theirs.",
        "",
        "Ufuncs: " + ", ".join(f"`{u}`" for u in sorted({u.__name__ for u in ufuncs})) + ".",
        "",
        "And these functions. `tests/api/lazy/test_numpy_arguments.py` gives each argument by keyword and by",
        "position: it is taken with NumPy's value, or refused when the call is made. Nothing takes `out=`:",
        "`chunkflow.store`, `to_zarr` and `to_npy` say where a result goes. `order=`, `copy=`, `subok=`, `device=`,",
        "`overwrite_input=` and `optimize=` change no value. Elements have the native byte order: an array of `>i4`",
        "gives an expression of `<i4`, and so does `np.zeros_like` of it.",
        "",
        "What only elements tell is found in the run, and is NumPy's own error, with a note that names the block and",
        "its region: powers of integers that are computed and negative, matrices without an inverse, places outside",
        "of a table.",
        "",
        "Some results have a length that only the elements tell, as of `np.unique`, `np.bincount`, `np.union1d` and",
        "`np.trim_zeros`. These functions run when they are called, and give arrays in memory: a",
        '`with chunkflow.Budget("4GB"):` around the call bounds that run.',
        "",
        *arguments_table(every_function()),
        "",
        "Of these arguments, some values are refused:",
        "",
        "| function | refused |",
        "|---|---|",
        *(
            f"| {', '.join(f'`np.{name}`' for name in names.split(', '))} | {what} |"
            for names, what, _ in REFUSED_VALUES
        ),
        "",
        "## Refused, and what to use",
        "",
        "| function | instead |",
        "|---|---|",
        *(f"| `{numpy_dispatch.name_of(fn)}` | {numpy_dispatch.advice(fn)} |" for fn in refused()),
    ]
    return "\n".join(lines) + "\n"


def test_the_docs_list_what_is_supported() -> None:
    if os.environ.get("CHUNKFLOW_WRITE_DOCS"):
        TABLE.write_text(table())
    if not "2.4.0" <= np.lib.NumpyVersion(np.__version__) < "2.5.0":
        pytest.skip("the table is that of NumPy 2.4: others have other parameters")
    assert TABLE.read_text() == table(), "out of date: run `make vocabulary`"


# -- What other ways lead to ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i4", "f4", "f8", "c8"])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 2.0, -1.0, np.float32(2)])
def test_powers(exponent: Any, dtype: str) -> None:
    as_numpy(lambda x: x**exponent, (B[:2] % 7 + 1).astype(dtype))


def test_what_is_no_array_of_numpys_may_stand_on_the_left_of_a_product() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal((CountingSource(x) @ cf.open(y)).compute(device="cpu"), x @ y)
    for product in (lambda x: [[1, 2]] @ x, lambda x: x @ [[1], [2], [3]]):
        np.testing.assert_array_equal(product(cf.open(x)).compute(device="cpu"), product(x))
    with pytest.raises(ArgumentTypeError, match="type list is not an array"):
        cf.open(x) @ [cf.open(y[:, 0])]
    with pytest.raises(ArgumentTypeError, match="would lose its mask"):
        cf.open(x) @ ([np.ma.array([1.0, 2], mask=[False, True])] * 3)
    with pytest.raises(ArgumentError, match="rows are of different lengths"):
        cf.open(x) @ [[1], [1, 2], [3]]


def test_rows_are_iterated_over() -> None:
    assert len(cf.open(X)) == len(X)
    for got, expected in zip(cf.compute(list(cf.open(X)), device="cpu"), X, strict=True):
        np.testing.assert_array_equal(got, expected)
    for call in (len, iter):
        with pytest.raises(TypeError, match="without dimensions"):
            call(cf.open(X).sum())


def test_arrays_of_other_shapes_are_not_equal() -> None:
    assert np.array_equal(cf.open(X), cf.open(X)[0]) is False


def test_arguments_where_numpy_tells_no_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_signature, "_signature", lambda fn: None)
    given = numpy_signature.bound(np.mean, "np.mean", (X, 0), {"keepdims": np._NoValue, "dtype": "f4"})
    assert (given[0][1:], given[1]) == ([0], {"dtype": "f4"})


@pytest.mark.parametrize("shape", [(700, 600, 500), (0, 3), ()])
def test_chunks_that_xarray_sees_cover_the_array(shape: tuple[int, ...]) -> None:
    chunks = ChunkedArray(SourceNode(np.broadcast_to(1.0, shape))).chunks
    assert tuple(sum(side) for side in chunks) == shape
    assert all(one == side[0] for side in chunks for one in side[:-1])
    assert all(0 < side[-1] <= side[0] or side == (0,) for side in chunks)
    if shape == (700, 600, 500):
        assert chunks[0] == (88,) * 7 + (84,)


def test_nan_to_num_is_given_no_array_which_cupys_would_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, holes = np.nan_to_num, np.where(B > 20, np.nan, B)

    def cupys(block: Any, **given: Any) -> Any:
        assert not any(np.ndim(value) for value in given.values())
        return theirs(block, **given)

    monkeypatch.setattr(np, "nan_to_num", cupys)
    for given in ({"nan": B}, {"nan": 3.0}, {"nan": 3.0, "posinf": B + 1.0}):
        got = fill.nan_to_num(cf.open(holes), **given).compute(device="cpu")
        np.testing.assert_array_equal(got, theirs(holes, **given))

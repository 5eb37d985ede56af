"""The array API standard, by array-api-strict: its parameters are taken, its dtypes result, what it refuses is refused.

`chunkflow.array_api` takes more than the standard: what it leaves open is as in NumPy.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import array_api_strict as xp
import numpy as np
import pytest
from support.numpy_examples import flat
from support.peer_arrays import A, B, V, X
from support.peers import difference, drawn

import chunkflow as cf
from chunkflow import array_api
from chunkflow.errors import ChunkflowError

REALS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
DTYPES = ("bool", *REALS, "complex64", "complex128")
LINES = np.abs(X) + 1
S = np.swapaxes(X, 1, 2) @ X / 9 + 3 * np.eye(3)

Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def each(names: str, value: Any) -> dict[str, Any]:
    """The same for all names in a text."""
    return dict.fromkeys(names.split(), value)


ELEMENTS = """
    abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan
    log log1p log2 log10 logical_not negative positive real reciprocal round sign signbit sin sinh square sqrt tan tanh
    trunc
"""
PAIRS = """
    add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
    floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum
    minimum multiply nextafter not_equal pow remainder subtract
"""
AXES = [call(X), call(X, axis=1), call(X, axis=(0, -1)), call(X, axis=(0, 2), keepdims=True)]
ONE_AXIS = [call(X), call(X, axis=1), call(X, axis=-1, keepdims=True)]
TRANSFORM = [call(A), call(A, n=5), call(A, axis=0), call(A, norm="ortho"), call(A, n=9, axis=0, norm="forward")]
TRANSFORMS = [call(A), call(A, s=(4, 5), axes=(0, 1)), call(A, axes=(0,)), call(A, norm="ortho")]

CALLS: dict[str, list[Call]] = {
    **each(ELEMENTS, [call(LINES)]),
    **each(PAIRS, [call(LINES, LINES[0]), call(LINES[:, :1], LINES[:1])]),
    **each("sum prod", [*AXES, call(X, dtype="dtype:complex128")]),
    **each("max min mean all any count_nonzero", AXES),
    **each("std var", [*AXES, call(X, correction=1), call(X, axis=0, correction=0.5)]),
    **each("argmax argmin", ONE_AXIS),
    **each("cumulative_sum cumulative_prod", [
        call(V[:9]), call(X, axis=1), call(X, axis=-1, include_initial=True), call(X, axis=0,
        dtype="dtype:complex128")]),
    **each("zeros_like ones_like", [call(X), call(X, dtype="dtype:int16"), call(X, device=None)]),
    "full_like": [call(X, 3), call(X, 3, dtype="dtype:int16"), call(X, 3, device=None), call(X, fill_value=1)],
    "astype": [call(X, "dtype:float32"), call(X, "dtype:float64", copy=False), call(X, "dtype:int8", device=None)],
    "broadcast_arrays": [call(X, X[0], X[:, :1])], "result_type": [call(X, "dtype:float32"), call(X, X[0])],
    "broadcast_to": [call(X[0], (4, 9, 3)), call(X[0], shape=(2, 9, 3))],
    "clip": [call(X, -1, 1), call(X, min=0), call(X, max=1), call(X, X[0], X[0])],
    "take": [call(X, np.asarray([1]), axis=0)],
    "matmul": [call(A, B), call(X, B[:3])], "matrix_transpose": [call(X)], "vecdot": [call(X, X[0]), call(X, X,
    axis=1)],
    "tensordot": [call(A, B, axes=1), call(X, X), call(X, X, axes=((0, 1), (0, 1)))], "linalg.outer": [call(V, V)],
    "linalg.matmul": [call(A, B)], "linalg.matrix_transpose": [call(X)], "linalg.vecdot": [call(X, X[0]), call(X, X,
    axis=0)],
    "linalg.tensordot": [call(A, B, axes=1), call(X, X)],
    "concat": [call([X, X]), call([X, X], axis=1), call((X, A), axis=None)], "stack": [call([X, X]), call((X, X),
    axis=-1)],
    "expand_dims": [call(X, 0), call(X, axis=-1)], "squeeze": [call(X[:1], 0), call(X[:1, :, :1], axis=(0, 2))],
    "flip": [call(X), call(X, axis=0), call(X, axis=(1, -1))], "moveaxis": [call(X, 0, -1), call(X, (0, 1), (1, 2))],
    "permute_dims": [call(X, (2, 0, 1)), call(X, axes=(0, 2, 1))], "roll": [call(X, 2), call(X, shift=(1, 2), axis=(0,
    1)), call(X, 1, axis=0)],
    "repeat": [call(X, 2), call(X, 2, axis=1), call(X, np.asarray([1, 2, 0, 1]), axis=0)], "tile": [call(X, (2, 1, 1)),
    call(X, (2,))],
    "reshape": [call(X, (27, 4)), call(X, shape=(-1,)), call(X, (4, -1), copy=True), call(X, (4, -1), copy=None)],
    "unstack": [call(X), call(X, axis=-1)], "where": [call(X > 0, X, X[0])], "isin": [call(X, np.asarray([1.0, 2])),
    call(X, X[0], invert=False)],
    "diff": [call(X), call(X, n=2), call(X, axis=0), call(X, prepend=X[..., :1]), call(X, append=X[..., :2])],
    **each("fft.fft fft.ifft fft.rfft fft.irfft fft.hfft fft.ihfft", TRANSFORM),
    **each("fft.fftshift fft.ifftshift", [call(X), call(X, axes=1), call(X, axes=(0, 2))]),
    **each("fft.fftfreq fft.rfftfreq", [call(7), call(8, d=0.25), call(5, dtype="dtype:float32", device=None)]),
    **each("sort argsort", [call(X), call(X, axis=0, stable=True), call(X, axis=1, descending=True)]),
    "searchsorted": [call(V, X), call(V, X, side="right"), call(V[::-1], X, sorter=np.arange(len(V))[::-1].copy())],
    "take_along_axis": [call(X, np.argsort(X)), call(X, np.argsort(X, 0), axis=0)],
    **each("tril triu", [call(X), call(X, k=-1)]), "nonzero": [call(X > 0)], "empty_like": [call(X[:0], dtype=
    "dtype:float32", device=None)],
    **each("unique_all unique_counts unique_inverse unique_values", [call(X)]),
    **each("arange", [call(5), call(2, 9, 3), call(1.0, stop=4, step=0.5, dtype="dtype:float32", device=None)]),
    **each("zeros ones", [call((2, 3)), call(4, dtype="dtype:int16", device=None)]), "empty": [call((0, 3)), call(0,
    dtype="dtype:int16", device=None)],
    "full": [call((2, 3), 7), call(4, 2.5), call((), True, dtype="dtype:int16", device=None)], "eye": [call(3), call(3,
    4, k=1, dtype="dtype:float32", device=None)],
    "linspace": [call(0.0, 1.0, 5), call(0, 9, num=4, dtype="dtype:float32", device=None, endpoint=False)],
    "meshgrid": [call(V, V[:3]), call(V, V[:3], V[:2], indexing="ij")],
    "linalg.cholesky": [call(S), call(S, upper=True)], "linalg.cross": [call(X, X[0]), call(X, X + 1, axis=2)],
    **each("linalg.det linalg.inv linalg.slogdet linalg.eigh linalg.eigvalsh", [call(S)]),
    "linalg.diagonal": [call(X), call(X, offset=1)], "linalg.trace": [call(X), call(X, offset=-1, dtype=
    "dtype:complex128")],
    "linalg.matrix_norm": [call(X), call(X, keepdims=True, ord="nuc"), call(X, ord=-2)],
    "linalg.matrix_power": [call(S, 3), call(S, 0)], "linalg.matrix_rank": [call(X), call(X, rtol=0.5)],
    "linalg.pinv": [call(X), call(X, rtol=0.3)], "linalg.qr": [call(X), call(X, mode="complete")],
    "linalg.solve": [call(S, S), call(S[0], V[:3])], "linalg.svd": [call(X), call(X, full_matrices=False)],
    "linalg.svdvals": [call(X)],
    "linalg.vector_norm": [call(X), call(X, axis=(0, 1), keepdims=True, ord=3), call(X, axis=1, ord=float("inf"))],
    **each("fft.fft fft.ifft fft.rfft fft.irfft", TRANSFORM),
    **each("fft.fftn fft.ifftn fft.rfftn fft.irfftn", TRANSFORMS),
}  # fmt: skip
"""Calls that the standard allows, with all parameters that it names."""

NOT_OF_ARRAYS = {"asarray", "broadcast_shapes", "can_cast", "finfo", "from_dlpack", "iinfo", "isdtype"}
"""Functions that are tried by themselves."""

REFUSED_DTYPES = {
    **each("unique_all", "fc"),  # of NaN it is not told which is first
    **each("unique_counts unique_inverse unique_values", "c"),
}
"""Kinds of dtypes that functions do not have."""

UNSIGNED = {"linalg.eigh", "linalg.qr", "linalg.svd"}
"""Functions of vectors that may point the other way."""


def named(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def given(value: Any, dtype: str, make: Any, module: Any) -> Any:
    """An argument: arrays in a dtype, made by a function; dtypes of a module."""
    if isinstance(value, str) and value.startswith("dtype:"):
        return named(module, value.removeprefix("dtype:"))
    if isinstance(value, np.ndarray):
        return make(value if value.dtype.kind in "bi" else value.astype(dtype))
    if isinstance(value, list | tuple):
        return type(value)(given(entry, dtype, make, module) for entry in value)
    return value


def made(name: str, made: Call, dtype: str, make: Any, module: Any) -> Any:
    args, kwargs = made
    return named(module, name)(
        *(given(a, dtype, make, module) for a in args), **{k: given(v, dtype, make, module) for k, v in kwargs.items()}
    )


def strict(name: str, asked: Call, dtype: str) -> Any:
    """What the standard has, as NumPy's arrays."""
    found = made(name, asked, dtype, xp.asarray, xp)
    return [np.asarray(f._array) for f in found] if isinstance(found, list | tuple) else found


def test_every_function_of_the_standard_is_here_or_absent_for_a_reason() -> None:
    listed = {
        n for n in xp.__all__ if inspect.isfunction(getattr(xp, n)) and not n.startswith("_") and "flags" not in n
    }
    listed |= {f"{module}.{n}" for module in ("linalg", "fft") for n in named(xp, module).__all__}
    assert listed == {*CALLS, *NOT_OF_ARRAYS}
    for name in listed:
        assert callable(named(array_api, name))


@pytest.mark.parametrize("name", CALLS)
def test_every_parameter_is_in_a_call(name: str) -> None:
    parameters = inspect.signature(named(xp, name)).parameters.values()
    keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert keywords <= {key for _, kwargs in CALLS[name] for key in kwargs}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_a_call_gives_what_the_standard_gives(name: str) -> None:
    for asked, dtype in itertools.product(CALLS[name], drawn(name, DTYPES)):
        try:
            right = strict(name, asked, dtype)
        except (TypeError, ValueError):  # another kind of dtype than the standard has it for: as in NumPy
            continue
        try:
            lazy = made(name, asked, dtype, cf.open, array_api)
        except ChunkflowError as error:
            if np.dtype(dtype).kind not in REFUSED_DTYPES.get(name, ""):
                raise AssertionError((name, asked, dtype)) from error
            continue
        got = cf.compute(lazy, device="cpu")
        if name == "result_type":
            assert got == right._np_dtype
            continue
        right = right if isinstance(right, list) else np.asarray(right._array)
        got, right = ([abs(np.asarray(part)) for part in flat(v)] if name in UNSIGNED else v for v in (got, right))
        for one, other in zip(flat(got), flat(right), strict=True):
            assert difference(one, np.asarray(other), 256) is None, (name, asked, dtype, difference(one, other, 256))


@pytest.mark.parametrize("name", PAIRS.split())
@pytest.mark.filterwarnings("ignore")
def test_pairs_of_dtypes_are_promoted_as_the_standard_says(name: str) -> None:
    for one, other in itertools.product(DTYPES, drawn(name, DTYPES)):
        arrays = [np.ones((2, 3), one), np.ones(3, other)]
        try:
            right = named(xp, name)(*map(xp.asarray, arrays)).dtype._np_dtype
        except (TypeError, ValueError):
            continue
        assert named(array_api, name)(*map(cf.open, arrays)).dtype == right, (one, other)


REFUSED: list[tuple[str, Call]] = [
    *((name, call(X, axis=axis)) for name in (
        *("sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "count_nonzero", "argmax", "argmin", "flip",
          "unstack"),
        *("cumulative_sum", "diff")) for axis in (3, -4)),
    *((name, call(X, axis=(0, 0))) for name in ("sum", "max", "mean", "std", "all")),
    *((name, call(np.empty((0, 3)), axis=0)) for name in ("max", "min", "argmax", "argmin")),
    ("cumulative_sum", call(X)), ("cumulative_prod", call(X)), ("squeeze", call(X, 0)), ("squeeze", call(X, axis=5)),
    ("expand_dims", call(X, axis=5)), ("expand_dims", call(X, axis=-6)), ("permute_dims", call(X, (0, 1))),
    ("permute_dims", call(X, (0, 0, 1))), ("reshape", call(X, (5, 5))), ("reshape", call(X, (-1, -1))),
    ("broadcast_to", call(X, (9, 3))),
    ("broadcast_arrays", call(X, A)), ("concat", call([X, A])), ("concat", call([X, X], axis=3)), ("concat", call([X,
    X[:, :2]])),
    ("stack", call([X, X[0]])), ("stack", call([X, X], axis=5)), ("matmul", call(A, A)), ("matmul", call(A,
    np.asarray(2.0))),
    ("tensordot", call(A, A, axes=1)), ("vecdot", call(A, B)), ("where", call(X > 0, X, A)), ("add", call(X, A)),
    ("matrix_transpose", call(V)), ("linalg.outer", call(A, V)), ("roll", call(X, (1, 2), axis=(0, 7))), ("roll",
    call(X, (1, 2, 3), axis=(0, 1))),
    ("repeat", call(X, 2, axis=4)), ("repeat", call(X, -1)), ("moveaxis", call(X, 0, 5)), ("moveaxis", call(X, (0, 1),
    (0, 0))),
    ("fft.fft", call(A, axis=3)), ("fft.fft", call(A, n=-1)), ("fft.fft", call(A, norm="x")), ("fft.fftn", call(A,
    s=(2, 3), axes=(0,))),
    ("diff", call(X, n=-1)), ("clip", call(X, A, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "asked"), REFUSED, ids=[f"{name}-{i}" for i, (name, _) in enumerate(REFUSED)])
@pytest.mark.filterwarnings("ignore")
def test_what_the_standard_refuses_is_refused(name: str, asked: Call) -> None:
    with pytest.raises((TypeError, ValueError, IndexError)):  # the standard leaves open which
        strict(name, asked, "float64")
    with pytest.raises(ChunkflowError):
        made(name, asked, "float64", cf.open, array_api)

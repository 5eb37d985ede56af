"""Which arguments of NumPy's functions lazy arrays take: given by keyword and by position, and held to NumPy."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.numpy_examples import X, Y, Z
from support.peers import Case, difference

import chunkflow as cf
from chunkflow.api.lazy import numpy_dispatch, numpy_signature
from chunkflow.errors import ChunkflowError

Function = Callable[..., Any]

LINE = X.ravel()
MASK = Y > 1
COUNTS = np.arange(60) % 7
SQUARE = X[:, :4, :4] @ X[:, :4, :4].transpose(0, 2, 1) + 9 * np.eye(4)
EDGES = [-2.0, 0.0, 1.0]

REQUIRED: dict[Any, tuple[Any, ...]] = {
    **dict.fromkeys((np.allclose, np.isclose, np.append, np.array_equal, np.tensordot, np.linalg.vecdot), (X, Y)),
    **dict.fromkeys((np.linalg.tensordot,), (X, Y.transpose(1, 2, 0))),
    **dict.fromkeys((np.array_split, np.split, np.hsplit, np.vsplit, np.dsplit), (X[:, :, :4], 2)),
    **dict.fromkeys((np.concatenate, np.stack, np.hstack, np.vstack, np.dstack, np.column_stack), ([X, Y],)),
    **dict.fromkeys((np.angle, np.real, np.imag, np.fft.fft, np.fft.ifft, np.fft.irfft), (Z,)),
    **dict.fromkeys((np.fft.fftn, np.fft.ifftn, np.fft.irfftn), (Z,)),
    **dict.fromkeys((np.fft.fft2, np.fft.ifft2, np.fft.irfft2, np.fft.hfft), (Z,)),
    **dict.fromkeys((np.cross, np.linalg.cross), (X[:, :3, :3], Y[:, :3, :3])), np.kron: (X[0], Y[0]),
    np.block: ([X, Y],), np.delete: (X, 2), np.insert: (X, 2, 7), np.polyval: ([1.0, 2], X), np.vander: (LINE,),
    np.diagonal: (X,), np.piecewise: (X, [X > 0], [1, 2]), np.polyfit: (EDGES, X[:3, :, 0], 1), np.vdot: (X, Y),
    np.apply_along_axis: (np.sum, 1, X), np.resize: (X, (7, 8)), np.diag: (X[0],), np.array_equiv: (X, Y),
    np.packbits: (MASK,), np.unpackbits: (MASK.astype("u1"),), np.bincount: (COUNTS,), np.rollaxis: (X, 2),
    np.trim_zeros: (LINE,), np.save: ("/dev/null", X), np.linalg.multi_dot: ([X[0], Y[0].T],),
    **dict.fromkeys((np.diag_indices_from, np.tril_indices_from, np.triu_indices_from), (X[0, :4, :4],)),
    **dict.fromkeys((np.union1d, np.intersect1d, np.setdiff1d, np.setxor1d), (X, Y)), np.common_type: (X, Y),
    **dict.fromkeys((np.unique_values, np.unique_counts, np.unique_inverse), (COUNTS,)),
    **dict.fromkeys((np.linalg.det, np.linalg.inv, np.linalg.slogdet), (SQUARE,)), np.linalg.solve: (SQUARE, SQUARE),
    **dict.fromkeys((np.linalg.eigh, np.linalg.eigvalsh, np.linalg.cholesky), (SQUARE,)),
    np.linalg.matrix_power: (SQUARE, 3), np.meshgrid: (LINE, EDGES), np.apply_over_axes: (np.sum, X, [0, 2]),
    **dict.fromkeys((np.corrcoef, np.cov), (X[:, :, 0],)),
    **dict.fromkeys((np.cumulative_sum, np.cumulative_prod, np.i0), (LINE,)),
    **dict.fromkeys((np.dot, np.inner, np.linalg.matmul), (X[0], Y[0].T)),
    **dict.fromkeys((np.outer, np.linalg.outer), (X[0, 0], Y[0, :, 0])), np.lexsort: ((X, Y),),
    np.tensordot: (X, Y.transpose(1, 2, 0)), np.inner: (X[0], Y[0]), np.astype: (X, "f4"), np.broadcast_to: (X[0],
    X.shape),
    np.digitize: (X, EDGES), np.einsum: ("ij,kj->ik", X[0], Y[0]), np.expand_dims: (X, 0), np.full_like: (X, 3),
    np.interp: (X, [-1.0, 0, 1], [3.0, 4, 9]), np.isin: (X, [1.0, 2.0]), np.moveaxis: (X, 0, 1), np.pad: (X, 1),
    **dict.fromkeys((np.percentile, np.nanpercentile), (X, 30)),
    **dict.fromkeys((np.quantile, np.nanquantile), (X, 0.3)),
    np.repeat: (X, 2), np.reshape: (X, (4, 30)), np.roll: (X, 2), np.select: ([X > 0, Y > 1],
    [X, Y]),
    np.squeeze: (X[:, :1],), np.swapaxes: (X, 0, 1), np.take: (X, 0), np.tile: (X, 2), np.broadcast_arrays: (X, X[0]),
    np.where: (MASK,), np.choose: (MASK, [X, Y]), np.compress: ([True, False, True], X), np.extract: (MASK, X),
    np.searchsorted: (np.sort(LINE), X), np.take_along_axis: (X, np.argsort(X, axis=1)),
    np.linalg.lstsq: (np.vander(np.arange(1.0, len(X) + 1), 3).tolist(), X[:, :, 0]),
    np.histogram2d: (LINE, LINE[::-1]), np.histogramdd: (X[:, :, 0],),
    **dict.fromkeys((np.partition, np.argpartition), (X, 2)),
    np.unravel_index: (np.argsort(X, axis=1), (2, 2)), np.result_type: (X, "f4"),
    np.ravel_multi_index: ((MASK.astype("i4"),), (2,)),
    np.lib.stride_tricks.sliding_window_view: (LINE, 3), np.convolve: (LINE, [1.0, 2]), np.correlate: (LINE, [1.0, 2]),
}  # fmt: skip
"""Arguments without a default; of the other functions one array is."""

VALUES: dict[str, Any] = {
    "a_max": 0.5, "a_min": -0.5, "append": 0, "assume_unique": True, "atol": 0.5, "aweights": [1.0, 2, 3, 4],
    "axes": (0, 1), "axis": 1,
    "bias": True, "bins": EDGES, "casting": "unsafe", "copy": False, "correction": 1, "ddof": 1, "decimals": 1,
    "default": 7.0, "deg": True,
    "density": True, "device": "cpu", "dx": 2.0, "dtype": "f4", "edge_order": 2,
    "equal_nan": True, "fweights": [1, 2, 3, 4],
    "include_initial": True, "initial": 2.0,
    "invert": True, "k": 2, "keepdims": True, "kind": "sort", "left": -7.0, "max": 0.5, "mean": X.mean(keepdims=True),
    "method": "lower",
    "min": -0.5, "mode": "edge", "n": 3, "nan": 3.0, "neginf": 3.0, "norm": "ortho", "optimize": True, "ord": 1,
    "order": "F",
    "overwrite_input": True, "period": 3.0, "posinf": 3.0, "prepend": 0, "range": (-2.0, 2.0), "rcond": 0.1,
    "returned": True,
    "right": 7.0, "rowvar": False,
    "rtol": 0.5, "s": (4, 3), "shape": (3,), "stable": True, "subok": True, "weights": Y, "where": MASK, "x": X, "y": Y,
}  # fmt: skip
"""What is given for a parameter of this name."""

OWN: dict[tuple[Any, str], Any] = {
    **{(fn, "axis"): 0 for fn in (np.cumulative_sum, np.cumulative_prod, np.diff, np.linalg.vecdot)},
    **{(fn, "subok"): False for fn in (np.zeros_like, np.ones_like, np.full_like, np.empty_like)},
    **{(np.lib.stride_tricks.sliding_window_view, name): value for name, value in (("axis", 0), ("writeable", False))},
    **{(fn, "copy"): True for fn in (np.astype, np.reshape)},
    **{(fn, "y"): Y[:, :, 0] for fn in (np.cov, np.corrcoef)},
    (np.digitize, "right"): True, (np.linalg.norm, "axis"): 1, (np.tensordot, "axes"): ([0], [2]),
    (np.linalg.tensordot, "axes"): ([0], [2]),
    **{(fn, "axes"): (1, 2) for fn in (np.fft.fftshift, np.fft.ifftshift)}, (np.vander, "N"): 3,
    **{(np.cross, name): 1 for name in ("axisa", "axisb", "axisc")}, (np.vander, "increasing"): True,
    **{(np.ediff1d, name): [1.0, 2] for name in ("to_end", "to_begin")}, (np.meshgrid, "copy"): True,
    **{(fn, "axes"): (0, 1) for fn in (np.fft.fft2, np.fft.ifft2, np.fft.rfft2, np.fft.irfft2)},
    (np.meshgrid, "sparse"): True, (np.meshgrid, "indexing"): "ij",
    (np.rot90, "axes"): (0, 2), (np.transpose, "axes"): (1, 2, 0),
    **{(fn, "mode"): "wrap" for fn in (np.take, np.choose, np.ravel_multi_index)},
    (np.convolve, "mode"): "same", (np.correlate, "mode"): "same", (np.searchsorted, "side"): "right",
    (np.linalg.norm, "ord"): 3,
    **{(fn, "kind"): "stable" for fn in (np.sort, np.argsort)},
    **{(np.histogram2d, name): v for name, v in (("weights", LINE), ("range", [(-2.0, 2.0)] * 2))},
    (np.histogramdd, "weights"): X[:, 0, 0], (np.histogramdd, "bins"): [EDGES, 2, 2, 1],
    (np.histogramdd, "range"): [(-2.0, 2.0)] * 4,
    **{(fn, "order"): None for fn in (np.sort, np.argsort, np.partition, np.argpartition)},
    **{(fn, "kind"): "introselect" for fn in (np.partition, np.argpartition)},
    (np.nanmean, "dtype"): "f4", (np.linalg.matrix_norm, "ord"): "nuc", (np.linalg.cond, "p"): -2,
    **{(np.unwrap, name): value for name, value in (("discont", 4.0), ("period", 3.0))},
    **{(np.diagonal, name): 2 for name in ("axis1", "axis2")}, **{(np.trace, name): 2 for name in ("axis1", "axis2")},
    **{(fn, "offset"): 1 for fn in (np.diagonal, np.trace, np.linalg.diagonal, np.linalg.trace)},
    **{(fn, "bitorder"): "little" for fn in (np.packbits, np.unpackbits)}, (np.unpackbits, "count"): 3,
    (np.bincount, "weights"): COUNTS * 2.0, (np.bincount, "minlength"): 9, (np.rollaxis, "start"): 1,
    (np.polyfit, "w"): EDGES, (np.trim_zeros, "trim"): "f", (np.trim_zeros, "axis"): 0,
    **{(fn, "assume_unique"): False for fn in (np.intersect1d, np.setdiff1d, np.setxor1d)},
    (np.intersect1d, "return_indices"): True,
    **{(np.linalg.matrix_rank, name): 0.5 for name in ("tol", "rtol")}, (np.linalg.matrix_rank, "hermitian"): False,
    **{(np.linalg.pinv, name): 0.5 for name in ("rcond", "rtol")}, (np.linalg.pinv, "hermitian"): False,
    **{(np.linalg.svd, name): False for name in ("full_matrices", "compute_uv", "hermitian")},
    (np.linalg.qr, "mode"): "r", **{(fn, "UPLO"): "U" for fn in (np.linalg.eigh, np.linalg.eigvalsh)},
    (np.linalg.cholesky, "upper"): True, (np.save, "allow_pickle"): False,
    **{(np.unique, name): True for name in ("return_index", "return_inverse", "return_counts")},
    (np.unique, "sorted"): False, (np.unique, "equal_nan"): False,
}  # fmt: skip
"""The same, for one function."""

MORE: dict[Any, dict[str, Any]] = {
    np.pad: {"constant_values": 3.0, "reflect_type": "odd", "stat_length": 2, "end_values": 3},
    np.einsum: {"dtype": "c16", "order": "F", "casting": "unsafe"},
    np.clip: {"dtype": "f4", "casting": "unsafe"},
}
"""What goes by ``**kwargs``."""

BESIDE: dict[tuple[Any, str], dict[str, Any]] = {
    **{(fn, "where"): {"initial": 2.0} for fn in (np.min, np.max, np.amin, np.amax, np.nanmin, np.nanmax)},
    **{(fn, "casting"): {"dtype": "i2"} for fn in (np.concatenate, np.stack, np.hstack, np.vstack)},
    **{(fn, "weights"): {"method": "inverted_cdf"} for fn in (np.quantile, np.percentile, np.nanquantile,
      np.nanpercentile)},
    **{(np.histogram, name): {"range": (-2.0, 2.0)} for name in ("density", "weights")},
    **{(fn, "axes"): {"s": (4, 3)} for fn in (np.fft.fftn, np.fft.ifftn, np.fft.rfftn, np.fft.irfftn)},
    **{(fn, "s"): {"axes": (0, 1)} for fn in (np.fft.fftn, np.fft.ifftn, np.fft.rfftn, np.fft.irfftn)},
    **{(fn, "ddof"): {"axis": 0} for fn in (np.nanvar, np.nanstd)},
    (np.linalg.norm, "ord"): {"axis": 0}, (np.linalg.norm, "keepdims"): {"axis": 0},
    (np.where, "x"): {"y": Y}, (np.where, "y"): {"x": X},
    (np.pad, "reflect_type"): {"mode": "reflect"}, (np.pad, "stat_length"): {"mode": "mean"},
    (np.pad, "end_values"): {"mode": "linear_ramp"},
    **{(np.clip, name): {"a_min": -1, "a_max": 1} for name in ("out", "casting")}, (np.clip, "a_min"): {"a_max": 1},
    (np.clip, "dtype"): {"a_min": -1, "a_max": 1, "casting": "unsafe"}, (np.clip, "a_max"): {"a_min": -1},
}  # fmt: skip
"""Arguments without which another one has no meaning."""


REFUSED_VALUES: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("pad", "functions for the mode", lambda x: np.pad(x, 1, lambda *_: None)),
    ("unique", "an `axis` of an array of several dimensions", lambda x: np.unique(x, axis=0)),
    ("polyfit", "`full` and `cov`", lambda x: np.polyfit(np.arange(6.0), x[:, 0], 2, full=True)),
    ("histogram", "of the rules for the bins \"stone\"", lambda x: np.histogram(x, "stone")),
    ("astype, zeros_like, ones_like, full_like", "dtypes that are of no numbers", lambda x: np.astype(x, "U5")),
    ("sum, prod, mean, var, std", "for complex numbers a real `dtype`", lambda x: np.sum(x + 0j, dtype="c16") if x is X
     else np.sum(x + 0j, dtype="f8")),
]  # fmt: skip
"""Of functions that are supported, what is refused by its value."""


@dataclass
class Arguments:
    """Parameters of a function by whether an expression takes them, and what was not as NumPy has it."""

    taken: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def arguments_of(fn: Function) -> Arguments:
    """What becomes of each argument of a function that has a default, given by keyword and by position."""
    found = Arguments()
    signature = numpy_signature._signature(fn)
    if signature is None:
        return found
    first = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    found.taken += first
    for name in _optional(fn, signature):
        outcomes = {way: _outcome(fn, args, kwargs) for way, args, kwargs in _ways(fn, signature, name)}
        problems = [
            f"{name}, {way}: {outcome}" for way, outcome in outcomes.items() if outcome not in ("taken", "refused")
        ]
        if len(set(outcomes.values())) > 1:
            problems.append(f"{name}: {outcomes}")
        found.problems += problems
        (found.taken if "taken" in outcomes.values() else found.refused).append(name)
    return found


def _optional(fn: Function, signature: inspect.Signature) -> list[str]:
    own = [name for name, p in signature.parameters.items() if p.default is not p.empty]
    return [*own, *MORE.get(fn, {})]


def _ways(fn: Function, signature: inspect.Signature, name: str) -> Iterable[tuple[str, list[Any], dict[str, Any]]]:
    """The calls that give an argument: by keyword, and by position with NumPy's defaults before it."""
    args, beside = list(REQUIRED.get(fn, (X,))), dict(BESIDE.get((fn, name), {}))
    value = _value(fn, name, args, beside)
    parameter = signature.parameters.get(name)
    keyword_only = parameter is None or parameter.kind is parameter.KEYWORD_ONLY
    if parameter is None or parameter.kind is not parameter.POSITIONAL_ONLY:
        yield "by keyword", args, {**beside, name: value}
    if not keyword_only:
        places: list[Any] = []
        for place, (key, p) in enumerate(signature.parameters.items()):
            if p.kind is p.VAR_POSITIONAL:
                return
            places.append(value if key == name else args[place] if place < len(args) else beside.pop(key, p.default))
            if key == name:
                break
        if fn is np.where:
            places = [args[0], value if name == "x" else X, value if name == "y" else Y]
            beside = {}
        yield "by position", places, beside


def _value(fn: Function, name: str, args: list[Any], beside: Mapping[str, Any]) -> Any:
    if name == "out":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy's own, such as `fix`
            found = fn(*args, **beside)
        return tuple(found) if isinstance(found, list | tuple) else np.empty_like(found)
    if (fn, name) in OWN:
        return OWN[fn, name]
    return MORE.get(fn, {}).get(name, VALUES.get(name))


def _outcome(fn: Function, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Whether a call is taken, with NumPy's value, or refused at once; else what is wrong."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = fn(*args, **kwargs)
        try:
            lazy = fn(*_opened(args), **_opened(kwargs))
        except ChunkflowError:
            return "refused"
        got = cf.compute(lazy, device="cpu")
        if fn is np.empty_like:
            return "taken" if (lazy.shape, lazy.dtype) == (expected.shape, expected.dtype) else "of another shape"
        return difference(got, expected, Case("", (), {}).close) or "taken"


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: entry if key in ("out", "mean") else _opened(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_opened, value))
    return cf.open(value) if isinstance(value, np.ndarray) else value


def table(functions: Mapping[str, Arguments]) -> list[str]:
    """The rows of the docs: a function, what it takes, and what it refuses."""
    rows = ["| function | arguments taken | refused |", "|---|---|---|"]
    for name, found in functions.items():
        listed = [", ".join(f"`{key}`" for key in keys if key != "out") for keys in (found.taken, found.refused)]
        rows.append(f"| `{name}` | {listed[0]} | {listed[1]} |")
    return rows


def every_function() -> dict[str, Arguments]:
    """What becomes of the arguments of all functions, by name."""
    functions = {numpy_dispatch.name_of(fn): fn for fn in sorted(numpy_dispatch.FUNCTIONS, key=numpy_dispatch.name_of)}
    return {name: arguments_of(fn) for name, fn in functions.items()}

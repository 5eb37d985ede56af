"""Reductions and scans, held to NumPy: axes, masks, beginnings, dtypes, NaN, ties, and arrays without elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.peer_arrays import (
    ALL_NAN,
    AXES,
    BIG_ENDIAN,
    DTYPES,
    EMPTY,
    ENDS,
    NAN,
    NO_AXES,
    NOTHING,
    SCALAR,
    WHOLE,
    I,
    M,
    V,
    X,
    Z,
    of,
)
from support.peers import Case, case, hold, names

SUMS = ("sum", "prod", "nansum", "nanprod")
MEANS = ("mean", "nanmean")
SPREADS = ("var", "std", "nanvar", "nanstd")
EXTREMES = ("min", "max", "nanmin", "nanmax")
TRUTHS = ("any", "all")
OTHERS = ("ptp", "count_nonzero")
PLACES = ("argmin", "argmax", "nanargmin", "nanargmax")
MASKED = (*SUMS, *MEANS, *SPREADS, *EXTREMES, *TRUTHS)
BEGUN = (*SUMS, *EXTREMES)
ALL = (*MASKED, *OTHERS, "average")
SCANS = ("cumsum", "cumprod", "nancumsum", "nancumprod")

NO_AXIS = "an array without dimensions has no axis"
CAREFUL = ("mean", "var", "std", "average")
"""Those of NumPy's functions that say so too."""

ARRAYS = (X, I, Z, M, NAN, ENDS, BIG_ENDIAN, SCALAR, WHOLE, V)
EMPTIES = [(EMPTY, 0), (EMPTY, 1), (EMPTY, None), (NOTHING, 1), (NOTHING, 0), (NOTHING, (0, 2)), (NOTHING, None)]

REAL = "it would drop the imaginary part"

CASES: list[Case] = [
    *(case(fn, x) for fn in ALL for x in ARRAYS),
    *(case(fn, of(dtype), axis=1) for fn in ALL for dtype in DTYPES),
    *(case(fn, X, axis=axis) for fn in ALL for axis in (*AXES, *NO_AXES)),
    *(case(fn, X, axis=(0, 2), keepdims=keep) for fn in ALL for keep in (True, False, 1)),
    *(case(fn, X, keepdims=True) for fn in ALL),
    *(case(fn, X, axis=0, keepdims=keep) for fn in ALL for keep in ("x", 2.5, None)),
    *(case(fn, ALL_NAN, axis=axis) for fn in ALL for axis in (0, None)),
    *(case(fn, x, axis=axis).taken("an empty result", fn == "average" and not np.sum(x, axis).size)
      for fn in ALL for x, axis in EMPTIES),
    *(case(fn, SCALAR, axis=()) for fn in ALL),
    *(case(fn, SCALAR, axis=axis).refused(NO_AXIS, fn not in CAREFUL) for fn in ALL for axis in (0, -1)),
    # By position, as NumPy's signatures have them.
    *(case(fn, X, 0, "f4", None, True).by_place() for fn in (*SUMS, *MEANS)),
    *(case(fn, X, 0, None, None, 1, True).by_place() for fn in SPREADS),
    *(case(fn, X, 0, None, True).by_place() for fn in (*EXTREMES, *TRUTHS, "ptp", "amin", "amax")),
    *(case(fn, X, axis=0, initial=1, where=M) for fn in ("amin", "amax")),
    *(case(fn, X, 0, None, True, 3.0).by_place() for fn in EXTREMES),
    *(case(fn, X, 0, None, None, True, 3.0, M).by_place() for fn in SUMS),
]  # fmt: skip

# -- where= ------------------------------------------------------------------------------------------------------------

MASKS: list[Any] = [
    M,
    M[0],
    M[:, :1],
    M[0, 0],
    True,
    False,
    np.True_,
    np.False_,
    M.tolist(),
    np.zeros_like(M),
]
NO_MASKS: list[Any] = [I, M[:, :, :2], M[:3], M[None]]
NOT_OURS = (None, 1.5, [0, 1, 2])
"""Which NumPy turns into a bool."""


def begun(fn: str) -> dict[str, Any]:
    """What a function needs beside a mask."""
    return {"initial": 1} if fn in EXTREMES else {}


CASES += [
    *(case(fn, X, axis=axis, where=M, **begun(fn)) for fn in MASKED for axis in (*AXES, 3)),
    *(case(fn, X, axis=1, where=mask, **begun(fn)) for fn in MASKED for mask in MASKS),
    *(case(fn, X, axis=1, where=mask, **begun(fn)) for fn in MASKED for mask in NO_MASKS),
    *(case(fn, X, where=w, **begun(fn)).refused("no mask") for fn in MASKED for w in NOT_OURS),
    *(case(fn, of(dtype), axis=0, where=M, **begun(fn)) for fn in MASKED for dtype in DTYPES),
    *(case(fn, x, where=M, **begun(fn)) for fn in MASKED for x in (NAN, ENDS)),
    *(case(fn, X, axis=0, where=M, keepdims=True, **begun(fn)) for fn in MASKED),
    *(case(fn, x, axis=0, where=np.zeros(x.shape, bool), **begun(fn)) for fn in MASKED for x in (EMPTY, NOTHING)),
    *(case(fn, SCALAR, where=np.array(keep), **begun(fn)) for fn in MASKED for keep in (True, False)),
    *(case(fn, X, where=M) for fn in EXTREMES),
]

# -- initial= ----------------------------------------------------------------------------------------------------------

INITIALS = (2, -1, 2.5, True, np.float32(1.5), np.inf, -np.inf, np.nan, 1j, 300, -0.0, "x", np.float64(3))

CASES += [
    *(case(fn, x, axis=1, initial=first) for fn in BEGUN for x in (X, of("i1")) for first in INITIALS),
    *(case(fn, of(dtype), axis=0, initial=2) for fn in BEGUN for dtype in DTYPES),
    *(case(fn, x, initial=2, keepdims=True) for fn in BEGUN for x in (NAN, ALL_NAN, EMPTY, NOTHING, SCALAR)),
    *(case(fn, x, axis=axis, initial=2) for fn in BEGUN for x, axis in EMPTIES),
    *(case(fn, X, initial=None) for fn in BEGUN),
    *(case(fn, x, axis=axis, initial=None) for fn in BEGUN for x, axis in EMPTIES),
    *(case(fn, X, initial=None, where=M) for fn in BEGUN),
]

# -- dtype=, ddof= and correction= -------------------------------------------------------------------------------------

CASES += [
    *(
        case(fn, of(given), axis=0, dtype=dtype)
        .taken("results are in native byte order", dtype == ">f4")
        .refused("no integer", fn in SPREADS and np.dtype(dtype).kind in "biu" and (fn[-3:] == "var" or given == "c8"))
        .refused(REAL, given == "c8" and np.can_cast(dtype, "f8"))
        for fn in (*SUMS, *MEANS, *SPREADS)
        for given in ("?", "i2", "f2", "f4", "c8")
        for dtype in ("?", "i2", "u8", "f2", ">f4", float, "c16")
    ),
    *(case(fn, X, axis=0, dtype=dtype) for fn in (*SUMS, *MEANS, *SPREADS) for dtype in ("U5", "M8[s]", "nonsense")),
    *(case(fn, x, axis=1, ddof=less) for fn in SPREADS for x in (X, NAN) for less in (0, 1, 9, 12, -1, 0.5, "1")),
    *(case(fn, X, ddof=True).refused("no number") for fn in SPREADS),
    *(case(fn, x, axis=1, correction=less) for fn in SPREADS for x in (X, NAN) for less in (0, 1, 9, 12, 0.5)),
    *(case(fn, X, ddof=1, correction=1) for fn in SPREADS),
    *(case(fn, X, axis=0, mean=X.mean(0, keepdims=True)).refused_at_once() for fn in SPREADS),
    *(case(fn, of("f8", (1, 4)), axis=0, ddof=ddof) for fn in SPREADS for ddof in (0, 1)),
]

# -- Positions, of the first of equal ones -----------------------------------------------------------------------------

CASES += [
    *(case(fn, of(dtype), axis=axis) for fn in PLACES for dtype in DTYPES for axis in (None, 1)),
    *(case(fn, x, axis=axis) for fn in PLACES for x in (X, NAN, ENDS) for axis in (0, -1, (0,), 3, -4, 1.5, "x")),
    *(case(fn, X, axis=axis, keepdims=True) for fn in PLACES for axis in (None, 2)),
    *(case(fn, x, axis=axis) for fn in PLACES for x, axis in EMPTIES if not isinstance(axis, tuple)),
    *(case(fn, x) for fn in PLACES for x in (SCALAR, WHOLE, ALL_NAN, np.zeros((3, 4)), np.array([0.0, -0.0, 0.0]))),
    *(case(fn, SCALAR, axis=axis).refused(NO_AXIS, axis < 1) for fn in PLACES for axis in (0, -1, 1)),
    *(case(fn, X, 1, None, keepdims=True).by_place() for fn in PLACES),
]

# -- Weighted means ----------------------------------------------------------------------------------------------------

W = np.abs(X) + 0.5

CASES += [
    *(case("average", x, axis=axis, weights=W) for x in (X, I, Z) for axis in (None, 0, -1, (0, 2), 3)),
    *(case("average", X, axis=1, weights=W[0, :, 0], keepdims=keep) for keep in (True, False)),
    *(case("average", X, axis=(0, 2), weights=W[:, 0, :]), case("average", X, axis=(2, 0), weights=W[:, 0, :].T)),
    case("average", X, axis=1, weights=[1, 2, 3, 4, 5, 4, 3, 2, 1]),
    *(case("average", of(dtype), axis=1, weights=of(by)[0, :, 0] * 0 + of(by, (9,)).max())
      for dtype in ("?", "i2", "f2", "f4", "c8") for by in ("i2", "f4", "f8")),
    *(case("average", X, axis=axis, weights=w) for axis, w in ((0, W[0]), (None, W[0]), (0, V), (1, 2.0))),
    case("average", X, weights=X * 0), case("average", X, axis=0, weights=W * 0),
    *(case("average", X, axis=axis, weights=w, returned=True)
      for axis, w in ((None, W), (0, W), (1, W[0, :, 0]), ((0, 2), W[:, 0, :]), ((0, 2), None), (1, None))),
    case("average", X, 1, W, True),
]  # fmt: skip

# -- Norms -------------------------------------------------------------------------------------------------------------

ORDERS = (None, 0, 1, -1, 2, -2, 3, 0.5, np.inf, -np.inf, "fro", "nuc", "x")


def norm(x: np.ndarray, order: Any, axis: Any, **options: Any) -> Case:
    made = case("linalg.norm", x, order, axis, **options)
    matrix = x.ndim == 2 if axis is None else isinstance(axis, tuple) and len(axis) == 2
    return made.refused_at_once(order in (2, -2, "nuc") and matrix)


CASES += [
    *(norm(X, order, axis) for order in ORDERS for axis in (0, -1, (0, 1), (2, 0), 3, (0, 0), (0, 1, 2))),
    *(norm(X[0], order, None, keepdims=True) for order in ORDERS),
    *(norm(V, order, None) for order in ORDERS),
    *(norm(X, order, None) for order in (None, 2, 1)),
    *(norm(of(dtype), None, 1) for dtype in DTYPES),
    *(norm(of(dtype), 1, (0, 1)) for dtype in DTYPES),
    *(norm(EMPTY, order, 0).refused("there is no greatest", order == np.inf) for order in ORDERS),
    *(norm(EMPTY, order, 1) for order in ORDERS),
    *(norm(SCALAR, order, None) for order in (None, 2)), norm(NAN, None, 0), norm(ENDS, np.inf, 1),
]  # fmt: skip

# -- Scans -------------------------------------------------------------------------------------------------------------

CASES += [
    *(case(fn, of(dtype), axis=1) for fn in SCANS for dtype in DTYPES),
    *(case(fn, x) for fn in SCANS for x in (X, I, NAN, ENDS, SCALAR, WHOLE, V, EMPTY, NOTHING, BIG_ENDIAN)),
    *(case(fn, X, axis=axis) for fn in SCANS for axis in (0, -1, 3, -4, 1.5, "x", (0,))),
    *(case(fn, x, axis=0) for fn in SCANS for x in (EMPTY, NOTHING)),
    *(case(fn, SCALAR, axis=0).refused(NO_AXIS) for fn in SCANS),
    *(case(fn, of(given), axis=0, dtype=dtype).refused(REAL, given == "c8" and np.can_cast(dtype, "f8"))
      for fn in SCANS for given in ("?", "i2", "f4", "c8") for dtype in ("i1", "i8", "f4", "f8", "c16", "U5")),
    *(case(fn, X, 1, "f4") for fn in SCANS),
    *(case(fn, X, axis=axis) for fn in ("cumulative_sum", "cumulative_prod") for axis in (None, 0, -1, 3)),
    *(case(fn, V, dtype="f4") for fn in ("cumulative_sum", "cumulative_prod")),
    *(case(fn, x, axis=0, include_initial=first) for fn in ("cumulative_sum", "cumulative_prod")
      for x in (X, I, EMPTY) for first in (True, False)),
    *(case("diff", X, n, axis) for n in (0, 1, 2, 3, 4, 9, -1, 1.5) for axis in (0, -1)),
    case("diff", X, 0, 3).refused("there is no such axis"), case("diff", X, 1, 3),
    *(case("diff", of(dtype)) for dtype in DTYPES),
    *(case("diff", x) for x in (SCALAR, V, EMPTY, NOTHING, NAN)),
    *(case("diff", X, axis=1, **more) for more in (
        {"prepend": 0}, {"append": X[:, :2]}, {"prepend": [[[1.0, 2, 3]]] * 4, "append": 1j}, {"prepend": X[:2]})),
    *(case("diff", I, axis=0, prepend=0.5), case("diff", M, axis=0, prepend=True)),
]  # fmt: skip


# -- Methods of ufuncs ------------------------------------------------------------------------------------------------

REDUCED = ("add", "multiply", "minimum", "maximum", "logical_and", "logical_or")
RUNNING = ("add", "multiply", "minimum", "maximum")
NO_METHOD = "of these ufuncs there is no such method"

CASES += [
    *(case(f"{fn}.reduce", x) for fn in REDUCED for x in (X, I, M, NAN, V, EMPTY.T)),
    *(case(f"{fn}.reduce", X, axis=axis) for fn in REDUCED for axis in (*AXES, 3, (0, 0))),
    *(case(f"{fn}.reduce", X, 1, None, None, True) for fn in REDUCED),
    *(case(f"{fn}.reduce", X, initial=1, where=M) for fn in REDUCED),
    *(case(f"{fn}.reduce", EMPTY) for fn in REDUCED),
    *(case(f"{fn}.reduce", of("f4"), dtype="f8") for fn in ("add", "multiply")),
    *(case(f"{fn}.accumulate", x) for fn in RUNNING for x in (X, I, NAN, V, EMPTY)),
    *(case(f"{fn}.accumulate", X, axis) for fn in RUNNING for axis in (1, -1, 3)),
    *(case(f"{fn}.accumulate", I, 0, "f4") for fn in RUNNING),
    *(case(f"{fn}.reduce", X) for fn in ("subtract", "hypot")),
    case("subtract.accumulate", X),
    case("add.outer", V, V),
    case("power.outer", abs(V), [1, 2]),
    case("add.at", V, [0], 1).refused(NO_METHOD),
    case("add.reduceat", X, [0, 2]).refused(NO_METHOD),
]


@pytest.mark.parametrize("name", names(CASES))
def test_reductions(name: str) -> None:
    hold(case for case in CASES if case.name == name)

"""Order statistics, histograms and tables, held to NumPy: methods, ties, NaN, ends of bins, weights, empty arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.peer_arrays import (
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

METHODS = (
    *(
        "linear",
        "lower",
        "higher",
        "midpoint",
        "nearest",
        "inverted_cdf",
        "averaged_inverted_cdf",
        "closest_observation",
    ),
    *("interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased", "normal_unbiased", "x"),
)
QUANTILES: tuple[Any, ...] = (0, 1, 0.5, 0.1, [0.1, 0.9], [], np.float32(0.3), 1.5, -0.1, np.nan, [0.5, 2])
TAKEN = ("quantile", "percentile")
ARRAYS = (X, I, NAN, ENDS, SCALAR, WHOLE, V, BIG_ENDIAN)

ORDERED = "complex numbers have no order"

CASES: list[Case] = [
    *(case("median", x) for x in (*ARRAYS, M)), case("median", Z).refused(ORDERED), *(case(fn, x, 0.3) for fn in TAKEN
      for x in ARRAYS),
    *(case(fn, x, 0.3) for fn in TAKEN for x in (M, Z)),
    *(case("median", X, axis=axis, keepdims=keep) for axis in (*AXES, *NO_AXES) for keep in (False, True)),
    *(case("quantile", X, 0.3, axis=axis, keepdims=keep).whole() for axis in (*AXES, *NO_AXES) for keep in (False,
      True)),
    *(case("percentile", X, [10, 60], axis=axis).whole() for axis in (*AXES, *NO_AXES)),
    *(case("quantile", X, q, axis=1) for q in QUANTILES), case("quantile", X, [[0.1],
      [0.3]]).refused("one dimension of q", ways=("eager",)),
    case("quantile", X, True).refused("no number"), *(case("percentile", X, q, axis=0) for q in (0, 100, 37.5, 101, -1,
    [1, 99])),
    *(case(fn, x, 0.37, axis=1, method=method).whole() for fn in TAKEN for x in (X, I, of("f4")) for method in METHODS),
    *(case("quantile", V, 0.37, method=method) for method in METHODS),
    *(case(fn, x, [0, 0.5, 1], method=method).whole() for fn in TAKEN for x in (NAN, ENDS) for method in METHODS),
    *(case("quantile", of(dtype), q, axis=1) for dtype in DTYPES if dtype not in "?c8c16" for q in (0, 0.3, 0.5, 1)),
    *(case("median", of(dtype), axis=1) for dtype in DTYPES if dtype not in "c8c16"),
    *(case("quantile", of(dtype), 0.3, axis=1, method=method).whole() for dtype in ("i1", "u8", "f2", "f4")
      for method in METHODS[1:5]),
    *(case("median", x, axis=axis) for x, axis in ((EMPTY, 0), (EMPTY, 1), (EMPTY, None), (NOTHING, 1), (NOTHING, 0))),
    *(case("quantile", x, 0.5, axis=axis) for x, axis in ((EMPTY, 0), (EMPTY, 1), (EMPTY, None), (NOTHING, 1),
      (NOTHING, 0))),
    *(case("median", X, 0, None, over).by_place() for over in (False, True)),
    *(case("quantile", X, 0.3, 0, None, False, "lower", True).by_place(), case("percentile", X, 30, 0, keepdims=True)),
    *(case(fn, np.abs(X), 0.3, axis=1, weights=np.abs(X) + 1, method="inverted_cdf") for fn in TAKEN),
    *(case(fn, x, 0.37, axis=axis) for fn in ("nanquantile", "nanpercentile") for x in (X, NAN) for axis in (None, 0)),
    *(case("nanmedian", x, axis=axis) for x in (X, NAN) for axis in (None, 0)),
    case("quantile", V, 0.3, interpolation="lower"),
]  # fmt: skip

# -- Histograms --------------------------------------------------------------------------------------------------------

BINS: tuple[Any, ...] = (
    *(
        1,
        5,
        [-1, 0, 1],
        [0.0, 0.5, 0.5, 2],
        [-np.inf, 0, np.inf],
        [1],
        [],
        [2, 1],
        0,
        -1,
        1.5,
        "auto",
        "fd",
        "doane",
        "scott",
    ),
    *("rice", "sturges", "sqrt", "x"),
)
POSITIVE = np.abs(X) + 0.5

CASES += [
    *(case("histogram", X, bins) for bins in BINS),
    case("histogram", X), case("histogram", V, "stone").refused("a search for bins"),
    *(case("histogram", x, 4) for x in (I, M, V, SCALAR, WHOLE, EMPTY, NOTHING,
      BIG_ENDIAN, np.ones(5), of("u1"), of("f2"), of("f4"))),
    case("histogram", Z, 4).refused(ORDERED), case("histogram", Z, [0, 1]).refused(ORDERED),
    *(case("histogram", x, 4, (-1, 1)) for x in (X, NAN, ENDS, I, EMPTY, M, of("u1"))),
    *(case("histogram", X, 4, ends) for ends in ((0, 0), (1, -1), (0, np.nan), (0, np.inf), (0,), "x", (-0.5, 1.5))),
    *(case("histogram", I, bins) for bins in ([-2, 0, 2], [-1.5, 0.5])),
    *(case("histogram", X, bins, density=density) for bins in ([-1, 0, 2], [1, 2, 4]) for density in (True, False,
      None)),
    *(case("histogram", x, 3, (-1, 1), True) for x in (X, I)),
    *(case("histogram", X, bins, weights=w) for bins in ([0, 1, 2], [-1, 0, 1]) for w in (POSITIVE, I, Z, of("f4"),
      X[0], V, 2.0)),
    *(case("histogram", X, 4, (-1, 1), weights=w) for w in (POSITIVE, I, Z)),
    case("histogram", X, 4, (-1, 1), weights=M).refused("bools have no sum"),
    *(case("histogram", X, 4, (-1, 1), weights=POSITIVE, density=True), case("histogram", X, "auto", weights=POSITIVE)),
]  # fmt: skip

# -- Tables ------------------------------------------------------------------------------------------------------------

CASES += [
    *(case("digitize", x, bins, right) for x in (X, I, NAN, ENDS, SCALAR, EMPTY, M, of("f4"), of("u1"))
      for bins in ([-1, 0, 1], [1, 0, -1], [0.5])
      for right in (False, True)),
    *(case("digitize", X, bins) for bins in ([], [0, 2, 1], [[0, 1]], [0, 0, 1], 1.0, "x", [np.nan, 1], [0, 1j])),
      case("digitize", Z, [0, 1]),
    *(case("interp", x, [-1.0, 0, 1], [3, 4, 9]) for x in (X, I, NAN, ENDS, SCALAR, EMPTY, M, of("f4"))),
    *(case("interp", X, [-1.0, 0, 1], [3, 4, 9], **given) for given in (
        {"left": -5}, {"right": 7}, {"left": 1, "right": 2}, {"period": 3}, {"period": 0}, {"left": 1j},
        {"period": "x"})),
    *(case("interp", X, [-1.0, 0, 1], values) for values in ([1j, 2, 3], [1, 2], [1, 2, np.nan], [[1, 2, 3]], ["x",
      "y", "z"])),
    *(case("interp", X, *table) for table in (([], []), ([1], [2]), ([0, 1], [1, 2], 3, 4), ([1, 0], [1, 2]))),
      case("interp", Z, [0, 1], [0, 1]),
    *(case("isin", x, [0, 1, 2.5]) for x in (X, I, M, Z, NAN, ENDS, SCALAR, EMPTY)),
    *(case("isin", I, table) for table in ([], 3, [1], [[1, 2], [3, 4]], [1.5], [np.nan], [True], ["x"])),
    *(case("isin", I, [1, 3], **given) for given in (
        {"invert": True}, {"assume_unique": True}, {"kind": "sort"}, {"kind": "table"}, {"kind": "x"},
        {"assume_unique": False, "invert": False})),
    *(case("isin", I, [1, 3], True, True), case("isin", X, [1, 3], kind="table")),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_statistics(name: str) -> None:
    hold(case for case in CASES if case.name == name)

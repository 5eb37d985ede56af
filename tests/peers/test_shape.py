"""Functions that move, join and cut elements, held to NumPy: axes, empty and 0-d arrays, promotion of joined dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.peer_arrays import (
    BIG_ENDIAN,
    DTYPES,
    EMPTY,
    NAN,
    NO_AXES,
    NOTHING,
    SCALAR,
    A,
    I,
    M,
    V,
    X,
    Z,
    of,
)
from support.peers import Case, case, hold, names

SOME = (X, A, V, SCALAR, EMPTY, NOTHING, M, BIG_ENDIAN)

# -- The same elements in another shape --------------------------------------------------------------------------------

SHAPES = (-1, 108, (4, 27), (9, -1), (2, 2, 9, 3), (1, -1, 1, 3), (-1, -1), (5, -1), (0, -1), 107, (), (108, 1.5), "x")

CASES: list[Case] = [
    *(case("reshape", X, shape) for shape in SHAPES),
    *(case("reshape", x, -1) for x in SOME),
    *(case("reshape", x, (0, 3)) for x in (EMPTY, NOTHING, X)), case("reshape", EMPTY, (0, -1)),
    *(case("reshape", SCALAR, shape) for shape in ((), 1, (1, 1), -1, (2,))),
    *(case("reshape", X, (27, 4), order) for order in ("C", "F", "A", "Q")),
    *(case("reshape", X, (27, 4), copy=copy) for copy in (None, True, False)),
    *(case("ravel", x) for x in SOME), case("ravel", X, "C"), case("ravel", X, order="F"),
    *(case("squeeze", x) for x in (X[:1], X[:1, :1, :1], X, SCALAR, EMPTY, X[:0, :1])),
    *(case("squeeze", X[:1, :, :1], axis) for axis in (None, 0, -1, (0, 2), (), 1, 3, -4, (0, 0), (0, -3), "x", 1.5)),
    *(case("expand_dims", X, axis) for axis in (0, -1, 3, (0, 1), (0, -1), (-1, 0), 4, -5, (0, 0), (), None, "x", 1.5)),
    *(case("expand_dims", x, 0) for x in SOME),
    *(case("broadcast_to", X[0], shape)
      for shape in ((4, 9, 3), (9, 3), [2, 9, 3], (2, 4, 9, 3), (9, 4), (3,), 3, (-1, 9, 3))),
    *(case("broadcast_to", SCALAR, shape) for shape in ((), 3, (2, 3), (0,), (3, 0))),
    *(case("broadcast_to", x, shape) for x, shape in ((X[:, :1], (4, 9, 3)), (EMPTY, (2, 0, 4)), (X[:1], (0, 9, 3)))),
    *(case("broadcast_arrays", *arrays)
      for arrays in ((X, X[0]), (X[:, :1], X[:1]), (X, SCALAR), (X,), (X, A), (EMPTY, V[:4]))),
    *(case(fn, x) for fn in ("atleast_1d", "atleast_2d", "atleast_3d") for x in SOME),
    *(case(fn, X, V, SCALAR) for fn in ("atleast_1d", "atleast_2d", "atleast_3d")),
    *(case("copy", x) for x in SOME), *(case("copy", X, order=order) for order in "CFAKX"),
    *(case("copy", X, order).by_place() for order in "CFK"),
]  # fmt: skip

# -- Axes in another order ---------------------------------------------------------------------------------------------

ORDERS = (
    None,
    (0, 1, 2),
    (2, 0, 1),
    (-1, 0, 1),
    [1, 2, 0],
    (0, 1),
    (0, 0, 1),
    (0, 1, 3),
    (0, 1, -4),
    0,
    "x",
    (0, 1, 1.5),
)
PAIRS = ((0, 2), (0, -1), (-3, 1), (1, 1), (0, 3), (-4, 0), ("x", 0), (0, 1.5))
MOVES = (
    *((0, 2), (0, -1), (-1, 0), ([0, 1], [1, 2]), ([0, 1], [-1, 0]), ((), ()), (0, 3), (-4, 0), ([0, 0], [1, 2])),
    *(([0, 1], [2]), ([0, 1], [2, 2]), ("x", 0), (1.5, 0)),
)

CASES += [
    *(case("transpose", X, axes) for axes in ORDERS), *(case("transpose", x) for x in SOME),
    *(case("moveaxis", X, *move) for move in MOVES), *(case("swapaxes", X, *pair) for pair in PAIRS),
    *(case("swapaxes", SCALAR, 0, 0), case("moveaxis", SCALAR, 0, 0), case("swapaxes", EMPTY, 0, 1)),
    *(case(fn, x) for fn in ("matrix_transpose", "linalg.matrix_transpose") for x in SOME),
]  # fmt: skip

# -- Elements in other places ------------------------------------------------------------------------------------------

SHIFTS = (
    *((0, None), (1, None), (-2, None), (1000, None), (1, 0), (-1, -1), (4, 0), (9, 1), ((1, 2), (0, 1)), ((1, 2), 0)),
    *((1, (0, 2)), ((1, 2), (0, 0)), ((1, 2, 3), (0, 1)), (1, 3), (1, -4), (1, "x")),
)

CASES += [
    *(case("flip", X, axis) for axis in (None, 0, -1, (0, 2), (), *NO_AXES)), *(case("flip", x) for x in SOME),
    *(case(fn, x) for fn in ("fliplr", "flipud", "rot90") for x in SOME),
    *(case("rot90", X, k) for k in (0, 1, 2, 3, 4, -1, -6)),
    case("rot90", X, 1.5).refused("NumPy's versions differ in what they make of it"),
    *(case("rot90", X, 1, axes) for axes in ((0, 2), (2, 0), (-1, 0), (0, 0), (0, 3), (0,), (0, 1, 2), (0, -3))),
    *(case("roll", X, *shift) for shift in SHIFTS), *(case("roll", x, 1) for x in SOME),
    case("roll", X, (1, 2)), case("roll", X, 1.5, 0).refused("no int"),
    *(case("roll", x, 2, 0) for x in (EMPTY, NOTHING, V)),
]  # fmt: skip

# -- Elements again ----------------------------------------------------------------------------------------------------

NUMBERS = "one number of repeats for all elements"

CASES += [
    *(case("repeat", X, n, axis) for n in (0, 1, 2, -1) for axis in (0, -1)),
    *(case("repeat", X, n) for n in (0, 1, 2, -1)), *(case("repeat", x, 2) for x in SOME),
    *(case("repeat", X, 2, axis) for axis in (3, -4, 1.5, "x")),
    *(case("repeat", X, n, 0) for n in (2, np.int8(2))),
    *(case("repeat", X, n, 0).refused("no int") for n in (1.5, True)),
    *(case("repeat", X, [1, 2, 0, 1], 0), case("repeat", X, [2], 0)),
    *(case("repeat", x, 2, 0) for x in (EMPTY, NOTHING)), case("repeat", SCALAR, 2, 0).refused("there is no axis"),
    *(case("tile", X, reps) for reps in (1, 2, (2, 1), (1, 2, 3), (2, 1, 1, 2), [2], (), -1, 1.5, 0, (2, 0, 1))),
    *(case("tile", x, (2, 3)) for x in SOME),
]  # fmt: skip

# -- Joined ------------------------------------------------------------------------------------------------------------

LONG = np.array([2**53 + 1, 2**62 + 1, -(2**53) - 1])
"""Integers that no float64 is equal to."""

JOINS = ("concatenate", "stack", "hstack", "vstack", "dstack", "column_stack")
TWO = [
    *([X, X + 1], [X, I], [I, M], [X, Z], [X, of("f4")], [I, of("u8")], [M, of("i1")], [of("f2"), of("i2")]),
    *([BIG_ENDIAN, X], [A, A], [V, V], [SCALAR, SCALAR], [EMPTY, EMPTY], [NOTHING, NOTHING], [X], [X, X, X]),
    *([X, X[:, :2]], [X, X[:2]], [X, X[:, :, :1]], [X, A], [V, V[:2]], [A, V[:6]], [V, SCALAR], [EMPTY, A[:, :4]], []),
]  # fmt: skip

CASES += [
    *(case(fn, arrays) for fn in JOINS for arrays in TWO),
    *(case("concatenate", [of(one), of(other)]).whole() for one in DTYPES for other in DTYPES),
    *(case(fn, [X, X * 2], axis) for fn in ("concatenate", "stack") for axis in (0, 1, -1, 2, 3, 4, -4, -5, 1.5, "x")),
    *(case("concatenate", arrays, None) for arrays in ([X, A], [V, SCALAR], [EMPTY, V], [M, I])),
    *(case(fn, [X, I], dtype=dtype)
      for fn in JOINS[:4] for dtype in ("f4", "f8", "c8", "i4", "?", "nonsense")),
    *(case(fn, [X, I], dtype="U3", casting="unsafe").refused("elements are numbers") for fn in JOINS[:4]),
    *(case(fn, [X, I], dtype="i2", casting=casting)
      for fn in JOINS[:4] for casting in ("unsafe", "same_kind", "no", "x")),
    *(case(fn, [X, I], casting=casting) for fn in JOINS[:4] for casting in ("no", "safe", "unsafe", "x")),
    *(case(fn, [LONG, of("f4", (3,))], dtype=dtype, casting="unsafe") for fn in JOINS[:2] for dtype in ("i8",
      "u8")),
    *(case(fn, [of("i2"), I], dtype="f4", casting="safe") for fn in JOINS[:2]),
    *(case("concatenate", [V, [1.0, 2.0]]), case("concatenate", [I, np.ones((1, 9, 3), "i1")])),
    *(case("append", X, values, axis) for values, axis in (
        (X, 0), (X[:2], 0), (X, None), ([1, 2], None), (I, -1), (X, 3), (A, 0), (V, None), (2.5, None), (Z, 1))),
    *(case("append", x, x) for x in SOME),
]  # fmt: skip

# -- Taken apart -------------------------------------------------------------------------------------------------------

PARTS: tuple[Any, ...] = (1, 2, 3, 4, -1, [1], [1, 3], [], [3, 1], [0, 9, 99], [-1], [1, -1], np.int8(2), True)

CASES += [
    *(case(fn, X, parts) for fn in ("split", "array_split", "hsplit", "vsplit", "dsplit") for parts in PARTS),
    case("array_split", X, 0),
    *(case(fn, X, 3, axis) for fn in ("split", "array_split") for axis in (1, -1, 2, 3, -4, 1.5, "x")),
    *(case(fn, x, 2) for fn in ("split", "array_split", "hsplit", "vsplit", "dsplit") for x in SOME),
    *(case("unstack", X, axis=axis) for axis in (0, 1, -1, 3, -4, 1.5, "x")), *(case("unstack", x) for x in SOME),
]  # fmt: skip

# -- Padded ------------------------------------------------------------------------------------------------------------

NOT_A_NUMBER = float("nan")
BEYOND = (-1, 300, NOT_A_NUMBER)
MODES = (
    "constant",
    "edge",
    "wrap",
    "reflect",
    "symmetric",
    "empty",
    "linear_ramp",
    "maximum",
    "mean",
    "median",
    "minimum",
    "x",
)
WIDTHS = (0, 1, (1, 2), ((1, 2), (0, 3), (2, 0)), ((1, 2),), [[1]], (1,), -1, ((1, 2), (3, 4)), 1.5, "x", None)

CASES += [
    *(case("pad", X, 2, mode).refused_at_once(mode in MODES[5:]) for mode in MODES if mode not in ("empty", "x")),
    case("pad", X, 2, "x"),
    *(case("pad", X, width) for width in WIDTHS), *(case("pad", X, width, "edge") for width in WIDTHS),
    *(case("pad", X, width).refused_at_once() for width in ({0: 1}, {-1: (1, 2)})),
    *(case("pad", of("f8", (1, 2, 3)), 4, mode) for mode in MODES[:5]),
    *(case("pad", x, 1, mode) for x in (EMPTY, NOTHING, SCALAR) for mode in MODES[:5]),
    *(case("pad", x, 1, "constant", constant_values=fill)
      .refused("the dtype does not hold it", fill == 1j or (x.dtype == "u1" and fill in BEYOND))
      for x in (X, I, of("u1"), M) for fill in (3, -1, 2.5, True, NOT_A_NUMBER, 1j, 300)),
    *(case("pad", X, 1, constant_values=fill)
      for fill in ((1, 2), ((1, 2), (3, 4), (5, 6)), [[1], [2], [3]], ((1, 2), (3, 4)))),
    *(case("pad", X, 1, mode, **more) for mode, more in (
        ("edge", {"constant_values": 9}), ("reflect", {"constant_values": 9}))),
    *(case("pad", X, 1, mode, reflect_type=kind).refused_at_once()
      for mode in ("reflect", "symmetric") for kind in ("odd", "even")),
    *(case("pad", of(dtype), 1, "wrap") for dtype in DTYPES),
]  # fmt: skip

# -- In another dtype --------------------------------------------------------------------------------------------------

CASES += [
    *(case("astype", of(given), dtype).whole() for given in DTYPES for dtype in DTYPES),
    *(case("astype", NAN, dtype) for dtype in ("f4", "c8")),
    *(case("astype", X, dtype).refused("elements are numbers") for dtype in ("U5", "O")),
    case("astype", X, "M8[s]"),
    *(case("astype", X, dtype) for dtype in (">f4", float, int, bool, np.float32, "nonsense")),
    *(case("astype", X, "f4", copy=copy) for copy in (True, False)), *(case("astype", x, "f4") for x in SOME),
    case("astype", X, "f4", device="cpu"), case("astype", X, "f4", device="gpu"),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_shapes(name: str) -> None:
    hold(case for case in CASES if case.name == name)

"""Ufuncs and functions of single elements, held to NumPy: promotion of pairs of dtypes, NaN, scalars, stretching."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing.overrides import get_overridable_numpy_ufuncs
from support.peer_arrays import (
    BIG_ENDIAN,
    DTYPES,
    EMPTY,
    ENDS,
    NAN,
    NOTHING,
    SCALAR,
    WHOLE,
    A,
    I,
    M,
    V,
    X,
    Z,
    of,
)
from support.peers import Case, case, hold, names

UFUNCS = [
    u for u in get_overridable_numpy_ufuncs()
    if u.signature is None and not u.__name__.startswith("_") and any(set("bdD").intersection(loop) for loop in u.types)
]  # fmt: skip
ONE = [u.__name__ for u in UFUNCS if u.nin == 1]
TWO = [u.__name__ for u in UFUNCS if u.nin == 2]
SMALL = {dtype: of(dtype, (3, 4)) for dtype in DTYPES}
RARE = np.array([[0.0, -0.0, np.nan], [np.inf, -np.inf, 1e300], [5e-324, -1.5, 2.5]])
PAIRS = [(one, other) for one in DTYPES for other in DTYPES]
SCALARS: tuple[Any, ...] = (2, -1, 2.5, True, 1j, 300, np.float32(1.5), np.int8(3), np.float64(2), 2**40, 2**70, np.nan)

CASES: list[Case] = [
    *(case(fn, SMALL[dtype]) for fn in ONE for dtype in DTYPES),
    *(case(fn, RARE) for fn in ONE),
    *(case(fn, SMALL[dtype], SMALL[dtype].T.copy().T[::-1]) for fn in TWO for dtype in DTYPES),
    *(case(fn, RARE, RARE.T.copy()) for fn in TWO),
    *(case(fn, SMALL[one], SMALL[other]).whole() for fn in ("add", "true_divide", "floor_divide", "less", "maximum",
      "bitwise_xor")
      for one, other in PAIRS),
    *(case(fn, SMALL[dtype], scalar) for fn in ("add", "power", "less") for dtype in DTYPES for scalar in SCALARS),
    *(case("subtract", scalar, SMALL[dtype]) for dtype in DTYPES for scalar in SCALARS),
    *(case("add", *arrays) for arrays in (
        (X, X[0]), (X[:, :1], X[:1]), (X, SCALAR), (EMPTY, EMPTY), (EMPTY, SCALAR), (NOTHING, NOTHING[:1]), (X, A), (V,
        V[:2]),
        (WHOLE, SCALAR), (BIG_ENDIAN, X), (X, [1.0, 2.0, 3.0]), (X[:1], EMPTY))),
    *(case(fn, x) for fn in ("sqrt", "negative", "isnan", "modf") for x in (X, EMPTY, NOTHING, SCALAR, BIG_ENDIAN, V)),
    *(case("add", X, I, dtype=dtype) for dtype in ("f4", "f8", "c16", "i8", "U3", "nonsense")),
    *(case("add", X, I, dtype="f4", casting=casting) for casting in ("no", "same_kind", "unsafe", "x")),
    *(case("sqrt", X, casting="no"), case("add", X, I, order="F"), case("add", X, I, subok=False)),
    *(case("add", X, I, signature=signature) for signature in ("dd->d", ("f8", "f8", "f8"), "nonsense")),
    case("add", X, I, where=M).refused("elements would be undefined"),
    *(case("add", X), case("sqrt", X, X, X), case("sqrt", X, nonsense=1)),
    case("add", X, "x"), case("add", X, None),
]  # fmt: skip

# -- Functions of NumPy's that work on elements ------------------------------------------------------------------------

PLAIN = ("angle", "fix", "i0", "imag", "iscomplex", "isneginf", "isposinf", "isreal", "real", "sinc", "nan_to_num")

CASES += [
    *(case(fn, SMALL[dtype]) for fn in (*PLAIN, "around", "round") for dtype in DTYPES),
    *(case(fn, x) for fn in PLAIN for x in (RARE, NAN, EMPTY, SCALAR, BIG_ENDIAN)),
    *(case("angle", Z, deg) for deg in (True, False)), case("angle", Z, deg=True),
    *(case(fn, x, n) for fn in ("around", "round") for x in (X / 3, I * 37, Z / 3, of("f4") / 3) for n in (0, 1, 3, -1,
      -2)),
    *(case("round", X, n) for n in (1.5, "x", None)), case("round", X, decimals=1),
    *(case(fn, x) for fn in ("iscomplexobj", "isrealobj") for x in (X, Z, M, EMPTY)),
    # clip
    *(case("clip", X, low, high) for low, high in (
        (-1, 1), (None, 1), (-1, None), (None, None), (1, -1), (X[0], 1), (X[:, :1], X[:1]), (-1, np.nan), (0.5, 2.5),
        (A, 1))),
    *(case("clip", X, **given) for given in ({"a_min": 0}, {"a_max": 0}, {"min": 0}, {"max": 0}, {"min": 0, "max": 1},
      {},
                                             {"a_min": 0, "a_max": 1}, {"a_min": 0, "max": 1}, {"min": X, "max": I})),
    *(case("clip", SMALL[dtype], 0, 2) for dtype in DTYPES), *(case("clip", SMALL["i1"], low, high) for low, high in (
        (-300, 300), (0.5, 1.5), (np.int16(-1), 1), (-1, 2**40))),
    *(case("clip", x, -1, 1) for x in (NAN, ENDS, EMPTY, SCALAR)),
    # where and select
    *(case("where", M, one, other) for one, other in ((X, I), (X, 0), (0, 1), (I, 2.5), (X[0], X[:, :1]), (X, NAN), (1,
      X), (X, A))),
    *(case("where", x, X, 0) for x in (X, I, Z, NAN, M[0], SCALAR)), *(case("where", EMPTY, x, 1) for x in (EMPTY,
      SCALAR)),
    *(case("where", M[0, :1], SMALL[one][:1, :3], SMALL[other][:1, :3]).whole() for one, other in PAIRS),
    *(case("where", M, SMALL[dtype][:1, :3], s) for dtype in DTYPES for s in (1, 2.5, True, np.int16(3))),
    case("where", M).refused("it takes both", ways=("eager",)),
    *(case("select", [M, X > 0], [X, I], default) for default in (0, 2.5, -1, 1j, np.nan, True)),
    *(case("select", [M, X > 0], [X, 1]), case("select", [M], [X]), case("select", [M[0], X > 0], [X, I])),
    *(case("select", [], []), case("select", [M], [X, I]), case("select", [X], [I]), case("select", [M], [X],
      default=A)),
    *(case("select", [SMALL["?"]], [SMALL[one]], SMALL[other]) for one, other in PAIRS[::5]),
    # isclose, allclose, array_equal
    *(case(fn, X, other) for fn in ("isclose", "allclose", "array_equal") for other in (X, X + 1e-9, X + 1, X[0], I, A,
      1.0, X.astype("f4"))),
    *(case(fn, RARE, RARE.copy(), **given) for fn in ("isclose", "allclose") for given in (
        {}, {"equal_nan": True}, {"rtol": 0.1}, {"atol": 0.1}, {"rtol": 0, "atol": 0}, {"atol": np.inf})),
    *(case(fn, X, X + 0.1, 0.5, 0.5, True) for fn in ("isclose", "allclose")),
    *(case("isclose", SMALL[one], SMALL[other]) for one, other in PAIRS[::7]),
    *(case("array_equal", NAN, NAN.copy(), equal) for equal in (True, False)),
    *(case("array_equal", x, x.copy(), equal_nan=True) for x in (I, M, Z, EMPTY, SCALAR)),
    # nan_to_num
    *(case("nan_to_num", ENDS, **given) for given in (
        {"nan": 3.0}, {"posinf": 1}, {"neginf": -1}, {"nan": 1, "posinf": 2, "neginf": 3}, {"copy": True}, {"nan": X})),
    case("nan_to_num", ENDS, True, 1.0, 2.0, 3.0),
    *(case("nan_to_num", of(dtype), nan=2) for dtype in DTYPES),
    *(case("nan_to_num", ENDS, nan=A), case("nan_to_num", ENDS.astype("f2"), posinf=1e9)),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_elements(name: str) -> None:
    hold(case for case in CASES if case.name == name)

"""Products and covariances, held to NumPy: shapes, promotion, axes, and sums of no elements."""

from __future__ import annotations

import numpy as np
import pytest
from support.peer_arrays import BIG_ENDIAN, DTYPES, EMPTY, NAN, NOTHING, SCALAR, A, B, I, M, V, X, Z, of
from support.peers import Case, case, hold, names

W = of("f8", (40,))
Y = of("f8", (4, 3, 5))
FLAT = "vectors only: tensordot(axes=0) keeps all axes"
SQUARE = of("f8", (6, 6))
PRODUCTS = (
    "matmul",
    "dot",
    "inner",
    "vecdot",
    "outer",
    "tensordot",
    "linalg.matmul",
    "linalg.vecdot",
    "linalg.outer",
    "linalg.tensordot",
)
ARGUMENTS = [
    *((A, B), (A, A), (A, V[:8]), (V[:6], A), (V, W), (X, Y), (X, B[:3]), (A[:1], B), (SCALAR, A), (A, SCALAR),
      (SCALAR, SCALAR)),
    *((EMPTY, EMPTY.T), (EMPTY.T, EMPTY), (A[:0], B), (A[:, :0], B[:0]), (NOTHING, NOTHING), (X, X), (V, V[:3]), (A,
      2.0), (2, V)),
    *((X[:, None], Y), (Z[0], Z[0]), (Z[0], Z[0].T), (BIG_ENDIAN[0], A[:3]), (NAN[0], NAN[0].T)),
]  # fmt: skip

CASES: list[Case] = [
    *(case(fn, *arguments).refused(FLAT, fn == "outer" and any(np.ndim(a) != 1 for a in arguments), ways=("eager",))
      for fn in PRODUCTS for arguments in ARGUMENTS),
    *(case(fn, A, B.tolist()) for fn in ("matmul", "dot", "linalg.matmul")),
    *(case(fn, of(one, (3, 4)), of(other, (4, 3))).whole() for fn in ("matmul", "dot") for one in DTYPES
      for other in DTYPES),
    *(case(fn, of(dtype, (5, 4)), of(dtype, (5, 4)))
      for fn in ("vecdot", "inner", "linalg.vecdot") for dtype in DTYPES),
    *(case("outer", of(dtype, (5,)), of(dtype, (4,))) for dtype in DTYPES),
    *(case(fn, X, X, axis=axis) for fn in ("vecdot", "linalg.vecdot") for axis in (-1, 0, 1, 2, 3, -4)),
    *(case(fn, A, A.T, **{key: value}).refused("results are of NumPy's dtype") for fn in ("matmul",)
      for key, value in (("dtype", "f8"), ("casting", "unsafe"), ("axes", [(0, 1), (0, 1), (0, 1)]))),
    *(case(fn, X, Y, axes) for fn in ("tensordot",) for axes in (
        0, 1, 2, 3, ([0], [0]), (0, 0), ([0, 2], [0, 1]), ([2, 0], [1, 0]), (-1, 1), ([0], [1]), ([0, 0], [0, 0]),
        ([0], [0, 1]),
        (3, 0))),
    case("tensordot", X, Y, -1).refused("there is no number of axes"),
    *(case("tensordot", X, Y, axes=([0], [0])), case("linalg.tensordot", X, Y, axes=([0], [0])), case("tensordot", I,
      M[0], 2), case("tensordot", M, M, 3)),
]  # fmt: skip

# -- Sums over indices -------------------------------------------------------------------------------------------------

CASES += [
    *(case("einsum", text, *arrays) for text, arrays in (
        ("ij,jk->ik", (A, B)), ("ij,jk", (A, B)), ("ij->ji", (A,)), ("ij", (A,)), ("ij->", (A,)),
        ("i,j->ij", (V, W)), ("i,i", (V, W)), ("...j,jk->...k", (X, B[:3])), ("...ij->...ji", (X,)), ("abc,abd->cd",
        (X, X)),
        ("ij,jk,kl->il", (A, B, B.T)), ("ij,ij,ij->i", (A, A, A)), (" i j , j k -> i k ", (A, B)), ("ij,jk->ki", (A,
        B)),
        ("ij,kj->ik", (A, B)), ("ij,jk->il", (A, B)), ("ij", (X,)), ("i?", (A,)), ("ij,jk", (A,)), (",", (SCALAR, A)),
        ("->", (SCALAR,)),
        ("ij->jij", (A,)), ("ij,jk->ik", (I[0], I[1].T)), ("ij,jk->ik", (M[0], M[1].T)), ("ij->j", (EMPTY,)), ("ij->i",
        (EMPTY,)))),
    *(case("einsum", text, SQUARE) for text in ("ii->i", "ii")),
    case("einsum", A, [0, 1], B, [1, 2], [0, 2]),
    *(case("einsum", "ij->j", A, optimize=how) for how in (True, False, "greedy")),
    *(case("einsum", "ij->j", A, **{key: value})
      for key, value in (("dtype", "f8"), ("casting", "no"), ("order", "F"))),
]  # fmt: skip

# -- Covariances -------------------------------------------------------------------------------------------------------

COUNTS = np.arange(1, 9)
WEIGHTS = COUNTS / 4.0

CASES += [
    *(case(fn, x) for fn in ("cov", "corrcoef") for x in (A, V, A.T, Z[0], NAN[0], BIG_ENDIAN[0], A[:1], A + 1e8)),
    *(case(fn, of(dtype, (3, 7))) for fn in ("cov", "corrcoef") for dtype in DTYPES),
    *(case(fn, A, **given) for fn in ("cov", "corrcoef") for given in (
        {"rowvar": False}, {"rowvar": True}, {"y": A * 2 + 1}, {"y": V[:8]}, {"y": A[:, :3]}, {"rowvar": False,
        "y": A})),
    *(case(fn, A, dtype=dtype).refused("sums run in double precision") for fn in ("cov", "corrcoef")
      for dtype in ("f4", "f8")),
    *(case(fn, SCALAR).refused("one number does not vary") for fn in ("cov", "corrcoef")),
    *(case("cov", A, None, True, bias) for bias in (False, True)),
    *(case("cov", A, **given) for given in (
        {"bias": True}, {"ddof": 0}, {"ddof": 1}, {"ddof": 2}, {"ddof": 8}, {"ddof": 9}, {"bias": True, "ddof": 1},
        {"fweights": COUNTS.tolist()}, {"aweights": WEIGHTS.tolist()}, {"fweights": COUNTS.tolist(),
        "aweights": WEIGHTS.tolist()},
        {"fweights": [1, 2]}, {"fweights": WEIGHTS.tolist()}, {"fweights": (-COUNTS).tolist()},
        {"aweights": (-WEIGHTS).tolist()},
        {"aweights": A.tolist()})),
    *(case(fn, x) for fn in ("cov", "corrcoef") for x in (X, EMPTY, A[:, :1], A[:, :0])),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_products(name: str) -> None:
    hold(case for case in CASES if case.name == name)

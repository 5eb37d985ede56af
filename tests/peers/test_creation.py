"""Arrays like others, held to NumPy: dtypes, byte order, fill values."""

from __future__ import annotations

import numpy as np
import pytest
from support.peer_arrays import BIG_ENDIAN, DTYPES, EMPTY, NOTHING, SCALAR, A, I, M, V, X, Z, of
from support.peers import Case, case, hold, names

import chunkflow as cf

LIKE = ("zeros_like", "ones_like")
SHAPE = "it has the shape of the array"

CASES: list[Case] = [
    *(case(fn, of(dtype)) for fn in LIKE for dtype in DTYPES),
    *(case(fn, x) for fn in LIKE for x in (EMPTY, NOTHING, SCALAR, BIG_ENDIAN, V)),
    *(case(fn, X, dtype) for fn in LIKE for dtype in (*DTYPES, float, np.int8, ">f4", "nonsense", None)),
    *(case(fn, X, dtype=dtype).refused("elements are numbers") for fn in LIKE for dtype in ("U3", "M8[s]", "O")),
    *(case(fn, X, shape=shape) for fn in LIKE for shape in ((3,), 3, ())),
    *(case(fn, X, order=order) for fn in LIKE for order in "KACF"), *(case(fn, X, order="x") for fn in LIKE),
    *(case(fn, X, subok=False) for fn in LIKE), *(case(fn, X, device=device) for fn in LIKE for device in ("cpu",
      "gpu", None)),
    *(case("full_like", X, fill) for fill in (0, 2.5, -1, True, 1j, np.nan, np.inf, X[0], X[:, :1], A, [1, 2, 3],
      np.array(3.0), "x", None)),
    *(case("full_like", of(dtype), 3) for dtype in DTYPES),
    *(case("full_like", of("i1"), fill) for fill in (300, -129, 2.5, np.float64(300), np.nan)),
    *(case("full_like", of("u1"), fill) for fill in (-1, 256)), *(case("full_like", x, 7) for x in (EMPTY, NOTHING,
      SCALAR, BIG_ENDIAN, M, Z)),
    *(case("full_like", I, 2.5, dtype) for dtype in ("f4", "f8", "c8", ">f8", "nonsense", None)),
    *(case("full_like", X, 1, shape=(3,)), case("full_like", X, 1, order="F"), case("full_like", X, 1,
      subok=False)),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_creation(name: str) -> None:
    hold(case for case in CASES if case.name == name)


def test_empty_arrays_have_numpys_shape_and_dtype() -> None:
    for x in (X, I, EMPTY, SCALAR):
        for options in ({}, {"dtype": "f4"}, {"dtype": "c16"}, {"order": "C"}, {"subok": False}):
            lazy, right = np.empty_like(cf.open(x), **options), np.empty_like(x, **options)
            assert (lazy.shape, lazy.dtype) == (right.shape, right.dtype)

"""Methods of arrays, held to NumPy's: arguments by position and by keyword, as ndarray has them."""

from __future__ import annotations

import numpy as np
import pytest
from support.peer_arrays import BIG_ENDIAN, EMPTY, I, M, V, X, Z
from support.peers import Case, case, hold, names

import chunkflow as cf

CASES: list[Case] = [
    *(case(f"ndarray.{fn}", X, *args) for fn in ("sum", "prod") for args in (
        (), (0,), (0, "f4"), (0, "f4", None), (0, None, None, True), (0, None, None, True, 2.0), (0, None, None, True,
        2.0, M))),
    *(case("ndarray.mean", X, *args) for args in ((), (0,), (0, "f4", None), (0, None, None, True))),
    *(case("ndarray.mean", X, axis=0, where=M, keepdims=True), case("ndarray.sum", X, axis=1, initial=3, where=M)),
    *(case(f"ndarray.{fn}", X, *args) for fn in ("var", "std") for args in ((), (0,), (0, None, None, 1), (0, None,
      None, 1, True))),
    *(case(f"ndarray.{fn}", X, axis=0, where=M, correction=1).taken("NumPy's functions have it") for fn in ("var",
      "std")),
    *(case(f"ndarray.{fn}", X, *args) for fn in ("min", "max") for args in ((), (1,), (1, None, True), (1, None, True,
      0.5), (1, None, True, 0.5, M))),
    *(case(f"ndarray.{fn}", M, *args) for fn in ("any", "all") for args in ((), (1,), (1, None))),
    *(case(f"ndarray.{fn}", X, axis=1, where=M) for fn in ("any", "all")),
    *(case(f"ndarray.{fn}", X, *args) for fn in ("argmin", "argmax") for args in ((), (1,), (1, None), (0, True),
      (3,))),
    *(case(f"ndarray.{fn}", X, 1, keepdims=True) for fn in ("argmin", "argmax")),
    *(case(f"ndarray.{fn}", X, *args) for fn in ("cumsum", "cumprod") for args in ((), (1,), (1, "f4"), (1, "f4",
      None), (3,), (1, None, 7))),
    *(case("ndarray.round", X / 3, *args) for args in ((), (1,), (1, None), (1, 7))), case("ndarray.round", X / 3,
      decimals=2),
    *(case("ndarray.clip", X, *args) for args in ((0,), (0, 1), (None, 1), (0, 1, None), (0, 1, 7))),
      case("ndarray.clip", X, min=0, max=1),
    case("ndarray.clip", X), case("ndarray.clip", X, 0, 1, dtype="f4", casting="unsafe"),
    *(case("ndarray.repeat", X, *args) for args in ((2,), (2, 0), (2, -1), (2, 5))), case("ndarray.repeat", X, 2,
      axis=1),
    *(case("ndarray.dot", X[0], *args) for args in ((X[0].T,), (X[0].T, None))),
    *(case("ndarray.astype", X, *args) for args in (
        ("f4",), (int,), ("f4", "C"), ("f4", "K", "no"), ("f4", "K", "unsafe", True, False), ("f4", "x"))),
    *(case("ndarray.astype", X, "f4", **given) for given in (
        {"order": "F"}, {"casting": "same_kind"}, {"casting": "x"}, {"subok": False}, {"copy": False},
        {"nonsense": 1})),
    *(case("ndarray.reshape", X, *args) for args in ((27, 4), ((27, 4),), (-1,), (4, -1), ([4, 27],), (5, 5), ("x",),
      ())),
    *(case("ndarray.reshape", X, 27, 4, order="C"), case("ndarray.reshape", X, (27, 4), copy=True)),
    case("ndarray.reshape", X, 27, 4, order="F"),
    *(case(f"ndarray.{fn}", X, *args) for fn in ("ravel", "flatten") for args in ((), ("C",), ("x",))),
    *(case(f"ndarray.{fn}", X, "F") for fn in ("ravel", "flatten")),
    *(case("ndarray.squeeze", X[:1], *args) for args in ((), (0,), (1,), ((0,),))), case("ndarray.squeeze", X[:1],
      axis=0),
    *(case("ndarray.swapaxes", X, *args) for args in ((0, 1), (0, -1), (0, 3))),
    *(case("ndarray.transpose", X, *args) for args in ((), (2, 0, 1), ((2, 0, 1),), (None,), (0, 1), (0, 0, 1),
      ("x",))),
    *(case(f"ndarray.{fn}", x) for fn in ("conj", "conjugate", "copy") for x in (X, Z, I, EMPTY, BIG_ENDIAN)),
    *(case("ndarray.copy", X, *args) for args in (("C",), ("F",), ("x",))), case("ndarray.copy", X, order="K"),
    *(case(f"ndarray.{fn}", x) for fn in ("__neg__", "__abs__", "__pos__") for x in (X, I, Z)),
    *(case(f"ndarray.{fn}", X, other) for fn in ("__add__", "__rsub__", "__mul__", "__truediv__", "__pow__", "__lt__",
      "__eq__", "__divmod__")
      for other in (X, 2, 2.5, X[0], I, True)),
    *(case(f"ndarray.{fn}", I, other) for fn in ("__and__", "__lshift__", "__floordiv__", "__mod__", "__ror__")
      for other in (I * 0 + 2, 3)),
    *(case("ndarray.__matmul__", X[0], other) for other in (X[0].T, V[:3])),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_methods(name: str) -> None:
    hold(case for case in CASES if case.name == name)


def test_attributes() -> None:
    for x in (X, I, Z, M, EMPTY, np.array(2.5)):
        lazy = cf.open(x)
        for name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize"):
            assert getattr(lazy, name) == getattr(x, name), name
        for name in ("T", "real", "imag", *(["mT"] if x.ndim > 1 else [])):
            got = getattr(lazy, name)
            assert (got.shape, got.dtype) == (getattr(x, name).shape, getattr(x, name).dtype)
            np.testing.assert_array_equal(got.compute(device="cpu"), getattr(x, name))

"""Generalized ufuncs of expressions: NumPy's, and with an axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import same

import chunkflow as cf
from chunkflow import errors

X = np.random.default_rng(0).integers(-9, 9, (7, 5, 6)).astype("f4")


@pytest.mark.skipif(not hasattr(np, "matvec"), reason="NumPy has no such functions yet")
@given(st.sampled_from(["matvec", "vecmat"]), st.booleans(), st.sampled_from(["16kB", "64MB"]), st.sampled_from("fdi"))
@settings(max_examples=20, deadline=None)
def test_matrices_and_vectors(name: str, many: bool, budget: str, dtype: str) -> None:
    fn, n = getattr(np, name), 6 if name == "matvec" else 5
    vectors = np.arange(7 * n).reshape(7, n).astype(dtype)
    vectors = vectors if many else vectors[0]
    args: Any = (X, vectors) if name == "matvec" else (vectors, X)
    expected, lazies = fn(*args), [cf.open(a) * 1 for a in args]
    found = fn(*lazies)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    same(found.compute(device="cpu", budget=budget), expected)


def test_along_an_axis() -> None:
    numba = pytest.importorskip("numba")

    @numba.guvectorize(["(f4[:], i8, f4[:])"], "(n),()->(n)")
    def filled(line: Any, limit: Any, out: Any) -> None:
        last = 0.0
        for n in range(len(line)):
            last = line[n] if line[n] > limit else last
            out[n] = last

    for axis in (0, 1, -1):
        same(filled(cf.open(X) + 1, 2, axis=axis).compute(device="cpu", budget="2kB"), filled(X + 1, 2, axis=axis))


def test_what_is_refused() -> None:
    matvec = getattr(np, "matvec", None)
    if matvec is not None:
        with pytest.raises(errors.UnsupportedError, match="no argument but axis="):
            matvec(cf.open(X), X[0, 0], axes=[(0, 1), 0, 0])
        with pytest.raises(errors.ArgumentError):
            matvec(cf.open(X), X)

"""Libraries that are written for the array API standard run on lazy arrays; and what is asked of arrays and library."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import array_api_compat
import numpy as np
import pytest
from support.devices import same

import chunkflow as cf
from chunkflow import array_api as xp

X = np.arange(12.0).reshape(3, 4) - 5
x = cf.open(X)

SCRIPT = """
import numpy as np, chunkflow as cf
from scipy import integrate, special, stats
import sklearn
from sklearn.metrics import mean_absolute_error, mean_squared_error

X = np.random.default_rng(0).normal(size=(500, 6)) + 3
calls = {
    "gmean": lambda x: stats.gmean(x),
    "hmean": lambda x: stats.hmean(x * x),
    "moment": lambda x: stats.moment(x, 3),
    "skew": lambda x: stats.skew(x),
    "kurtosis": lambda x: stats.kurtosis(x, axis=1),
    "sem": lambda x: stats.sem(x),
    "entropy": lambda x: stats.entropy(x * x),
    "softmax": lambda x: special.softmax(x, axis=1),
    "trapezoid": lambda x: integrate.trapezoid(x, axis=0),
    "mean_squared_error": lambda x: mean_squared_error(x, x * 2),
    "mean_absolute_error": lambda x: mean_absolute_error(x[:, 0], x[:, 1]),
}
with sklearn.config_context(array_api_dispatch=True), cf.Budget("4MB"):
    for name, call in calls.items():
        found = call(cf.open(X))
        assert isinstance(found, cf.Array if name[:4] != "mean" else float), (name, type(found))
        got = found.compute() if isinstance(found, cf.Array) else found
        np.testing.assert_allclose(got, call(X), rtol=1e-10, err_msg=name)
print(len(calls))
"""


def test_functions_of_scipy_and_scikit_learn_run() -> None:
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}  # which SciPy reads when it is imported
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "11", done.stderr[-2000:]


def test_the_namespace_is_found() -> None:
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2023.12") is xp
    assert array_api_compat.array_namespace(x, x + 1) is xp
    assert array_api_compat.is_array_api_obj(x)
    with pytest.raises(cf.errors.ArgumentError, match=r"2024\.12"):
        x.__array_namespace__(api_version="1999.1")
    assert set(xp.__all__) <= set(dir(xp))
    assert xp.nanmax is np.nanmax  # beyond the standard
    with pytest.raises(AttributeError):
        _ = xp.no_such_name


def test_what_the_library_says_of_itself() -> None:
    info = xp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] is True
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] == np.float64
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {"bool", "uint8", "uint16", "uint32", "uint64"}
    assert len(info.dtypes()) == 13
    with pytest.raises(cf.errors.ArgumentError, match="'text' is none of"):
        info.dtypes(kind="text")


def test_arrays_are_on_the_host() -> None:
    assert x.device == "cpu"
    assert x.to_device("cpu") is x
    with pytest.raises(cf.errors.ArgumentError, match="host memory"):
        x.to_device("cuda")
    same(np.from_dlpack(x + 1), X + 1)
    assert x.__dlpack_device__() == X.__dlpack_device__()
    same(xp.from_dlpack(X).compute(device="cpu"), X)
    assert xp.from_dlpack(x) is x


def test_arrays_are_made_of_what_there_is() -> None:
    assert xp.asarray(x) is x
    same(xp.asarray(x, dtype=xp.float32).compute(device="cpu"), X.astype("f4"))
    same(xp.asarray([[1, 2], [3, 4]]).compute(device="cpu"), np.array([[1, 2], [3, 4]]))
    same(xp.asarray(2.5).compute(device="cpu"), np.asarray(2.5))
    with pytest.raises(cf.errors.ArgumentError, match="asarray of a list"):
        xp.asarray([1, 2], copy=False)
    assert xp.can_cast(x, xp.complex128)
    assert not xp.can_cast(xp.float64, xp.float32)
    assert xp.finfo(x).bits == 64
    assert xp.iinfo(xp.int8).max == 127
    assert xp.isdtype(x.dtype, "real floating")
    assert xp.broadcast_shapes((3, 1), (4,)) == (3, 4)


def test_one_element_is_computed_at_once() -> None:
    total = x.sum()
    assert float(total) == X.sum()
    assert complex(total) == X.sum()
    assert int(total) == int(X.sum())
    assert bool((x > -9).all())
    assert not (x > 3).all()
    assert total.item() == X.sum()
    assert f"{total:.1f}" == "6.0"
    assert "chunkflow.Array" in f"{total}"
    assert [10, 20, 30][xp.argmax(x[:, 0])] == 30
    for call in (lambda: bool(x), lambda: x.item()):
        with pytest.raises(cf.errors.ArgumentError, match="one is asked for"):
            call()
    with pytest.raises(TypeError, match="has 0 elements, and a number is one"):
        float(x[:, :0])
    with pytest.raises(TypeError, match="no integers"):
        [1, 2][total]  # type: ignore[index]


@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_order_from_the_largest(dtype: str) -> None:
    values: Any = np.random.default_rng(3).integers(0, 4, (5, 30)).astype(dtype)
    for axis in (0, -1):
        found = xp.argsort(cf.open(values), axis=axis, descending=True).compute(device="cpu")
        same(found, np.argsort(-values, axis=axis, kind="stable"))
        same(xp.sort(cf.open(values), axis=axis, descending=True).compute(device="cpu"), -np.sort(-values, axis=axis))

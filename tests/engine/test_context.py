"""The caller's context holds in every thread that runs his function or reads his array."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
from support.devices import Place, everywhere

import chunkflow as cf
from chunkflow.system.context import callers_context, run_variable

NUMBER: ContextVar[int] = ContextVar("number", default=0)
ZERO_LAST = np.arange(10_000.0)[::-1].copy()


class Numbered:
    """An array whose elements are the caller's number."""

    shape, dtype = (10_000,), np.dtype("f8")

    def __getitem__(self, key: Any) -> np.ndarray:
        return np.full(np.empty(self.shape, "?")[key].shape, float(NUMBER.get()))


@pytest.fixture(autouse=True)
def number() -> Any:
    token = NUMBER.set(7)
    yield
    NUMBER.reset(token)


@everywhere
def test_a_variable(place: Place) -> None:
    got = cf.map(lambda u: u * 0 + NUMBER.get(), ZERO_LAST, budget=place.budget(40_000), device=place.device())
    assert (place.host(got) == 7).all()


@everywhere
def test_an_array_that_reads_a_variable(place: Place) -> None:
    assert cf.min(Numbered(), budget=place.budget(40_000), device=place.device()) == 7


@pytest.mark.parametrize("budget", ["40kB", "1GB"], ids=["several blocks", "one block, in the caller's thread"])
def test_what_a_function_sets_stays_within_its_call(budget: str) -> None:
    threads = set()

    def setting(block: Any) -> Any:
        threads.add(threading.current_thread())
        NUMBER.set(8)
        np.seterr(divide="raise")
        return -block

    with np.errstate(divide="ignore"):
        cf.map(setting, ZERO_LAST, dtype="f8", workspace=8, budget=budget, device="cpu")
        assert NUMBER.get() == 7
        assert np.geterr()["divide"] == "ignore"
    assert (threads == {threading.current_thread()}) == (budget == "1GB")


def test_an_error_that_the_caller_asked_numpy_for() -> None:
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero") as caught:
        cf.map(lambda u: 1 / u, ZERO_LAST, budget="40kB", device="cpu")  # the zero lies in the last block
    assert any("region" in note for note in caught.value.__notes__)
    with np.errstate(divide="ignore"):
        assert np.isinf(cf.map(lambda u: 1 / u, ZERO_LAST, budget="40kB", device="cpu")[-1])


def test_a_run_that_a_function_starts_is_one_of_its_own() -> None:
    def nested(block: Any) -> Any:
        return block * 0 + float(cf.sum(np.ones(100), device="cpu"))

    with cf.Budget("1MB"):
        assert (cf.map(nested, ZERO_LAST, device="cpu") == 100).all()


def test_what_says_something_of_a_run_is_left_out() -> None:
    variable = run_variable("tests", "outside")
    token = variable.set("inside")
    assert callers_context().run(variable.get) == "outside"
    assert callers_context().run(NUMBER.get) == 7
    variable.reset(token)

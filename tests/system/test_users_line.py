"""Warnings point at the line of the user's that called chunkflow, not at one of chunkflow's."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.errors import CodingWarning, SlowRunWarning
from chunkflow.planner import plan
from chunkflow.system.users_line import users_line

PACKAGE = Path(cf.__file__).parent


def test_every_warning_of_the_package_asks_for_the_users_line() -> None:
    levels = [
        next((ast.unparse(k.value) for k in node.keywords if k.arg == "stacklevel"), "none")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    ]
    assert set(levels) == {"users_line()"}
    assert len(levels) > 5


@pytest.fixture
def coded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "CRUMBS", 40)
    zarr.create_array("t.zarr", data=np.ones((8, 8), "i2")).attrs["scale_factor"] = 0.1


X = np.ones((100, 50), ">f8")
CPU: dict[str, Any] = {"device": "cpu"}

# Each is one line, so that its place is known.
CALLS: dict[str, tuple[type[Warning], Callable[[], object]]] = {
    "a call of a path": (CodingWarning, lambda: cf.sum("t.zarr", **CPU)),
    "open": (CodingWarning, lambda: cf.open("t.zarr")),
    "several passes": (CodingWarning, lambda: cf.median("t.zarr", **CPU)),
    "explain": (CodingWarning, lambda: cf.explain(cf.sum, "t.zarr", **CPU)),
    "a loop": (CodingWarning, lambda: list(cf.chunks("t.zarr", **CPU))),
    "crumbs of a call": (SlowRunWarning, lambda: cf.map(np.exp, X, budget=1100, **CPU)),
    "crumbs of an expression": (SlowRunWarning, lambda: np.exp(cf.open(X)).compute(budget=1100, **CPU)),
    "crumbs of a loop": (SlowRunWarning, lambda: [c.index for c in cf.chunks(X, budget=1100, **CPU)]),
    "no degrees of freedom": (RuntimeWarning, lambda: cf.cov(np.ones((3, 1)), **CPU)),
}


@pytest.mark.usefixtures("coded")
@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_line_of_the_call(name: str) -> None:
    category, call = CALLS[name]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", category)
        call()
    places = {(w.filename, w.lineno) for w in seen if issubclass(w.category, category)}
    assert places == {(__file__, inspect.getsourcelines(call)[1])}


def test_context_managers_of_the_library_are_passed_over() -> None:
    namespace: dict[str, Any] = {"users_line": users_line, "contextmanager": contextmanager, "Iterator": Iterator}
    entered = "@contextmanager\ndef entered():\n    yield users_line()\n"
    code = f"{entered}def call():\n    with entered() as n:\n        return n\n"
    exec(compile(code, str(PACKAGE / "some.py"), "exec"), namespace)
    assert namespace["call"]() == 4  # the manager, contextlib, `call`, and this line


def test_a_thread_that_nobody_called_has_its_own_line() -> None:
    namespace: dict[str, Any] = {"users_line": users_line}
    exec(compile("def call():\n    return users_line()\n", str(PACKAGE / "some.py"), "exec"), namespace)
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(namespace["call"]).result() == 1

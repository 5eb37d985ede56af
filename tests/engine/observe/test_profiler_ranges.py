"""Ranges that profilers see: a stand-in for NVTX hears them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.engine.observe import profiler_ranges

CPU: dict[str, Any] = {"device": "cpu", "chunks": (25,)}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the package of NVTX is told, as a profiler that listens would see it."""
    told: list[str] = []

    @contextmanager
    def annotate(message: str, domain: str) -> Iterator[None]:
        told.append(message)
        yield
        told.append(f"end of {message}")

    def start_range(message: str, domain: str) -> str:
        told.append(message)
        return message

    stand_in = SimpleNamespace(
        annotate=annotate, start_range=start_range, end_range=lambda name: told.append(f"end of {name}"), __spec__="it"
    )
    monkeypatch.setitem(sys.modules, "nvtx", stand_in)
    monkeypatch.setenv(profiler_ranges.INJECTED, "/nowhere/libToolsInjection64.so")
    profiler_ranges.nvtx.cache_clear()
    yield told
    profiler_ranges.nvtx.cache_clear()


def test_runs_and_blocks_are_ranges(heard: list[str]) -> None:
    cf.map(np.sqrt, np.ones(100), **CPU)
    assert heard[0] == "run of 4 blocks"
    assert heard[-1] == "end of run of 4 blocks"
    assert {*heard[1:-1]} == {f"{end}block {i}" for i in range(4) for end in ("", "end of ")}


def test_a_run_that_fails_ends_its_range(heard: list[str]) -> None:
    def fail(block: Any) -> Any:
        raise KeyError("lost")

    with pytest.raises(KeyError):
        cf.map(fail, np.ones(100), dtype="f8", workspace=0, **CPU)
    assert heard[-1] == "end of run of 4 blocks"


def test_nothing_is_loaded_where_no_profiler_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(profiler_ranges.INJECTED, raising=False)
    profiler_ranges.nvtx.cache_clear()
    assert profiler_ranges.nvtx() is None
    profiler_ranges.nvtx.cache_clear()

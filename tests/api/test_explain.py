"""What explain prints, word by word, for machines of which all rates are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
import chunkflow.fft
from chunkflow.api.fourier import transform
from chunkflow.api.lazy.compute import PassesPlan
from chunkflow.core.machine import Machine
from chunkflow.devices.cpu.device import NumpyDevice

GPU = NumpyDevice(staged=True, machine=Machine(30e9, 50e9, 800e9, 50e9, 30e9, overhead=300e-6, page=2 << 20))
HOST = NumpyDevice(
    machine=Machine(10e9, 1, 20e9, 1, 5e9, overhead=2e-5, staged=False, lanes=4, depths=(4, 2, 1), cache=1 << 20)
)
X = np.broadcast_to(np.float32(1), (512, 512, 512))
L = cf.open(X)
KNOWN: dict[str, Any] = {"dtype": "f4", "workspace": 4.0}


def itself(block: Any) -> Any:
    return block


TEXTS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (
        lambda **how: cf.explain(cf.map_overlap, itself, X, depth=2, **KNOWN, **how),
        {"device": GPU},
        """\
        20 blocks of 26 x 512 x 512 (grid (20, 1, 1), 3 slots, 1 computing at once)
          read    ndarray: float32 (512, 512, 512), by blocks of (30, 512, 512)
          write   a new array in host memory: float32 (512, 512, 512), by blocks of (26, 512, 512)
          memory  inputs 94.37 MB + outputs 81.79 MB + workspace 62.91 MB + reserve 4.19 MB = 243.27 MB of 256.00 MB
          traffic reads 536.87 MB, writes 536.87 MB, 1.00 times the arrays; link in 536.87 MB, out 536.87 MB
          model   0.0321 s, bound by read
          pinned  268.44 MB of host memory""",
    ),
    (
        lambda **how: cf.explain(np.sqrt, "x.zarr", out="y.npy", **KNOWN, **how),
        {"device": HOST},
        """\
        128 blocks of 64 x 64 x 320 (grid (8, 8, 2), 4 slots, 4 computing at once)
          compute by tiles of (1, 64, 320)
          read    x.zarr: float32 (512, 512, 512) in chunks (64, 64, 64), by blocks of (64, 64, 320), directly: zstd
          write   y.npy: float32 (512, 512, 512), by blocks of (64, 64, 320)
          memory  inputs 20.97 MB + workspace 659.46 kB + staging 41.94 MB + reserve 327.68 kB = 63.90 MB of 256.00 MB
          traffic reads 536.87 MB, writes 536.87 MB
          model   0.0946 s, bound by read
          note    smaller than the budget allows: by their bytes these take 0.0946 s, and blocks of (44, 512, 512) 0.139 s and 252.65 MB""",  # noqa: E501
    ),
    (
        lambda **how: PassesPlan(
            (
                (("mean", "sum"), cf.explain(np.add, X[0], X[1], **KNOWN, **how)),
                (("max",), cf.explain(np.sqrt, X[0], **KNOWN, **how)),
            )
        ),
        {"device": HOST},
        """\
        2 passes: 3.15 MB read, 2.10 MB written, 2.43 MB of device memory at most
        pass 1: mean, sum
          4 blocks of 128 x 512 (grid (4, 1), 4 slots, 4 computing at once)
            read    ndarray: float32 (512, 512), by blocks of (128, 512)
            read    ndarray: float32 (512, 512), by blocks of (128, 512)
            write   a new array in host memory: float32 (512, 512), by blocks of (128, 512)
            memory  outputs 1.05 MB + workspace 1.05 MB + reserve 327.68 kB = 2.43 MB of 256.00 MB
            traffic reads 2.10 MB, writes 1.05 MB
            model   0.00033 s, bound by compute
        pass 2: max
          4 blocks of 128 x 512 (grid (4, 1), 4 slots, 4 computing at once)
            read    ndarray: float32 (512, 512), by blocks of (128, 512)
            write   a new array in host memory: float32 (512, 512), by blocks of (128, 512)
            memory  outputs 1.05 MB + workspace 1.05 MB + reserve 327.68 kB = 2.43 MB of 256.00 MB
            traffic reads 1.05 MB, writes 1.05 MB
            model   0.000291 s, bound by compute""",
    ),
    (
        lambda **how: cf.explain(cf.map_overlap, itself, X, depth=1, iterations=10, **KNOWN, **how),
        {"device": HOST},
        """\
        (512, 512, 512) of float32, 10 iterations in 5 passes of 2: 2.68 GB read and 2.68 GB written, 0.9 s by the model
        the first pass: 43 blocks of 12 x 512 x 512 (grid (43, 1, 1), 4 slots, 4 computing at once)
          read    ndarray: float32 (512, 512, 512), by blocks of (16, 512, 512)
          write   the array between two passes: float32 (512, 512, 512), by blocks of (12, 512, 512)
          memory  outputs 50.33 MB + workspace 201.33 MB + reserve 327.68 kB = 251.99 MB of 256.00 MB
          traffic reads 536.87 MB, writes 536.87 MB, 1.00 times the arrays
          model   0.177 s, bound by compute""",
    ),
    (
        lambda **how: cf.explain(cf.fft.fftn, X[:256], out="f.zarr", **how),
        {"device": GPU, "budget": "8MB"},
        """\
        fftn in 3 passes within 7.98 MB, 1.76 s by the model
          1. axes 2: (256, 512, 512) of float32 -> (256, 512, 512) of complex64 in blocks of (1, 124, 512), 268.44 MB read and 536.87 MB written
             between: 536.87 MB in a plain file
          2. axes 1: (256, 512, 512) of complex64 -> (256, 512, 512) of complex64 in blocks of (1, 512, 123), 536.87 MB read and 536.87 MB written
             between: 536.87 MB in a plain file
          3. axes 0: (256, 512, 512) of complex64 -> (256, 512, 512) of complex64 in blocks of (256, 8, 16), 536.87 MB read and 536.87 MB written""",  # noqa: E501
    ),
    (
        lambda **how: cf.explain(cf.rechunk, "x.zarr", (512, 512, 8), out="r.zarr", **how),
        {"device": HOST, "budget": "60MB"},
        "(512, 512, 512) of float32, chunks (64, 64, 64) -> (128, 512, 16) -> (512, 512, 8): 2 passes, 1.07 GB read and 1.07 GB written",  # noqa: E501
    ),
    (
        lambda **how: cf.explain(cf.rechunk, "x.zarr", (128, 64, 64), out="r.zarr", **how),
        {"device": HOST},
        "(512, 512, 512) of float32, chunks (64, 64, 64) -> (128, 64, 64): 1 pass, 536.87 MB read and 536.87 MB written",  # noqa: E501
    ),
    (
        lambda **how: replace(cf.explain(L.mean(), L + 1, workers=4, partition="64MB", **how), seconds=0.0625),
        {"device": HOST},
        """\
        18 tasks on 4 workers: 0.0625 s
          mean: 9 tasks of 61 x 512 x 512, 63.96 MB each, combined in a tree
          add: 9 tasks of 61 x 512 x 512, 63.96 MB each""",
    ),
]


@pytest.mark.parametrize(("explained", "how", "text"), TEXTS)
def test_a_plan_is_printed(
    explained: Callable[..., Any], how: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transform, "available_memory", lambda: 0)
    for module in ("api.operation", "graph.evaluate"):  # what a forecast measures differs from run to run
        monkeypatch.setattr(f"chunkflow.{module}.forecast", lambda run: run.plan)
    zarr.create_array("x.zarr", shape=X.shape, chunks=(64, 64, 64), dtype="f4")
    found = str(explained(**({"budget": "256MB"} | how)))
    assert found.replace(f"{tmp_path}/", "").splitlines() == dedent(text).splitlines()


def test_a_transform_of_an_expression_shows_its_passes() -> None:
    x = cf.open(np.ones((60, 40, 50)))
    for transformed, number in ((cf.fft.fftn(2 * x), 3), (np.fft.fft(x, axis=0), 1)):
        found = cf.explain(transformed, budget="300kB", device=HOST)
        plans = [plan for names, plan in found.passes if names == (transformed._node.name,)]
        assert len(found.passes) == number
        assert plans
        assert all(plan.bytes_in and plan.memory.total <= 300_000 and plan.estimate.seconds > 0 for plan in plans)
        assert "planned when they run" not in str(found)


def test_steps_of_an_expression_show_their_passes() -> None:
    x = cf.open(np.ones((60, 40, 50)))
    steps = cf.map_overlap(np.copy, x, depth=1, iterations=4, steps_per_pass=2)
    assert len(cf.explain(steps, budget="300kB", device=HOST).passes) == 2

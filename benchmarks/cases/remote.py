"""Sums of a zarr array behind a slow server, beside dask, and zarr with all of the array in memory.

The server is a process of its own on the loopback, and waits before each answer (the setting `latency`, in seconds).
The limit is what chunkflow's number of requests at a time allows: so many of the array's chunks in each round.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, MissingError, close_to
from benchmarks.probe import installed

SIDE = 64  # of a chunk: 1 MiB of float32
REQUESTS = 32  # at a time, by chunkflow
SERVER = """
import functools, http.server, sys, time
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep({latency})
        super().do_GET()
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
with Server(("127.0.0.1", 0), functools.partial(Handler, directory=sys.argv[1])) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


def cases(bench: Bench) -> Iterator[Case]:
    """The three contenders, while the server is up."""
    if not installed("aiohttp")[0]:
        raise MissingError("aiohttp")
    layers, latency = max(1, round(bench.gib * 16)), float(bench.settings["latency"])
    shape = (layers * SIDE, 8 * SIDE, 8 * SIDE)
    x = zarr.create_array(bench.directory / "x.zarr", shape=shape, dtype="f4", chunks=(SIDE,) * 3)
    total = 0.0
    for i in range(layers):
        part = np.random.default_rng(i).random((SIDE, *shape[1:]), "f4")
        x[i * SIDE : (i + 1) * SIDE] = part
        total += float(part.sum(dtype="f8"))
    command = [sys.executable, "-c", SERVER.format(latency=latency), str(bench.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield summed(f"http://127.0.0.1:{int(server.stdout.readline())}/x.zarr", total, layers * 64, latency)
        finally:
            server.terminate()


def summed(url: str, total: float, chunks: int, latency: float) -> Case:
    """The sum of so many chunks at an address."""
    there, missing = installed("dask")

    def dasked() -> float:
        dask, da = importlib.import_module("dask"), importlib.import_module("dask.array")
        with dask.config.set(scheduler="threads"):
            return float(da.from_zarr(url).sum(dtype="f8").compute())

    runs: dict[str, Callable[[], Any]] = {OURS: lambda: float(cf.sum(url, dtype="f8", device="cpu"))}
    if there:
        runs["dask, threads"] = dasked
    runs["zarr, the whole array, and NumPy"] = lambda: float(zarr.open_array(url)[...].sum(dtype="f8"))
    amount = chunks * SIDE**3 * 4 / 1e9
    limit = (f"{REQUESTS} requests at a time", amount / (chunks / REQUESTS * latency))
    what = f"{chunks} MiB of float32 in as many chunks, {latency * 1e3:.0f} ms before each answer"
    return Case("remote", what, amount, runs, close_to(total, 1e-9), limit, missing=missing)

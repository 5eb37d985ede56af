"""Sums of a zarr array behind a slow server, beside dask, and zarr with all of the array in memory.

Run ``python -m benchmarks.remote [--mib 256] [--latency 0.05] [--repeats 3]``. It needs dask, aiohttp and room for the
array on disk. The server is a process of its own on the loopback, and waits before each answer; contenders take turns.
The limit is what chunkflow's number of requests at a time allows: so many of the array's chunks in each round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr

import chunkflow as cf
from benchmarks.harness import alternate, machine, table
from chunkflow.planner.codec_threads import FETCHERS

SIDE = 64  # of a chunk: 1 MiB of float32
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


def main() -> None:
    """Time the contenders and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    layers = max(1, options.mib // 64)
    with tempfile.TemporaryDirectory() as folder:
        shape = (layers * SIDE, 8 * SIDE, 8 * SIDE)
        x = zarr.create_array(Path(folder) / "x.zarr", shape=shape, dtype="f4", chunks=(SIDE,) * 3)
        total = 0.0
        for i in range(layers):
            part = np.random.default_rng(i).random((SIDE, *shape[1:]), "f4")
            x[i * SIDE : (i + 1) * SIDE] = part
            total += float(part.sum(dtype="f8"))
        command = [sys.executable, "-c", SERVER.format(latency=options.latency), folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                url = f"http://127.0.0.1:{int(server.stdout.readline())}/x.zarr"
                report(url, total, options.repeats, options.latency, layers * 64)
            finally:
                server.terminate()


def report(url: str, total: float, repeats: int, latency: float, chunks: int) -> None:
    """Run the contenders in turn."""
    found: list[float] = []

    def dasked() -> None:
        with dask.config.set(scheduler="threads"):
            found.append(float(da.from_zarr(url).sum(dtype="f8").compute()))

    contenders: dict[str, Callable[[], object]] = {
        "dask, threads": dasked,
        "zarr, the whole array, and NumPy": lambda: found.append(float(zarr.open_array(url)[...].sum(dtype="f8"))),
        "chunkflow": lambda: found.append(float(cf.sum(url, dtype="f8", device="cpu"))),
    }

    def check() -> None:
        np.testing.assert_allclose(found.pop(), total, rtol=1e-9)

    seconds = alternate(contenders, repeats, check)
    nbytes, last = chunks * SIDE**3 * 4, statistics.median(seconds["chunkflow"])
    rows = []
    for name, times in seconds.items():
        middle, spread = statistics.median(times), f"{min(times):.2f}-{max(times):.2f}"
        rows.append((name, f"{middle:.2f}", spread, f"{nbytes / middle / 1e6:.0f}", f"{last / middle:.2f}"))
    least = chunks / FETCHERS * latency
    rows.append(
        (f"{FETCHERS} requests at a time", f"{least:.2f}", "", f"{nbytes / least / 1e6:.0f}", f"{last / least:.2f}")
    )
    print(machine() + "\n")
    title = f"sum of {nbytes >> 20} MiB of float32 in {chunks} chunks, {latency * 1e3:.0f} ms before each answer"
    print(table(title, rows, ["contender", "seconds", "range", "MB/s", "chunkflow / this"]))


if __name__ == "__main__":
    main()

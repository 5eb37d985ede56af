"""``chunkflow demo`` runs the main job on generated data: the speed of a velocity field, within a small budget."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.cli.common import Commands, add_device, byte_count, command, positive
from chunkflow.core.units import format_bytes
from chunkflow.devices import resolve
from chunkflow.engine.budget import Budget
from chunkflow.errors import BudgetError, OutputExistsError

TEXT = """\
Four arrays of 64 MB each are made in DIR, in less than a minute. The result is checked against NumPy."""

FIGURES = """\
Memory: the budget bounds the device memory of a run, and the peak is the most that it took. Without a GPU the device is
the CPU, and it is memory of the process, beside about 100 MB that Python and its libraries take. The plan's line
`memory` is computed before the run: input blocks, output blocks, what the function takes besides, and a reserve."""

NEXT = """\
Try next:
  chunkflow stats {where}/speed.zarr
  chunkflow run "np.sqrt(a**2 + b**2)" {where}/u.zarr {where}/v.zarr {where}/uv.zarr --budget 32MB
  chunkflow doctor      # what is slow or missing here, and how to mend it"""

_MARK = ".chunkflow-demo"  # says that a directory is the demo's own and may be written over
_CHUNK = 64
_SAMPLES = 16


class Velocity:
    """One component of a turbulence-like velocity field, computed wherever it is read.

    A sum of Fourier modes with random phases and directions. Each mode's amplitude stands at right
    angles to its wave vector, so the three components together are free of divergence, and falls with
    the wave number k as k**(-11/6): Kolmogorov's energy spectrum, k**(-5/3), in three dimensions. A
    faint noise on top keeps the bytes from compressing better than a simulation's would.

    It has `shape`, `dtype` and slicing, which is all that chunkflow asks of a source. The component points along the
    axis of that number.

    >>> u = Velocity((8, 16, 16), component=0)
    >>> u[2:4, 0:16, 5:9].shape
    (2, 16, 4)
    """

    dtype = np.dtype(np.float32)

    def __init__(self, shape: tuple[int, int, int], component: int, *, modes: int = 8, seed: int = 7) -> None:
        self.shape = shape
        self.ndim = len(shape)
        rng = np.random.default_rng(seed)  # the same modes for each component
        waves = rng.integers(1, 7, (modes, 3)) * rng.choice([-1, 1], (modes, 3))
        amplitude = np.cross(waves, rng.standard_normal((modes, 3)))
        amplitude /= np.linalg.norm(amplitude, axis=1, keepdims=True)
        amplitude *= np.linalg.norm(waves, axis=1, keepdims=True) ** (-11 / 6)
        self._waves = waves
        self._phase = rng.uniform(0, 2 * np.pi, modes)
        self._amplitude = amplitude[:, component]
        # A small tile, repeated: its sides are primes, so that the chunks do not repeat with it.
        self._noise = 1e-4 * rng.standard_normal((3, 31, 61, 67), np.float32)[component]

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray:
        places = [np.arange(n)[part] for part, n in zip(region, self.shape, strict=True)]
        # exp(i(kx x + ky y + kz z + p)) is a product of factors, one per axis: a product of matrices.
        z, y, x = (
            np.exp(2j * np.pi * np.outer(wave, place / n))
            for wave, place, n in zip(self._waves.T, places, self.shape, strict=True)
        )
        z *= (self._amplitude * np.exp(1j * self._phase))[:, None]
        shape = tuple(len(place) for place in places)
        planes = np.einsum("mz,my->zym", z, y).reshape(-1, len(x))
        left = np.hstack([planes.real, -planes.imag]).astype(np.float32)
        right = np.vstack([x.real, x.imag]).astype(np.float32)
        noise = self._noise[np.ix_(*(place % n for place, n in zip(places, self._noise.shape, strict=True)))]
        return np.asarray((left @ right).reshape(shape) + noise)


def speed(u: Any, v: Any, w: Any) -> Any:
    """Magnitude of a velocity; sees blocks of NumPy's or CuPy's."""
    return np.sqrt(u * u + v * v + w * w)


def add(commands: Commands) -> None:
    """Add the command."""
    told = "compute the speed of a generated velocity field, under a budget of a tenth of the data"
    parser = command(commands, "demo", run, told, TEXT)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--size", type=positive, default=256, metavar="N", help="points along each axis (default: 256)")
    size.add_argument("--shape", type=positive, nargs=3, metavar=("Z", "Y", "X"), help="points along the axes")
    parser.add_argument(
        "--budget", type=byte_count, help="device memory, as 64MB or 50%% (default: a tenth of the data)"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("chunkflow-demo"), help="where the arrays go (default: chunkflow-demo)"
    )
    add_device(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo; 1 if the result is wrong."""
    shape = tuple(options.shape or (options.size,) * 3)
    return 0 if demo(shape, options.dir, options.budget, options.device) else 1


def demo(shape: tuple[int, int, int], where: Path, budget: str | None, device: str | None) -> bool:
    """Make a velocity field in zarr, compute its speed under a budget and check samples of it; whether they are right.

    The directory `where` must not exist, be empty, or be from an earlier demo. The budget is by default a tenth of the
    data, or what will do.
    """
    resolve(device)
    if budget is not None:
        Budget(budget)  # a wrong one is refused before anything is made
    _claim(where)
    print(f"making a velocity field of {' x '.join(map(str, shape))} points in {where} ...", flush=True)
    paths = [where / f"{name}.zarr" for name in "uvw"]
    fields = [
        cf.map(
            np.positive,
            Velocity(shape, axis),
            out=path,
            chunks=tuple(min(n, _CHUNK) for n in shape),
            device="cpu",
            overwrite=True,
        )
        for path, axis in zip(paths, (2, 1, 0), strict=True)
    ]
    data = 4 * math.prod(shape) * Velocity.dtype.itemsize
    print(f"computing its speed, {format_bytes(data)} in and out\n")
    options: dict[str, Any] = {"out": where / "speed.zarr", "overwrite": True, "device": device}
    plan = _plan(paths, budget, max(data // 10, 1), options)
    print(plan)
    with cf.Profile() as profile:
        result = cf.map(speed, *paths, budget=plan.budget, progress=True, **options)
    report = profile.report
    good = _check(fields, result, shape)
    print(f"\n{report}\n")
    print(f"data    {format_bytes(data)}")
    print(f"peak    {format_bytes(report.peak)} of the budget's {format_bytes(plan.budget)}")
    print(f"check   {_SAMPLES} random regions {'agree' if good else 'DO NOT AGREE'} with NumPy")
    print(f"result  {options['out']}\n")
    print(f"{FIGURES}\n\n{NEXT.format(where=where)}")
    return good


def _plan(paths: Sequence[Path], budget: str | None, tenth: int, options: dict[str, Any]) -> Any:
    """Plan for the budget given, for a tenth of the data, or for what will do."""
    try:
        return cf.explain(speed, *paths, budget=budget or tenth, **options)
    except BudgetError as error:
        if budget or error.smallest is None:
            raise
        ample = 4 * error.smallest
        print(f"{format_bytes(tenth)}, a tenth of the data, is too little here: taking {format_bytes(ample)}")
        return cf.explain(speed, *paths, budget=ample, **options)


def _claim(where: Path) -> None:
    """Take the directory, unless it holds somebody else's files."""
    if where.exists() and not (where / _MARK).exists() and (not where.is_dir() or any(where.iterdir())):
        raise OutputExistsError(f"{where} exists and is not from an earlier demo: give another --dir")
    where.mkdir(parents=True, exist_ok=True)
    (where / _MARK).touch()


def _check(fields: Sequence[Any], result: Any, shape: tuple[int, ...]) -> bool:
    """Whether random regions of the stored result are what NumPy makes of the stored fields."""
    rng = np.random.default_rng()
    for _ in range(_SAMPLES):
        start = [int(rng.integers(n)) for n in shape]
        region = tuple(slice(a, min(a + 32, n)) for a, n in zip(start, shape, strict=True))
        expected = speed(*(np.asarray(field[region]) for field in fields))
        # Devices may fuse a product and a sum, which rounds once where NumPy rounds twice.
        if not np.allclose(np.asarray(result[region]), expected, rtol=1e-6, atol=0):
            return False
    return True

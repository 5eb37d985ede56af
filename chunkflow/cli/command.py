"""The ``chunkflow`` command.

``demo`` runs the main job on generated data, ``calibrate`` measures this machine, ``clean`` and ``recover`` settle what
runs left that were killed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.cli.calibrate import tuned
from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.devices import measured_rates, resolve
from chunkflow.errors import ArgumentError, BudgetError, ChunkflowError, OutputExistsError

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


def demo(shape: tuple[int, int, int], where: Path, budget: str | None, device: str) -> bool:
    """Make a velocity field in zarr, compute its speed under a budget and check samples of it; whether they are right.

    The directory `where` must not exist, be empty, or be from an earlier demo. The budget is by default a tenth of the
    data, or what will do.
    """
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
    print(f"peak    {format_bytes(report.peak)} of the budget's {format_bytes(plan.budget)}")
    print(f"check   {_SAMPLES} random regions {'agree' if good else 'DO NOT AGREE'} with NumPy")
    print(f"result  {options['out']}")
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


def calibrate(device: str, nbytes: int, folder: Path | None = None, *, forget: bool = False) -> None:
    """Measure a device and its host, with files in `folder`, and keep the rates; or forget them."""
    found = resolve(device)
    if forget:
        where = measured_rates.forget(found.model)
        print(f"forgot the rates in {where}" if where else f"no rates of {found.model} are kept")
        return
    if measured_rates.path(found.model) is None:
        raise ArgumentError(f"{measured_rates.VARIABLE}=0 says that no rates are kept: unset it, or name a directory")
    before = found.machine
    result = tuned(found, nbytes, folder)
    for name in (*measured_rates.RATES, *measured_rates.SECONDS, *measured_rates.SIZES):
        if not getattr(result.machine, name):
            continue  # it has none of its own, and counts as another
        print(f"  {name:<10}{getattr(result.machine, name):>12.4g}   before {getattr(before, name):.4g}")
    if result.missing:
        print(f"  {result.missing}")
    for name, analysis in result.runs.items():
        print(f"  {name}: {analysis.runs[-1]}")
    print(f"kept in {measured_rates.keep(result.machine, found.model)}")


def settle(path: str, *, only_begun: bool, dry: bool) -> None:
    """Settle what dead runs left, and say what that was."""
    found = [left for left in cf.leftovers(path) if left.is_begun or not only_begun]
    if not dry:
        found = list(cf.recover(path) if only_begun else cf.clean(path))
    for left in found:
        what = "finished or undone" if left.is_begun else "removed"
        size = "chunks at a URL" if "://" in left.claim else format_bytes(left.nbytes)
        print(f"{left.output or left.claim}: {size}, {'to be ' * dry}{what}")
    print(f"{format_bytes(sum(left.nbytes for left in found))} of dead runs in {path}" if found else "nothing is left")


def _verified(path: str) -> bool:
    found = cf.verify(path, progress=True)
    print(found, flush=True)
    return bool(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chunkflow",
        description="Stream arrays larger than the device's memory through a function, under a byte budget.",
    )
    parser.add_argument("--version", action="version", version=f"chunkflow {cf.__version__}")
    commands = parser.add_subparsers(dest="command")
    show = commands.add_parser(
        "demo",
        help="compute the speed of a generated velocity field, under a budget a tenth of the data",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    size = show.add_mutually_exclusive_group()
    size.add_argument("--size", type=_positive, default=256, metavar="N", help="points along each axis")
    size.add_argument("--shape", type=_positive, nargs=3, metavar=("Z", "Y", "X"), help="points along the axes")
    show.add_argument("--budget", help="device memory, such as 64MB or 50%%; None: a tenth of the data")
    show.add_argument("--dir", type=Path, default=Path("chunkflow-demo"), help="where the arrays go")
    show.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    rates = commands.add_parser("calibrate", help="measure this machine's rates and keep them for later plans")
    rates.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    rates.add_argument("--size", default="1GB", help="bytes of the arrays it measures with")
    rates.add_argument("--dir", type=Path, help="a directory of the disk to measure (default: for temporary files)")
    rates.add_argument("--forget", action="store_true", help="go back to the usual rates")
    for name, told in (
        ("clean", "remove what killed runs left, and finish or undo what they had begun to publish"),
        ("recover", "finish or undo what killed runs had begun to publish"),
    ):
        settled = commands.add_parser(name, help=told)
        settled.add_argument("path", help="a directory, or the path or URL of an output")
        settled.add_argument("--dry-run", action="store_true", help="say what there is, and change nothing")
    check = commands.add_parser("verify", help="read all of stored arrays, and report damage by chunk")
    check.add_argument("paths", nargs="+", metavar="PATH", help="a .npy file, a zarr array, x.h5:/name, or a URL")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the arguments of the process.

    Returns 0; 1 where the demo's check fails or an array is damaged; 2 where something was refused or failed.
    """
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        if args.command == "calibrate":
            calibrate(args.device, parse_bytes(args.size), args.dir, forget=args.forget)
            return 0
        if args.command in ("clean", "recover"):
            settle(args.path, only_begun=args.command == "recover", dry=args.dry_run)
            return 0
        if args.command == "verify":
            damaged = [path for path in args.paths if not _verified(path)]
            return 1 if damaged else 0
        shape = tuple(args.shape or (args.size,) * 3)
        return 0 if demo(shape, args.dir, args.budget, args.device) else 1
    except ChunkflowError as error:
        print("chunkflow:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as shells have it


if __name__ == "__main__":
    sys.exit(main())

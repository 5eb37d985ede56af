"""A quantile map of a stack of images: median and spread of every pixel, and of the whole, by lazy arrays.

The stack is a made-up series of exposures: a sky of stars, noise, and cosmic rays that hit a few pixels of each. A mean
would show the rays; a median along the series does not. All that can share a pass over the stack shares it.

Run it as it is: it makes its own data, uses a GPU where there is one, checks the result and draws it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import chunkflow as cf


def make_stack(path, n, rng):
    """Write n // 8 exposures of n x n pixels, one at a time."""
    number = max(n // 8, 8)
    stack = np.lib.format.open_memmap(path, mode="w+", dtype="u2", shape=(number, n, n))
    y, x = np.mgrid[:n, :n].astype("f4")
    sky = 200 + 50 * (x / n)
    for cy, cx, bright in zip(*rng.uniform(0, n, (2, 60)), rng.uniform(200, 4000, 60), strict=True):
        sky += bright * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 8)
    for k in range(number):
        exposure = rng.poisson(sky).astype("f4")
        exposure.flat[rng.integers(0, n * n, n)] += 20000  # cosmic rays
        stack[k] = np.clip(exposure, 0, 65535)
    stack.flush()


def draw(path, mean, median):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture without matplotlib: pip install matplotlib, or chunkflow's extra `plot`")
        return
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    for axes, image, title in zip(figure.subplots(1, 2), (mean, median), ("mean", "median"), strict=True):
        shown = axes.imshow(image, vmin=median.min(), vmax=np.quantile(median, 0.999), cmap="gray")
        axes.set(title=f"{title} of the exposures", xticks=[], yticks=[])
    figure.colorbar(shown, label="counts")
    figure.savefig(path, dpi=120)
    print(f"picture  {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", type=int, default=640, help="pixels along an image's sides; an 8th as many images (640)"
    )
    parser.add_argument("--budget", default="60MB", help="device memory that the run may take (60MB)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dir", type=Path, help="for data, results and picture, replaced there; a new temporary one")
    args = parser.parse_args()
    if args.size < 16:
        parser.error("--size must be at least 16")
    folder = args.dir or Path(tempfile.mkdtemp(prefix="chunkflow-quantiles-"))
    folder.mkdir(parents=True, exist_ok=True)
    make_stack(folder / "stack.npy", args.size, np.random.default_rng(6))

    stack = cf.open(folder / "stack.npy")
    low, median, high = np.quantile(stack, [0.16, 0.5, 0.84], axis=0)
    spread = (high - low) / 2
    mean = stack.mean(axis=0)
    outliers = (stack > median + 8 * spread).sum(axis=(1, 2))  # of each exposure
    asked = {"mean": mean, "median": median, "spread": spread, "outliers": outliers}
    print(cf.explain(asked, budget=args.budget, device=args.device), end="\n\n")
    with cf.Profile() as profile:
        found = cf.compute(asked, budget=args.budget, device=args.device, progress=True)
    print(profile.report, end="\n\n")

    whole = np.load(folder / "stack.npy", mmap_mode="r")
    rows = slice(0, args.size, max(args.size // 16, 1))
    np.testing.assert_array_equal(found["median"][rows], np.median(whole[:, rows], axis=0))
    np.testing.assert_allclose(found["mean"][rows], whole[:, rows].mean(axis=0))
    print(f"checked  {found['median'][rows].size:,} medians and means agree with NumPy")
    print(f"cosmic rays: {found['outliers'].mean():.0f} pixels an exposure, where {args.size} were made")
    print(f"brightest pixel of the mean {found['mean'].max():.0f}, of the median {found['median'].max():.0f}")
    np.savez(folder / "quantiles.npz", **found)
    print(
        f"results  {folder}/quantiles.npz, of {folder}/stack.npy"
        + ("" if args.dir else "; remove the folder when you are done")
    )
    draw(folder / "quantiles.png", found["mean"], found["median"])
    return 0


if __name__ == "__main__":
    sys.exit(main())

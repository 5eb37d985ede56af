"""Mean, spread and range of every layer of a volume, and the histogram of the whole.

The functions have NumPy's names and arguments and take what NumPy would: here a memmap of a ``.npy`` file. The
volume is a made-up ocean: warm above, cold below, with waves on the thermocline between.

Run it as it is: it makes its own data, uses a GPU where there is one, checks the result and draws it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import chunkflow as cf

BINS, RANGE = 120, (0.0, 24.0)  # degrees Celsius


def make_volume(path, n, rng):
    """Write n // 2 layers of n x n temperatures, one at a time."""
    layers = max(n // 2, 1)
    volume = np.lib.format.open_memmap(path, mode="w+", dtype="f4", shape=(layers, n, n))
    phase = 2 * np.pi * np.arange(n) / n
    waves = 0.04 * np.sin(3 * phase)[:, None] * np.cos(2 * phase) + 0.03 * np.sin(5 * phase + 1)
    for k in range(layers):
        depth = (k + 0.5) / layers + waves  # 0 at the surface, 1 at the bottom
        warm = 4 + 8 * (1 - np.tanh((depth - 0.35) / 0.1))
        volume[k] = warm + 0.3 * rng.standard_normal((n, n), np.float32)
    volume.flush()


def check(volume, stats, counts):
    """Compare three layers, and all counts, with NumPy's."""
    for k in {0, len(volume) // 2, len(volume) - 1}:
        for name, values in stats.items():
            expected = getattr(np, name)(volume[k].astype("f8"))
            np.testing.assert_allclose(values[k], expected, rtol=1e-6, err_msg=f"{name} of layer {k}")
    expected = sum(np.histogram(layer, BINS, RANGE)[0] for layer in volume)
    np.testing.assert_array_equal(counts, expected)


def draw(path, stats, counts, edges):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture without matplotlib: pip install matplotlib, or chunkflow's extra `plot`")
        return
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    layer, mean, std = np.arange(len(stats["mean"])), stats["mean"], stats["std"]
    left.fill_betweenx(layer, stats["min"], stats["max"], color="0.9", label="min to max")
    left.fill_betweenx(layer, mean - std, mean + std, color="tab:blue", alpha=0.4, label="mean ± std")
    left.plot(mean, layer, color="tab:blue", label="mean")
    left.set(title="layers", xlabel="temperature (°C)", ylabel="layer, from the surface")
    left.invert_yaxis()
    left.legend()
    right.stairs(counts, edges, fill=True)
    right.set(title="all points", xlabel="temperature (°C)", ylabel="points", yscale="log")
    figure.savefig(path, dpi=120)
    print(f"picture  {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=448, help="points along a layer's sides; half as many layers (448)")
    parser.add_argument("--budget", default="100MB", help="device memory that the run may take (100MB)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dir", type=Path, help="for data, results and picture, replaced there; a new temporary one")
    args = parser.parse_args()
    if args.size < 2:
        parser.error("--size must be at least 2")
    folder = args.dir or Path(tempfile.mkdtemp(prefix="chunkflow-layers-"))
    folder.mkdir(parents=True, exist_ok=True)

    make_volume(folder / "volume.npy", args.size, np.random.default_rng(4))
    volume = np.load(folder / "volume.npy", mmap_mode="r")
    options = {"budget": args.budget, "device": args.device, "progress": True}

    print(cf.explain(cf.std, volume, axis=(1, 2), **options), end="\n\n")
    with cf.Profile() as profile:
        stats = {name: getattr(cf, name)(volume, axis=(1, 2), **options) for name in ("mean", "std", "min", "max")}
        counts, edges = cf.histogram(volume, BINS, RANGE, **options)
    print(profile.report, end="\n\n")

    print("layer      mean     std     min     max")
    for k in range(0, len(volume), max(len(volume) // 8, 1)):
        print(f"{k:5}  " + "".join(f"{values[k]:8.3f}" for values in stats.values()))
    print(f"\nmost frequent: {edges[counts.argmax()]:.1f} to {edges[counts.argmax() + 1]:.1f} degrees Celsius")

    check(volume, stats, counts)
    print(f"checked  three layers and all {counts.sum():,} counts agree with NumPy")
    np.savez(folder / "layers.npz", **stats, counts=counts, edges=edges)
    print(
        f"results  {folder}/layers.npz, of {folder}/volume.npy"
        + ("" if args.dir else "; remove the folder when you are done")
    )
    draw(folder / "layers.png", stats, counts, edges)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Proper orthogonal decomposition of many snapshots, too large together for the budget.

With snapshots as columns of x, the eigenvectors v of the small matrix x.T @ x give the modes x @ v (the method of
snapshots: Sirovich 1987). `chunkflow.gram` makes that matrix from one read of x, `chunkflow.matmul` the modes from
a second. The snapshots are made up: two pairs of travelling waves, as in a wake, and noise.

Run it as it is: it makes its own data, uses a GPU where there is one, checks the result and draws it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import chunkflow as cf

MODES = 6


def make_snapshots(path, n, count, rng):
    """Write x: a row for each of n x 2 n points, a column for each snapshot, some lines of points at a time."""
    x = np.lib.format.open_memmap(path, mode="w+", dtype="f4", shape=(n * 2 * n, count))
    time = 2 * np.pi * 5 * np.arange(count) / count  # five periods
    across, along = np.linspace(-1, 1, n), np.linspace(0, 2, 2 * n)
    for row in range(n):
        y = across[row]
        first = np.exp(-8 * y**2) * np.sin(np.pi * along[:, None] * 2 - time)
        second = 0.4 * y * np.exp(-6 * y**2) * np.sin(np.pi * along[:, None] * 4 - 2 * time)
        mean = 1 - 0.6 * np.exp(-10 * y**2)
        noise = 0.05 * rng.standard_normal((2 * n, count), np.float32)
        x[row * 2 * n : (row + 1) * 2 * n] = mean + first + second + noise
    x.flush()


def check(x, gram, v, modes):
    """Compare parts of both products with NumPy's, and the modes with one another."""
    columns = np.linspace(0, x.shape[1] - 1, 3).astype(int)
    expected = x[:, columns].astype("f8").T @ x
    np.testing.assert_allclose(gram[columns], expected, atol=1e-5 * np.abs(gram).max(), err_msg="Gram matrix")
    rows = np.linspace(0, x.shape[0] - 1, 1000).astype(int)
    np.testing.assert_allclose(modes[rows], x[rows].astype("f8") @ v, atol=1e-5 * np.abs(modes).max(), err_msg="modes")
    error = np.abs(modes.T.astype("f8") @ modes - np.eye(modes.shape[1])).max()
    np.testing.assert_array_less(error, 1e-3, err_msg="the modes are not orthogonal")
    return error


def draw(path, energy, modes, n):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture without matplotlib: pip install matplotlib, or chunkflow's extra `plot`")
        return
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    axes[0].loglog(np.arange(1, len(energy)), energy[:-1], ".")
    axes[0].set(title="energy of the modes", xlabel="mode", ylabel="share of the variance")
    for i, ax in enumerate(axes[1:]):
        ax.imshow(modes[:, i].reshape(n, 2 * n), cmap="RdBu_r", extent=(0, 2, -1, 1), origin="lower")
        ax.set(title=f"mode {i + 1}", xlabel="along", ylabel="across")
    figure.savefig(path, dpi=120)
    print(f"picture  {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="points across the flow; twice as many along it (256)")
    parser.add_argument("--snapshots", type=int, default=256, help="how many (256)")
    parser.add_argument("--budget", default="120MB", help="device memory that the run may take (120MB)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dir", type=Path, help="for data, results and picture, replaced there; a new temporary one")
    args = parser.parse_args()
    if args.size < 2 or args.snapshots < 3:
        parser.error("two modes need a --size of at least 2 and 3 --snapshots")
    folder = args.dir or Path(tempfile.mkdtemp(prefix="chunkflow-pod-"))
    folder.mkdir(parents=True, exist_ok=True)

    snapshots = folder / "snapshots.npy"
    make_snapshots(snapshots, args.size, args.snapshots, np.random.default_rng(5))
    options = {"budget": args.budget, "device": args.device}
    replace = {**options, "overwrite": True}
    count = min(MODES, args.snapshots - 1)  # with the mean taken off one mode is empty

    print(cf.explain(cf.gram, snapshots, **options), end="\n\n")
    with cf.Profile() as profile:
        # What varies: each point's mean over time is taken off. The means broadcast, as in NumPy.
        mean = cf.mean(snapshots, axis=1, keepdims=True, **options)
        x = cf.map(np.subtract, snapshots, mean, out=folder / "fluctuations.npy", **replace)
        gram = cf.gram(x, **options)
        values, vectors = np.linalg.eigh(gram.astype("f8"))  # small; in increasing order
        values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
        v = vectors[:, :count] / np.sqrt(values[:count])
        modes = cf.matmul(x, v.astype("f4"), out=folder / "modes.npy", **replace)
    print(profile.report, end="\n\n")

    energy = values / values.sum()
    print("energy   " + ", ".join(f"{share:.2%}" for share in energy[:count]) + f"; {energy[:4].sum():.2%} in four")
    error = check(x, gram, v, modes)
    print(f"checked  products agree with NumPy, modes are orthonormal within {error:.0e}")
    np.save(folder / "energy.npy", energy)
    print(
        f"results  {folder}/modes.npy and {folder}/energy.npy"
        + ("" if args.dir else "; remove the folder when you are done")
    )
    draw(folder / "pod.png", energy, modes, args.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Vorticity and Q-criterion of a velocity field that is too large for the budget, both in one pass over it.

Derivatives look at neighbours: `chunkflow.map_overlap` hands each block out with a layer of points around it,
across the field's periodic edges too. The field is a sum of ABC flows, after Arnold, Beltrami and Childress.
The Q-criterion is that of Hunt, Wray and Moin (1988): positive where rotation outweighs strain, in vortices.

Run it as it is: it makes its own data, uses a GPU where there is one, checks the result and draws it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import chunkflow as cf


def vorticity(u, v, w, dx):
    # Blocks with their neighbours' points around them, axes z, y, x. np.gradient takes central differences; the
    # one-sided ones at a block's own edges are cut off with the points that were added there.
    uz, uy, ux = np.gradient(u, dx)
    vz, vy, vx = np.gradient(v, dx)
    wz, wy, wx = np.gradient(w, dx)
    magnitude = np.sqrt((wy - vz) ** 2 + (uz - wx) ** 2 + (vx - uy) ** 2)
    q = -(ux * ux + vy * vy + wz * wz) / 2 - uy * vx - uz * wx - vz * wy
    return magnitude, q


def make_field(paths, n, rng):
    """Write u, v and w slab by slab: ABC flows of three sizes and a faint noise."""
    angle = 2 * np.pi * np.arange(n) / n
    y, x = angle[:, None], angle
    chunks = (min(n, 32),) * 3
    arrays = [zarr.create_array(str(p), shape=(n, n, n), chunks=chunks, dtype="f4", overwrite=True) for p in paths]
    modes = [(k, k ** (-5 / 6), *rng.uniform(0, 2 * np.pi, 3)) for k in (1, 2, 4)]
    for start in range(0, n, chunks[0]):
        z = angle[start : start + chunks[0], None, None]
        slabs = 1e-3 * rng.standard_normal((3, len(z), n, n), np.float32)
        for k, a, p, q, r in modes:
            slabs[0] += a * (np.sin(k * z + p) + np.cos(k * y + q))
            slabs[1] += a * (np.sin(k * x + r) + np.cos(k * z + p))
            slabs[2] += a * (np.sin(k * y + q) + np.cos(k * x + r))
        for array, slab in zip(arrays, slabs, strict=True):
            array[start : start + len(z)] = slab


def check(fields, results, k, dx):
    """Compare plane `k` with NumPy's, by differences of the whole plane and the two beside it."""
    planes = [np.stack([f[(k + i) % f.shape[0]] for i in (-1, 0, 1)]).astype("f8") for f in fields]
    grad = [[((np.roll(p, -1, a) - np.roll(p, 1, a)) / (2 * dx))[1] for a in (2, 1, 0)] for p in planes]
    g = np.array(grad)  # g[i, j]: the derivative of component i along axis j, of x, y, z
    curl = [g[2, 1] - g[1, 2], g[0, 2] - g[2, 0], g[1, 0] - g[0, 1]]
    strain, rotation = (g + g.swapaxes(0, 1)) / 2, (g - g.swapaxes(0, 1)) / 2
    expected = np.linalg.norm(curl, axis=0), ((rotation**2).sum((0, 1)) - (strain**2).sum((0, 1))) / 2
    for name, result, plane in zip(("vorticity", "Q"), results, expected, strict=True):
        np.testing.assert_allclose(result[k], plane, atol=1e-4 * np.abs(plane).max(), err_msg=name)


def draw(path, magnitude, q):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture without matplotlib: pip install matplotlib, or chunkflow's extra `plot`")
        return
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    extent, limit = (0, 2 * np.pi) * 2, np.abs(q).max()
    first = axes[0].imshow(magnitude, origin="lower", extent=extent, cmap="magma")
    second = axes[1].imshow(q, origin="lower", extent=extent, cmap="RdBu_r", vmin=-limit, vmax=limit)
    for ax, image, title in zip(axes, (first, second), ("vorticity magnitude", "Q-criterion"), strict=True):
        ax.set(title=title, xlabel="x", ylabel="y")
        figure.colorbar(image, ax=ax)
    figure.savefig(path, dpi=120)
    print(f"picture  {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=192, help="points along each axis (192)")
    parser.add_argument("--budget", default="100MB", help="device memory that the run may take (100MB)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dir", type=Path, help="for data, results and picture, replaced there; a new temporary one")
    args = parser.parse_args()
    if args.size < 2:
        parser.error("--size must be at least 2")
    folder = args.dir or Path(tempfile.mkdtemp(prefix="chunkflow-vorticity-"))
    folder.mkdir(parents=True, exist_ok=True)

    n, dx = args.size, 2 * np.pi / args.size
    paths = [folder / f"{name}.zarr" for name in "uvw"]
    make_field(paths, n, np.random.default_rng(3))

    options = {"depth": 1, "boundary": "periodic", "dx": dx}  # dx is passed on to the function
    options |= {"out": (folder / "vorticity.zarr", folder / "q.zarr"), "overwrite": True}
    options |= {"budget": args.budget, "device": args.device}
    print(cf.explain(cf.map_overlap, vorticity, *paths, **options), end="\n\n")
    with cf.Profile() as profile:
        results = cf.map_overlap(vorticity, *paths, progress=True, **options)
    print(profile.report, end="\n\n")

    fields = [zarr.open_array(str(path), mode="r") for path in paths]
    for k in (0, n // 3):
        check(fields, results, k, dx)
    magnitude, q = (np.asarray(result[n // 3]) for result in results)
    print(f"checked  planes 0 and {n // 3} agree with NumPy")
    print(f"plane    {n // 3}: mean vorticity {magnitude.mean():.4f}, in vortices {np.mean(q > 0):.1%} of it")
    print(
        f"results  {folder}/vorticity.zarr and {folder}/q.zarr"
        + ("" if args.dir else "; remove the folder when you are done")
    )
    draw(folder / "vorticity.png", magnitude, q)
    return 0


if __name__ == "__main__":
    sys.exit(main())

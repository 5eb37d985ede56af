"""Heat in a body that is too large for the budget, stepped forward in time out of core.

Each step needs all of the last one's result, so that a step at a time reads and writes the whole field. With
`iterations=`, `chunkflow.map_overlap` takes several steps a pass: blocks are read with a deeper halo, of which each
step consumes a layer. The field is the same to the bit, and moves that much less often. What is computed twice, where
blocks touch, is the price: it pays where data come from a disk or over a GPU's link, less so from the page cache.

The scheme is explicit in time and central in space (FTCS). The walls let no heat through, and the body consists of two
materials, one of which conducts better.

Run it as it is: it makes its own data, uses a GPU where there is one, checks the result and draws it.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import chunkflow as cf


def step(u, a):
    # A block with a layer of its neighbours around it, which is cut off afterwards; `a` comes without one.
    inner = u[1:-1, 1:-1, 1:-1]
    around = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1]
    around += u[1:-1, 1:-1, 2:]
    around += u[1:-1, 1:-1, :-2]
    around -= 6 * inner
    around *= a
    after = u.copy()
    after[1:-1, 1:-1, 1:-1] += around
    return after


STENCIL = {"depth": [1, 0], "boundary": ["nearest", "none"]}


def make_body(folder, n, rng):
    """Write the temperature, some hot balls, and the conductivity, layers of two materials; slab by slab."""
    u = np.lib.format.open_memmap(folder / "u.npy", "w+", np.float32, (n, n, n))
    a = np.lib.format.open_memmap(folder / "a.npy", "w+", np.float32, (n, n, n))
    x = np.arange(n) / n
    centres = rng.uniform(0.1, 0.9, (12, 3))
    for k in range(n):
        distance = (x[k] - centres[:, 0, None, None]) ** 2
        distance = distance + (x[:, None] - centres[:, 1, None, None]) ** 2 + (x - centres[:, 2, None, None]) ** 2
        u[k] = distance.min(0) < 0.09**2
        a[k] = np.where((6 * (x + x[:, None] / 2 + x[k] / 3)).astype(int) % 2, 0.15, 0.02)
    return folder / "u.npy", folder / "a.npy"


def stepped_by_numpy(u, a, steps):
    """The same in a loop over the whole array."""
    for _ in range(steps):
        u = step(np.pad(u, 1, mode="edge"), a)[1:-1, 1:-1, 1:-1]
    return u


def check(u, a, result, k, steps):
    """Compare plane `k` with NumPy's, from the planes that so many steps can reach it from."""
    slab = slice(max(0, k - steps), k + steps + 1)
    expected = stepped_by_numpy(np.asarray(u[slab]), np.asarray(a[slab]), steps)[k - slab.start]
    np.testing.assert_allclose(result[k], expected, atol=1e-5)


def draw(path, before, after):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture without matplotlib: pip install matplotlib, or chunkflow's extra `plot`")
        return
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for ax, plane, title in zip(axes, (before, after), ("temperature", "afterwards"), strict=True):
        image = ax.imshow(plane, origin="lower", cmap="inferno", vmin=0, vmax=1)
        ax.set(title=title, xlabel="x", ylabel="y")
        figure.colorbar(image, ax=ax)
    figure.savefig(path, dpi=120)
    print(f"picture  {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="points along each axis (256)")
    parser.add_argument("--steps", type=int, default=40, help="steps in time (40)")
    parser.add_argument("--together", type=int, default=4, help="of them, how many in a pass (4); 0: as the model says")
    parser.add_argument("--budget", default="64MB", help="device memory that the run may take (64MB)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dir", type=Path, help="for data, results and picture, replaced there; a new temporary one")
    args = parser.parse_args()
    if args.size < 2 or args.steps < 2:
        parser.error("--size and --steps must be at least 2")
    if args.together < 0:
        parser.error("--together must be at least 0")
    folder = args.dir or Path(tempfile.mkdtemp(prefix="chunkflow-heat-"))
    folder.mkdir(parents=True, exist_ok=True)
    paths = make_body(folder, args.size, np.random.default_rng(3))
    u, a = (np.load(path, mmap_mode="r") for path in paths)

    small = tuple(np.ascontiguousarray(x[::4, ::4, ::4]) for x in (u, a))
    got = cf.map_overlap(step, *small, **STENCIL, iterations=args.steps, device=args.device)
    np.testing.assert_allclose(got, stepped_by_numpy(*small, args.steps), atol=1e-5)
    print(f"checked  every fourth point: {args.steps} steps agree with NumPy's loop")

    options = STENCIL | {"iterations": args.steps, "budget": args.budget, "device": args.device}
    print(cf.iteration_plan(step, *paths, **options, steps_per_pass=args.together or None), end="\n\n")
    results = {}
    for name, steps in (("one step a pass", 1), ("several", args.together or None)):
        out = folder / f"{name.split()[0]}.npy"
        begin = time.perf_counter()
        with cf.Profile() as profile:
            results[name] = cf.map_overlap(step, *paths, **options, steps_per_pass=steps, out=out, overwrite=True)
        moved = sum(stage.nbytes for stage in profile.report.stages if stage.name in ("read", "write"))
        print(
            f"{name:<16} {profile.report.runs:3} passes, {time.perf_counter() - begin:6.2f} s, "
            f"{moved / 1e9:6.3f} GB read and written"
        )
    first, second = results.values()
    k = args.size // 3
    for plane in range(args.size):
        np.testing.assert_array_equal(first[plane], second[plane])
    check(u, a, second, k, args.steps)
    print(f"checked  both are the same to the bit, and plane {k} agrees with NumPy")
    print(f"results  {folder}/several.npy" + ("" if args.dir else "; remove the folder when you are done"))
    draw(folder / "heat.png", u[k], second[k])
    return 0


if __name__ == "__main__":
    sys.exit(main())

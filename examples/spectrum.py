"""Energy spectrum of a turbulent velocity field that is too large for the budget.

The field is random, periodic and free of divergence, with the spectrum of Kolmogorov's (1941) inertial range, in which
the energy falls with the wavenumber to the power of -5/3. It is made by inverse Fourier transforms in three dimensions,
and measured by forward ones: `chunkflow.fft` makes each in the few passes that the budget allows.

Run it as it is: it makes its own data, uses a GPU where there is one, checks the result and draws it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import chunkflow as cf


def wavenumbers(n, region, like):
    """Wavenumbers along z, y and x of part of a half spectrum, shaped to broadcast."""
    full = np.fft.fftfreq(n, 1 / n).astype("f4")
    kz, ky, kx = full[region[0]], full[region[1]], np.arange(n // 2 + 1, dtype="f4")[region[2]]
    return [np.asarray(k, like=like) for k in (kz[:, None, None], ky[:, None], kx)]


def make_field(paths, n, folder, rng, **options):
    """Write u, v and w: random waves across their wavevectors, with energies that fall as k^(-5/3)."""
    shape, chunks = (n, n, n // 2 + 1), (min(n, 16), n, n // 2 + 1)
    waves = [folder / f"waves-{path.name}" for path in paths]
    arrays = [zarr.create_array(str(p), shape=shape, chunks=chunks, dtype="c8", overwrite=True) for p in waves]
    for start in range(0, n, chunks[0]):
        region = (slice(start, min(start + chunks[0], n)), slice(None), slice(None))
        kz, ky, kx = wavenumbers(n, region, np.empty(0))
        square = kx**2 + ky**2 + kz**2
        within = (square > 0) & (square < (n / 3) ** 2)
        square[~within] = 1
        # A shell of radius k holds about 4 pi k^2 waves: -5/3 of energy is -11/3 for each of them.
        parts = (3, *square.shape)
        slab = rng.standard_normal(parts, np.float32) + 1j * rng.standard_normal(parts, np.float32)
        slab *= n**3 * square ** (-11 / 12) * within
        slab -= (slab[0] * kx + slab[1] * ky + slab[2] * kz) / square * np.stack(np.broadcast_arrays(kx, ky, kz))
        slab[..., 0] *= 2**0.5  # of the waves of that plane and their mirror images only what they share remains
        for array, part in zip(arrays, slab, strict=True):
            array[region[0]] = part
    for wave, path in zip(waves, paths, strict=True):
        cf.fft.irfftn(wave, s=(n, n, n), axes=(0, 1, 2), out=path, chunks=min(n, 32), overwrite=True, **options)


def shells(transform, n, budget, device):
    """Energy of each shell of wavenumbers, block by block."""
    energy = np.zeros(n)
    for chunk in cf.chunks(transform, budget=budget, device=device):
        kz, ky, kx = wavenumbers(n, chunk.region, chunk.data)
        shell = np.rint(np.sqrt(kx**2 + ky**2 + kz**2)).astype("i4")
        twice = 2 - ((kx == 0) | (2 * kx == n))  # the other half mirrors this one, but for two of its planes
        found = np.bincount(shell.ravel(), weights=(twice * np.abs(chunk.data) ** 2).ravel(), minlength=n)
        energy += (found.get() if hasattr(found, "get") else found)[:n]
    return energy / 2 / float(n) ** 6


def draw(path, k, energy, power, plane):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture without matplotlib: pip install matplotlib, or chunkflow's extra `plot`")
        return
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(plane, origin="lower", extent=(0, 2 * np.pi) * 2, cmap="RdBu_r")
    left.set(title="velocity along x", xlabel="x", ylabel="y")
    figure.colorbar(image, ax=left)
    right.loglog(k, energy, "o", ms=3, label=f"measured: $k^{{{power:.2f}}}$")
    right.loglog(k, energy[3] * (k / k[3]) ** (-5 / 3), "k--", label="$k^{-5/3}$")
    right.set(title="energy spectrum", xlabel="wavenumber k", ylabel="E(k)")
    right.legend()
    figure.savefig(path, dpi=120)
    print(f"picture  {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=160, help="points along each axis, even (160)")
    parser.add_argument("--budget", default="8MB", help="device memory that a pass may take (8MB)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dir", type=Path, help="for data, results and picture, replaced there; a new temporary one")
    args = parser.parse_args()
    if args.size < 128 or args.size % 2:
        parser.error("--size must be even and at least 128")
    folder = args.dir or Path(tempfile.mkdtemp(prefix="chunkflow-spectrum-"))
    folder.mkdir(parents=True, exist_ok=True)

    n, options = args.size, {"budget": args.budget, "device": args.device}
    paths = [folder / f"{name}.zarr" for name in "uvw"]
    make_field(paths, n, folder, np.random.default_rng(11), **options)

    print(cf.fft.plan(cf.fft.rfftn, paths[0], out=folder / "transform.npy", overwrite=True, **options), end="\n\n")
    energy, squares = np.zeros(n), 0.0
    for path in paths:
        transform = cf.fft.rfftn(path, out=folder / "transform.npy", overwrite=True, **options)
        energy += shells(transform, n, **options)
        squares += float(cf.norm(path, **options)) ** 2

    k = np.arange(1, n // 3)
    spectrum = energy[1 : n // 3]
    inner = (k >= 3) & (k < n // 4)
    power = np.polyfit(np.log(k[inner]), np.log(spectrum[inner]), 1, w=k[inner])[0]  # larger shells scatter less
    np.testing.assert_allclose(power, -5 / 3, atol=0.05)
    np.testing.assert_allclose(energy.sum(), squares / 2 / n**3, rtol=1e-4)
    print(f"checked  the spectrum falls as k^{power:.3f}; its sum is the mean energy (Parseval), {energy.sum():.4g}")
    print(f"results  {folder}" + ("" if args.dir else "; remove the folder when you are done"))
    draw(folder / "spectrum.png", k, spectrum, power, zarr.open_array(str(paths[0]), mode="r")[n // 2])
    return 0


if __name__ == "__main__":
    sys.exit(main())

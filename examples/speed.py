"""Speed of a velocity field that is too large for the budget, from three arrays into a fourth.

Run it as it is: it makes its own data, uses a GPU where there is one, and checks the result.
"""

import tempfile
from pathlib import Path

import numpy as np

import chunkflow as cf

SHAPE = (320, 256, 256)  # 84 MB for each component; any size works the same


def speed(u, v, w):
    # u, v and w are blocks: NumPy arrays on the CPU, CuPy arrays on a GPU. NumPy's functions take both.
    return np.sqrt(u * u + v * v + w * w)


def main():
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.npy" for name in "uvw"]
        for path in paths:
            np.save(path, rng.standard_normal(SHAPE, np.float32))

        # 336 MB go through 150 MB. Nothing else is chosen by hand.
        with cf.Profile() as profile:
            cf.map(speed, *paths, out=Path(folder) / "speed.npy", budget="150MB", progress=True)
        print(profile.report)

        u, v, w, result = (np.load(path, mmap_mode="r") for path in [*paths, Path(folder) / "speed.npy"])
        np.testing.assert_allclose(result, speed(u, v, w), rtol=1e-6)
        print(f"the speed of {result.size:,} points agrees with NumPy's, its mean is {result.mean():.4f}")
        del u, v, w, result  # let the files go before their folder does


if __name__ == "__main__":
    main()

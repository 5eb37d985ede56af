"""A loop of one's own over an array's blocks: its mean and standard deviation in one pass.

`chunkflow.chunks` hands out blocks that are on the device already, while it reads the next ones. The
moments of the blocks are merged pairwise, as Chan, Golub and LeVeque (1983) do, which loses no digits.

Run it as it is: it makes its own data, uses a GPU where there is one, and checks the result.
"""

import tempfile
from pathlib import Path

import numpy as np

import chunkflow as cf

SHAPE = (512, 256, 256)  # 134 MB; any size works the same


def main():
    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "volume.npy"
        np.save(path, 1000 + rng.standard_normal(SHAPE, np.float32))

        count, mean, squares = 0, 0.0, 0.0  # squares: sum of the squared distances from the mean
        for chunk in cf.chunks(path, budget="100MB"):
            block = chunk.data  # a NumPy or a CuPy array, valid until the loop goes on
            n = block.size
            m = float(np.mean(block, dtype=np.float64))
            s = float(np.var(block, dtype=np.float64)) * n
            print(f"block {chunk.index} at {chunk.region}: mean {m:.4f}")
            distance = m - mean
            mean += distance * n / (count + n)
            squares += s + distance**2 * count * n / (count + n)
            count += n

        whole = np.load(path, mmap_mode="r")
        assert count == whole.size
        np.testing.assert_allclose(mean, whole.mean(dtype=np.float64), rtol=1e-12)
        np.testing.assert_allclose((squares / count) ** 0.5, whole.std(dtype=np.float64), rtol=1e-7)
        print(f"mean {mean:.6f}, standard deviation {(squares / count) ** 0.5:.6f}: as NumPy has them")
        del whole  # let the file go before its folder does


if __name__ == "__main__":
    main()

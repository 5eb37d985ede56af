"""
A pyramid for a viewer
======================

A viewer of large images wants the image at several sizes. `chunkflow.coarsen` halves it, and all levels are stored
from one call that reads the image once.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import zarr

import chunkflow as cf

rng = np.random.default_rng(9)
n = 1024
y, x = np.mgrid[: 8 : n * 1j, : 8 : n * 1j]
image = np.sin(x * y) + np.sin(3 * x + np.cos(2 * y)) + 0.5 * rng.standard_normal((n, n))
folder = tempfile.TemporaryDirectory()
cf.copy(image.astype("f4"), cf.NewArray(f"{folder.name}/level0.zarr", chunks=(256, 256)))

# %%
# Each level is the mean of boxes of the image:

x = cf.open(f"{folder.name}/level0.zarr")
levels = [cf.coarsen(np.mean, x, {0: 2**i, 1: 2**i}) for i in (1, 2, 3, 4)]
cf.store(levels, [f"{folder.name}/level{i}.zarr" for i in (1, 2, 3, 4)], budget="4MB")

figure, axes = plt.subplots(1, 5, figsize=(11, 2.9), layout="constrained")
for i, ax in enumerate(axes):
    level = zarr.open_array(f"{folder.name}/level{i}.zarr", mode="r")
    ax.imshow(level[: level.shape[0] // 2, : level.shape[1] // 2], cmap="viridis", vmin=-2, vmax=2)
    ax.set_title(f"level {i}: {level.shape[0]} x {level.shape[1]}", fontsize=9)
    ax.set_axis_off()
plt.show()

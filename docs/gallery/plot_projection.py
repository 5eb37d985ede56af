"""
Maximum intensity projections
=============================

The brightest voxel along each line of sight shows filaments in a volume. Three projections along three axes are asked
for together, so the volume is read once.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

rng = np.random.default_rng(2)
shape = (64, 160, 224)
volume = rng.poisson(8, shape).astype("u2")
for _ in range(12):  # filaments: random walks with a bright core
    place, step = rng.uniform(0, 1, 3) * shape, rng.standard_normal(3)
    for _ in range(400):
        step = 0.95 * step + 0.3 * rng.standard_normal(3)
        place = (place + step / np.linalg.norm(step)) % shape
        k, j, i = place.astype(int)
        volume[k, j, i] += 60
        volume[k, j - 1 : j + 1, i - 1 : i + 1] += 30
folder = tempfile.TemporaryDirectory()
np.save(f"{folder.name}/volume.npy", volume)

# %%
# Three results, one read:

x = cf.open(f"{folder.name}/volume.npy")
top, front, side = cf.compute(x.max(axis=0), x.max(axis=1), x.max(axis=2), budget="2MB")

figure = plt.figure(figsize=(8.5, 6), layout="constrained")
grid = {"width_ratios": [shape[2], shape[0]], "height_ratios": [shape[1], shape[0]]}
axes = figure.subplot_mosaic([["top", "side"], ["front", "."]], gridspec_kw=grid)
for name, image, labels in [("top", top, "xy"), ("front", front, "xz"), ("side", side.T, "zy")]:
    axes[name].imshow(image, cmap="inferno", vmax=120)
    axes[name].set(title=f"along {({*'xyz'} - {*labels}).pop()}", xlabel=labels[0], ylabel=labels[1])
plt.show()

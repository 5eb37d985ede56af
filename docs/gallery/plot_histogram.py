"""
Histogram of a volume
=====================

A porous rock in a tomogram has two grey values, pore and grain, blurred by noise. One pass counts all voxels, and
Otsu's method finds the threshold between the two from the counts alone.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import ndimage

import chunkflow as cf

rng = np.random.default_rng(4)
rough = ndimage.gaussian_filter(rng.standard_normal((80, 128, 128)), 4)
grains = rough > np.quantile(rough, 0.3)
volume = np.where(grains, 140, 80) + 14 * rng.standard_normal(rough.shape)
volume = volume.clip(0, 255).astype("u1")

# %%
# The counts, and the threshold that separates the two classes best:

counts, edges = cf.histogram(volume, bins=256, range=(0, 256), budget="1MB")
grey = edges[:-1]
below = counts.cumsum()
first = (counts * grey).cumsum()
with np.errstate(invalid="ignore", divide="ignore"):
    between = (first[-1] * below / below[-1] - first) ** 2 / (below * (below[-1] - below))
threshold = grey[np.nanargmax(between)]

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
left.imshow(volume[40], cmap="gray")
left.contour(volume[40] > threshold, [0.5], colors="tab:red", linewidths=0.5)
left.set(title="a slice, and the threshold as a line", xlabel="x [voxels]", ylabel="y [voxels]")
right.stairs(counts, edges, fill=True, alpha=0.6)
right.axvline(threshold, color="tab:red", label=f"threshold {threshold:.0f}")
right.set(title=f"porosity {below[int(threshold)] / volume.size:.2f}", xlabel="grey value", ylabel="voxels")
right.legend()
plt.show()

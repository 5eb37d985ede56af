"""
Background subtraction and label statistics
===========================================

The background of a stack is the median of its frames, and what is brighter are cells. `chunkflow.label_statistics`
gives size, brightness and centre of every label in one pass over image and labels.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import ndimage

import chunkflow as cf

rng = np.random.default_rng(3)
frames, side = 16, 256
y, x = np.mgrid[:side, :side]
shade = 40 + 30 * np.exp(-((y - 90) ** 2 + (x - 160) ** 2) / 9000)  # uneven light
stack = rng.poisson(shade, (frames, side, side)).astype("f4")
for t in range(frames):
    for _ in range(14):  # cells that are in one frame only
        cy, cx, radius = *rng.uniform(0, side, 2), rng.uniform(4, 9)
        stack[t] += rng.uniform(50, 120) * ((y - cy) ** 2 + (x - cx) ** 2 < radius**2)

# %%
# The difference from the background is an expression. It is computed where it is asked for.

image = cf.open(stack)
background = np.median(image, axis=0).compute(budget="8MB")
cells = image - background
bright = (cells > 30).compute(budget="8MB")

# %%
# SciPy finds the labels of this small stack. Their statistics stream:

within_a_frame = np.zeros((3, 3, 3))
within_a_frame[1] = 1
labels, number = ndimage.label(ndimage.binary_opening(bright, np.ones((1, 3, 3))), within_a_frame)
stats = cf.label_statistics(cells, labels, ["count", "mean", "center_of_mass"], background=0, budget="16MB")

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.4), layout="constrained")
left.imshow(stack[5], cmap="gray")
here = np.rint(stats.center_of_mass[:, 0]) == 5
left.plot(stats.center_of_mass[here, 2], stats.center_of_mass[here, 1], "r+", ms=10)
left.set(title="frame 5 and the centres of its cells", xlabel="x [pixels]", ylabel="y [pixels]")
right.scatter(stats.count, stats.mean, s=12)
right.set(title=f"{number} cells", xlabel="area [pixels]", ylabel="mean brightness [counts]")
plt.show()

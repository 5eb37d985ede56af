"""
Moving median of a microscopy stack
===================================

A detector with hot pixels leaves single bright points in each frame. A median over three by three pixels and three
frames removes them and keeps edges; windows are a view, and their median is a stencil.
"""

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

rng = np.random.default_rng(1)
frames, side = 24, 192
y, x = np.mgrid[:side, :side]
stack = np.zeros((frames, side, side), "f4")
for _ in range(40):  # cells that drift
    cy, cx, radius = *rng.uniform(10, side - 10, 2), rng.uniform(4, 9)
    for t in range(frames):
        stack[t] += 60 * ((y - cy - 0.3 * t) ** 2 + (x - cx) ** 2 < radius**2)
noisy = rng.poisson(stack + 10).astype("f4")
noisy[rng.random(stack.shape) < 0.03] = 400  # hot pixels

# %%
# Padding keeps the shape. Nothing is computed before ``compute``:

padded = cf.pad(cf.open(noisy), 1, mode="edge")
windows = cf.sliding_window_view(padded, (3, 3, 3))
clean = np.median(windows, axis=(-3, -2, -1)).compute(budget="16MB")

figure, axes = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained", sharey=True)
for ax, image, title in zip(axes, (noisy[12], clean[12]), ("as recorded", "moving median"), strict=True):
    shown = ax.imshow(image, cmap="gray", vmin=0, vmax=160)
    ax.set(title=title, xlabel="x [pixels]")
axes[0].set_ylabel("y [pixels]")
figure.colorbar(shown, ax=axes, label="counts")
plt.show()

"""
A map of what is rare
=====================

How strong is the wind that each place sees on one day in a hundred? `chunkflow.quantile` is exact, with NumPy's values,
along lines that need not fit the budget.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

rng = np.random.default_rng(5)
days, ny, nx = 1500, 40, 64
y, x = np.mgrid[:ny, :nx]
scale = 5 + 3 * np.exp(-(((y - 12) / 8) ** 2 + ((x - 40) / 12) ** 2)) + 2 * (y / ny)
wind = (scale * rng.weibull(1.8, (days, ny, nx))).astype("f4")  # wind speeds are Weibull's, as a rule
folder = tempfile.TemporaryDirectory()
cf.copy(wind, cf.NewArray(f"{folder.name}/wind.zarr", chunks=(250, 20, 32)))

# %%
# Three quantiles of each place, and how often a storm comes:

usual, strong, rare = cf.quantile(f"{folder.name}/wind.zarr", [0.5, 0.9, 0.99], axis=0, budget="8MB")
storms = cf.mean(cf.open(f"{folder.name}/wind.zarr") > 17, axis=0).compute(budget="8MB")

figure, axes = plt.subplots(2, 2, figsize=(9.5, 6), layout="constrained", sharex=True, sharey=True)
titles = "median", "90 % of days are below", "99 % of days are below"
for ax, field, title in zip(axes.flat, (usual, strong, rare), titles, strict=False):
    figure.colorbar(ax.imshow(field, origin="lower", cmap="YlGnBu"), ax=ax, label="m/s")
    ax.set_title(title)
figure.colorbar(axes[1, 1].imshow(100 * storms, origin="lower", cmap="OrRd"), ax=axes[1, 1], label="% of days")
axes[1, 1].set_title("above 17 m/s")
for ax in axes[1]:
    ax.set_xlabel("x [cells]")
for ax in axes[:, 0]:
    ax.set_ylabel("y [cells]")
plt.show()

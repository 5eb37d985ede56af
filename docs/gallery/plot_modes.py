"""
Modes of a flow by a Gram matrix
================================

A snapshot of a flow has many points, and there are few snapshots. `chunkflow.gram` reads the tall matrix once and gives
the small matrix of all inner products, whose eigenvectors NumPy finds: the proper orthogonal decomposition.
"""

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

rng = np.random.default_rng(6)
ny, nx, snapshots = 96, 240, 64
y, x = np.mgrid[-1 : 1 : ny * 1j, 0 : 6 : nx * 1j]
phase = 2 * np.pi * np.arange(snapshots) / 16
wake = np.exp(-4 * y[..., None] ** 2) * np.sin(3 * x[..., None] - phase) * (1 - np.exp(-x[..., None]))
wake += 0.4 * y[..., None] * np.exp(-6 * y[..., None] ** 2) * np.sin(6 * x[..., None] - 2 * phase)
matrix = (wake + 0.1 * rng.standard_normal(wake.shape)).reshape(ny * nx, snapshots)

# %%
# One read for the inner products, and one for the modes:

x = cf.open(matrix)
fluctuation = x - x.mean(axis=1, keepdims=True)
gram = cf.gram(fluctuation).compute(budget="4MB")
energy, vectors = np.linalg.eigh(gram)
energy, vectors = energy[::-1], vectors[:, ::-1]
modes = cf.matmul(fluctuation, vectors[:, :4] / np.sqrt(energy[:4])).compute(budget="4MB")

figure = plt.figure(figsize=(9.5, 5), layout="constrained")
axes = figure.subplot_mosaic([["0", "1", "energy"], ["2", "3", "energy"]])
for i in range(4):
    axes[str(i)].imshow(modes[:, i].reshape(ny, nx), cmap="RdBu_r", aspect="auto", extent=(0, 6, -1, 1))
    axes[str(i)].set_title(f"mode {i + 1}")
axes["energy"].semilogy(range(1, 13), energy[:12] / energy.sum(), "o-")
axes["energy"].set(title="share of the energy", xlabel="mode")
plt.show()

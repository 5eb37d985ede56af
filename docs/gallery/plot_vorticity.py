"""
Vorticity of a velocity field
=============================

The curl of a flow needs the neighbours of each point, so it is a stencil: `chunkflow.map_overlap` with a depth of one.
The three components lie in zarr arrays, and the run gets a budget that holds a part of them.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

n = 96
dx = 2 * np.pi / n
z, y, x = np.meshgrid(*[np.arange(n) * dx] * 3, indexing="ij", sparse=True)
fields = [np.zeros((n, n, n), "f4") for _ in range(3)]
for k, (p, q, r) in {1: (0.3, 1.1, 2.0), 2: (2.2, 0.4, 1.7), 4: (0.9, 2.8, 0.1)}.items():  # an ABC flow of three sizes
    fields[0] += k ** (-5 / 6) * (np.sin(k * z + p) + np.cos(k * y + q))
    fields[1] += k ** (-5 / 6) * (np.sin(k * x + r) + np.cos(k * z + p))
    fields[2] += k ** (-5 / 6) * (np.sin(k * y + q) + np.cos(k * x + r))

folder = tempfile.TemporaryDirectory()
paths = [f"{folder.name}/{name}.zarr" for name in "uvw"]
for path, field in zip(paths, fields, strict=True):
    cf.copy(field, path)

# %%
# The function gets blocks with a halo, and gives the whole block back. What it gives for the halo is cut off.


def vorticity(u, v, w):
    def slope(a, axis):
        return (np.roll(a, -1, axis) - np.roll(a, 1, axis)) / (2 * dx)

    curl = slope(w, 1) - slope(v, 0), slope(u, 0) - slope(w, 2), slope(v, 2) - slope(u, 1)
    return np.sqrt(sum(c * c for c in curl))


omega = cf.map_overlap(vorticity, *paths, depth=1, boundary="periodic", budget="16MB")

# %%
# A plane of the result:

figure, ax = plt.subplots(figsize=(6, 5), layout="constrained")
image = ax.imshow(omega[n // 3], origin="lower", extent=(0, 2 * np.pi) * 2, cmap="magma")
figure.colorbar(image, label="vorticity [1/s]")
ax.set(xlabel="x [m]", ylabel="y [m]", title="Vorticity in one plane")
plt.show()

"""
Heat equation by an iterated stencil
====================================

Each step of an explicit scheme replaces a temperature by a mean of its neighbours. `iterations=` takes several steps
in each pass over the array, so that it is read and written fewer times than there are steps.
"""

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

n = 240
plate = np.zeros((n, n), "f4")
plate[36:72, 36:204] = 100  # a hot bar
plate[120:204, 72:96] = 100
plate[132:156, 144:198] = -50  # a cold plate


def step(t, rate=0.24):
    around = np.roll(t, 1, 0) + np.roll(t, -1, 0) + np.roll(t, 1, 1) + np.roll(t, -1, 1)
    return t + np.float32(rate) * (around - 4 * t)


# %%
# The plan says how many steps each pass takes:

options = {"depth": 1, "boundary": "nearest", "budget": "1MB"}
print(cf.iteration_plan(step, plate, iterations=200, **options))

# %%
# The plate at the beginning, after 200 steps and after 1000:

early = cf.map_overlap(step, plate, iterations=200, **options)
late = cf.map_overlap(step, early, iterations=800, **options)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained", sharey=True)
for ax, field, title in zip(axes, (plate, early, late), ("0 steps", "200 steps", "1000 steps"), strict=True):
    image = ax.imshow(field, cmap="coolwarm", vmin=-100, vmax=100)
    ax.set(title=title, xlabel="x [mm]")
axes[0].set_ylabel("y [mm]")
figure.colorbar(image, ax=axes, label="temperature [°C]")
plt.show()

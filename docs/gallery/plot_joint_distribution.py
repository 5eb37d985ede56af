"""
Joint distribution of two fields
================================

How two variables of a simulation go together is a histogram of pairs. `chunkflow.histogram2d` counts them in one pass
over both, and logarithms of what it counts show what is rare.
"""

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

rng = np.random.default_rng(12)
shape = (64, 128, 128)
height = np.linspace(0, 1, shape[0])[:, None, None]
temperature = 300 - 60 * height + 3 * rng.standard_normal(shape)
humidity = 100 * np.exp(-2.5 * height) * rng.beta(4, 2, shape)

# %%
# Flat views of lazy arrays are read as the arrays are:

pairs = cf.open(temperature).ravel(), cf.open(humidity).ravel()
counts, kelvin, percent = np.histogram2d(*pairs, bins=(120, 100), range=[(230, 310), (0, 100)])
counts = counts.compute(budget="8MB")

figure, ax = plt.subplots(figsize=(6.5, 4.6), layout="constrained")
image = ax.pcolormesh(kelvin, percent, np.ma.masked_less(counts.T, 1), norm="log", cmap="cividis")
figure.colorbar(image, label="cells")
ax.set(title="Temperature and humidity", xlabel="temperature [K]", ylabel="relative humidity [%]")
plt.show()

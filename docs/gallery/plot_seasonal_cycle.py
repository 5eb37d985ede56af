"""
A seasonal cycle by groups
==========================

The mean and the spread of each month of the year, over all years. `chunkflow.groupby_reduce` takes several functions
of all groups in one read; quantiles of groups are among them.
"""

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

rng = np.random.default_rng(10)
time = np.arange("1990-01-01", "2010-01-01", dtype="M8[D]")
day = (time - time.astype("M8[Y]")).astype(int)
summer = -np.cos(2 * np.pi * (day - 20) / 365.25)[:, None]
stations = np.linspace(2, 14, 60)  # how far summer is from winter, inland more
spread = 3.5 - 1.2 * summer
temperature = 9 + stations * summer + spread * rng.standard_normal((len(time), 60))

# %%
# A label for each day, and one read of the temperatures:

month = (time.astype("M8[M]").astype(int) % 12) + 1
functions = ("mean", "min", "max")
(mean, lowest, highest), months = cf.groupby_reduce(temperature, month, func=functions, axis=0, budget="8MB")

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
for station, color in [(0, "tab:blue"), (59, "tab:red")]:
    left.fill_between(months, lowest[station], highest[station], color=color, alpha=0.2, lw=0)
    left.plot(months, mean[station], "o-", color=color, ms=4, label="coast" if station == 0 else "inland")
left.set(title="mean, lowest and highest day", xlabel="month", ylabel="temperature [°C]")
left.legend()
image = right.imshow(mean, aspect="auto", origin="lower", cmap="RdYlBu_r", extent=(0.5, 12.5, 0, 60))
figure.colorbar(image, label="°C")
right.set(title="mean of each station", xlabel="month", ylabel="station, from the coast inland")
plt.show()

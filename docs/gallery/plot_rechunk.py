"""
Why chunks matter: a map and a time series
==========================================

A store that was written day by day gives a map at once and a time series slowly, because the series needs every chunk.
`chunkflow.rechunk` writes the array with other chunks; the times below were measured when this page was built.
"""

import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np
import zarr

import chunkflow as cf

days, ny, nx = 365, 128, 128
field = np.random.default_rng(8).standard_normal((days, ny, nx), "f4")
folder = tempfile.TemporaryDirectory()
cf.copy(field, cf.NewArray(f"{folder.name}/maps.zarr", chunks=(1, ny, nx)))

# %%
# The plan says what the copy costs within the budget, before it is made:

print(cf.rechunk_plan(f"{folder.name}/maps.zarr", (days, 16, 16), "16MB"))
cf.rechunk(f"{folder.name}/maps.zarr", (days, 16, 16), f"{folder.name}/series.zarr", budget="16MB")
cf.rechunk(f"{folder.name}/maps.zarr", (48, 48, 48), f"{folder.name}/boxes.zarr", budget="16MB")

# %%
# What it takes to read one map, and one series, from each:


def seconds(read):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        read()
        times.append(time.perf_counter() - start)
    return min(times)


names = ["maps", "boxes", "series"]
arrays = [zarr.open_array(f"{folder.name}/{name}.zarr", mode="r") for name in names]
a_map = [1000 * seconds(lambda a=a: a[100]) for a in arrays]
a_series = [1000 * seconds(lambda a=a: a[:, 50, 50]) for a in arrays]

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
place = np.arange(3)
ax.bar(place - 0.2, a_map, 0.4, label="one map")
ax.bar(place + 0.2, a_series, 0.4, label="one time series")
ax.set_xticks(place, [f"{name}\n{a.chunks}" for name, a in zip(names, arrays, strict=True)])
ax.set(yscale="log", ylabel="milliseconds", title="Time to read, by the chunks of the store")
ax.legend()
plt.show()

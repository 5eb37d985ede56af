"""
Climatology and anomalies with xarray
=====================================

Four years of daily temperatures lie in a store. xarray's own ``groupby`` gives the mean of each month, and the
anomalies are an expression that runs when the picture asks for a line of it.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import chunkflow as cf

rng = np.random.default_rng(0)
time = np.arange("2000-01-01", "2004-01-01", dtype="M8[D]").astype("M8[ns]")
lat, lon = np.linspace(-87.5, 87.5, 36), np.arange(0.0, 360, 5)
days = np.arange(len(time))[:, None, None]
season = np.sin(np.radians(lat))[:, None] * -15 * np.cos(2 * np.pi * days / 365.25)
weather = 2 * rng.standard_normal((len(time), 1, 1)) + rng.standard_normal((len(time), len(lat), len(lon)))
values = 300 - 45 * np.sin(np.radians(lat))[:, None] ** 2 + season + weather
air = xr.DataArray(
    values.astype("f4"), dims=("time", "lat", "lon"), coords={"time": time, "lat": lat, "lon": lon}, name="air"
)
folder = tempfile.TemporaryDirectory()
air.to_dataset().to_zarr(f"{folder.name}/air.zarr", consolidated=False)

# %%
# The store is opened without a read. Each ``compute`` streams it within its budget:

run = {"budget": "16MB"}
x = cf.open(xr.open_zarr(f"{folder.name}/air.zarr", chunks=None, consolidated=False).air)
months = x.groupby("time.month").mean().compute(**run)
spread = cf.nanstd(x, dim="time").compute(**run)
anomaly = x.groupby("time.month") - months
place = anomaly.sel(lat=47.5, lon=10).compute(**run)

# %%
# A month, the spread of all days, and one place through the years:

figure = plt.figure(figsize=(9, 6), layout="constrained")
axes = figure.subplot_mosaic([["january", "spread"], ["place", "place"]])
months.sel(month=1).plot(ax=axes["january"], cmap="RdYlBu_r", cbar_kwargs={"label": "K"})
spread.plot(ax=axes["spread"], cmap="viridis", cbar_kwargs={"label": "K"})
axes["place"].plot(place.time, place, lw=0.5)
axes["january"].set_title("mean of January")
axes["spread"].set_title("standard deviation of all days")
axes["place"].set(title="anomaly at 47.5 N, 10 E", ylabel="K")
plt.show()

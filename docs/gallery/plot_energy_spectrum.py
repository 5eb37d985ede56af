"""
Energy spectrum of a turbulent field
====================================

The Fourier transform of a periodic field gives the energy of each wave, and a sum over shells of equal wavenumber gives
its spectrum. `chunkflow.fft` transforms the field in as many passes as the budget asks for.
"""

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

n = 96
rng = np.random.default_rng(0)
k = np.fft.fftfreq(n, 1 / n)
half = np.arange(n // 2 + 1)
length = np.sqrt(k[:, None, None] ** 2 + k[:, None] ** 2 + half**2)
length[0, 0, 0] = np.inf
field = np.fft.irfftn(np.fft.rfftn(rng.standard_normal((n, n, n))) * length ** (-11 / 6)).astype("f4")
field /= field.std()  # energy falls as k^(-5/3)

# %%
# The transform of half of the waves, the rest of which are their mirror images:

waves = cf.fft.rfftn(field, budget="8MB")
energy = abs(waves / field.size) ** 2
energy[..., 1:-1] *= 2

# %%
# Each shell is a bin, and the energies are weights:

length[0, 0, 0] = 0
shell = np.rint(length).astype("i4")
shells = cf.bincount(shell.ravel(), weights=energy.ravel(), budget="2MB")

figure, ax = plt.subplots(figsize=(6, 4.5), layout="constrained")
wavenumber = np.arange(1, n // 2)
ax.loglog(wavenumber, shells[1 : n // 2], "o-", ms=4, label="spectrum")
ax.loglog(wavenumber, shells[4] * (wavenumber / 4) ** (-5 / 3), "k--", lw=1, label="$k^{-5/3}$")
ax.set(xlabel="wavenumber k", ylabel="energy E(k)", title="Energy spectrum")
ax.legend()
plt.show()

"""
Deconvolution by Fourier transforms
===================================

A microscope blurs what it sees. Where the blur is known, Wiener's filter divides by its transform, and
`chunkflow.fft` makes the transforms of images that are larger than the budget.
"""

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

rng = np.random.default_rng(7)
n = 512
y, x = np.mgrid[:n, :n]
image = np.zeros((n, n))
for _ in range(150):
    cy, cx, radius = *rng.uniform(0, n, 2), rng.uniform(2, 9)
    distance = np.hypot(y - cy, x - cx)
    image += (distance < radius) * (distance > radius - 2)  # rings
blur = np.exp(-((y - n // 2) ** 2 + (x - n // 2) ** 2) / (2 * 3.0**2))
blur = np.fft.ifftshift(blur / blur.sum())

# %%
# The blur is a product of transforms, and so is what undoes it:

transfer = cf.fft.rfftn(blur, budget="2MB")
seen = cf.fft.irfftn(cf.fft.rfftn(image, budget="2MB") * transfer, budget="2MB")
seen += 0.003 * rng.standard_normal(seen.shape)


def wiener(image, transfer):
    return image * transfer.conj() / (abs(transfer) ** 2 + 1e-4)


restored = cf.fft.irfftn(cf.map(wiener, cf.fft.rfftn(seen, budget="2MB"), transfer, budget="2MB"), budget="2MB")

figure, axes = plt.subplots(1, 3, figsize=(10, 3.8), layout="constrained", sharey=True)
for ax, picture, title in zip(axes, (image, seen, restored), ("object", "as seen", "restored"), strict=True):
    ax.imshow(picture[128:320, 128:320], cmap="gray", vmin=0, vmax=1.2 * (0.5 if picture is seen else 1))
    ax.set(title=title, xlabel="x [pixels]")
axes[0].set_ylabel("y [pixels]")
plt.show()

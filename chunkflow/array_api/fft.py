"""Fourier transforms of the array API standard: NumPy's functions, which take lazy arrays."""

from numpy.fft import fft, fftn, fftshift, hfft, ifft, ifftn, ifftshift, ihfft, irfft, irfftn, rfft, rfftn

from chunkflow.api.lazy.array_api import fftfreq, rfftfreq

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip

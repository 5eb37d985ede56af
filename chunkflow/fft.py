"""Fourier transforms of arrays larger than the device, under NumPy's names: ``chunkflow.fft.rfftn(x, axes=(0, 1))``.

Blocks are whole along the axes that they transform. If a block that is whole along all of them fits the budget, there
is one pass over the array. Otherwise the axes are divided among as few passes as the budget allows; `plan` shows them.
The array between two passes is kept in one of three places: in `out` itself, if that is an array of the same shape and
dtype; in host memory, if the result is there and both fit; or in a zarr array in a temporary directory beside `out`. It
is as large as the result, is removed in any case, and has chunks that each pass moves once. This is the row-column
algorithm; see D. H. Bailey (1990), "FFTs in external or hierarchical memory", Journal of Supercomputing 4, 23-35.
Results differ from NumPy's by rounding alone, and have its dtypes. Half precision is transformed in single precision,
where NumPy scales it in half precision: by up to 1 part in 10,000 these are closer.

`convolve` uses such transforms of blocks. On the CPU NumPy's library keeps tables for lines of each length. Budgets
above 1 MiB count those of transforms, and none those of `convolve`, whose lines are a block's.
"""

from chunkflow.api.fourier.convolve import convolve
from chunkflow.api.fourier.functions import fft, fftn, ifft, ifftn, irfft, irfftn, rfft, rfftn
from chunkflow.api.fourier.plan import TransformPlan
from chunkflow.api.fourier.transform import plan
from chunkflow.api.lazy.creation import fftfreq, rfftfreq

__all__ = [
    "TransformPlan", "convolve", "fft", "fftfreq", "fftn", "ifft", "ifftn", "irfft", "irfftn", "plan", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip

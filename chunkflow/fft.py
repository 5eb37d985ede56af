"""Fourier transforms of arrays larger than the device, under NumPy's names: ``chunkflow.fft.rfftn(x, axes=(0, 1))``.

Parameters that all of them share:

x : array_like, str or path
    A source, as for `chunkflow.map`.
n : int, optional
    Points along the axis, which is cut off, or has zeros added. By default as many as there are. For `irfft`, the
    length of the result; by default ``2 * (m - 1)`` for an axis of m.
axis : int
    Along which.
s : sequence of int, optional
    The same for several axes; -1 for as many as there are.
axes : sequence of int, optional
    Along which: all, or the last ``len(s)``, by default.
norm : {"backward", "ortho", "forward"} or None
    As in NumPy: whether the inverse (None and "backward"), both or the transform are scaled.
chunks : int or sequence of int
    Chunk shape of a zarr output that the run creates: one length for all axes, or one for each, -1 for a whole
    axis. By default those of `x`, where it has that shape; in any case smaller where the budget wants it.
out, budget, device, progress, overwrite
    As for `chunkflow.map`. Each pass has a progress bar of its own, and leaves nothing behind if it fails.

Blocks are whole along the axes that they transform. If a block that is whole along all of them fits the budget, there
is one pass over the array. Otherwise the axes are divided among as few passes as the budget allows; `plan` shows them.
The array between two passes is kept in one of three places: in `out` itself, if that is an array of the same shape and
dtype; in host memory, if the result is there and both fit; or in a zarr array in a temporary directory beside `out`. It
is as large as the result, is removed in any case, and has chunks that each pass moves once. This is the row-column
algorithm; see D. H. Bailey (1990), "FFTs in external or hierarchical memory", Journal of Supercomputing 4, 23-35.
Results differ from NumPy's by rounding alone, and have its dtypes.

`convolve` uses such transforms of blocks. On the CPU NumPy keeps tables for lines of each length, which no budget sees.
"""

from chunkflow.api.fourier.convolve import convolve
from chunkflow.api.fourier.functions import fft, fftn, ifft, ifftn, irfft, irfftn, rfft, rfftn
from chunkflow.api.fourier.plan import TransformPlan
from chunkflow.api.fourier.transform import plan

__all__ = [
    "TransformPlan", "convolve", "fft", "fftn", "ifft", "ifftn", "irfft", "irfftn", "plan", "rfft", "rfftn",
]  # fmt: skip

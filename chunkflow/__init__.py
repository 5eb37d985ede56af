"""Stream arrays larger than GPU memory through a GPU, within a byte budget.

>>> import numpy as np, chunkflow as cf
>>> cf.map(np.sqrt, np.array([1.0, 4.0, 9.0]), device="cpu")
array([1., 2., 3.])
"""

from chunkflow import errors
from chunkflow.api import blockwise, chunks, explain, map
from chunkflow.budget import Budget
from chunkflow.covariance import corrcoef, cov, gram
from chunkflow.errors import BudgetError, ChunkflowError, ReadError, WriteError
from chunkflow.extremes import all, any, argmax, argmin, count_nonzero, max, min, norm, ptp
from chunkflow.histograms import bincount, histogram, topk
from chunkflow.linalg import dot, einsum, matmul, outer, tensordot, vecdot
from chunkflow.nanreductions import nanargmax, nanargmin, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar
from chunkflow.overlap import map_overlap
from chunkflow.plan import Plan
from chunkflow.profile import Profile
from chunkflow.reductions import average, mean, prod, reduction, std, sum, var
from chunkflow.scans import cumprod, cumsum, diff, maximum_accumulate, minimum_accumulate
from chunkflow.stream import Chunk, ChunkStream
from chunkflow.trace import Observer, observing

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetError",
    "Chunk",
    "ChunkStream",
    "ChunkflowError",
    "Observer",
    "Plan",
    "Profile",
    "ReadError",
    "WriteError",
    "all",
    "any",
    "argmax",
    "argmin",
    "average",
    "bincount",
    "blockwise",
    "chunks",
    "corrcoef",
    "count_nonzero",
    "cov",
    "cumprod",
    "cumsum",
    "diff",
    "dot",
    "einsum",
    "errors",
    "explain",
    "gram",
    "histogram",
    "map",
    "map_overlap",
    "matmul",
    "max",
    "maximum_accumulate",
    "mean",
    "min",
    "minimum_accumulate",
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "norm",
    "observing",
    "outer",
    "prod",
    "ptp",
    "reduction",
    "std",
    "sum",
    "tensordot",
    "topk",
    "var",
    "vecdot",
]

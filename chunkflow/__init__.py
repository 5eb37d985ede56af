"""Stream arrays larger than GPU memory through a GPU, within a byte budget.

>>> import numpy as np, chunkflow as cf
>>> cf.map(np.sqrt, np.array([1.0, 4.0, 9.0]), device="cpu")
array([1., 2., 3.])
"""

from chunkflow import errors, fft
from chunkflow.adapters import jax, torch
from chunkflow.analysis import Analysis
from chunkflow.api import blockwise, chunks, map
from chunkflow.budget import Budget
from chunkflow.compute import PassesPlan, compute, explain, store
from chunkflow.covariance import corrcoef, cov, gram
from chunkflow.errors import BudgetError, ChunkflowError, ReadError, WriteError
from chunkflow.extremes import all, any, argmax, argmin, count_nonzero, max, min, norm, ptp
from chunkflow.groups import LabelStatistics, label_statistics
from chunkflow.histograms import bincount, histogram, topk
from chunkflow.joining import concatenate, pad, stack
from chunkflow.lazy import Array
from chunkflow.linalg import dot, einsum, matmul, outer, tensordot, vecdot
from chunkflow.nanreductions import nanargmax, nanargmin, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar
from chunkflow.opening import from_dask, open
from chunkflow.overlap import iteration_plan, map_overlap
from chunkflow.pacing import IterationPlan
from chunkflow.partition import ClusterPlan
from chunkflow.plan import Plan
from chunkflow.profile import Profile
from chunkflow.quantiles import median, percentile, quantile, unique
from chunkflow.rearrange import copy, flip, repeat, roll, transpose
from chunkflow.rechunking import RechunkPlan, rechunk, rechunk_plan
from chunkflow.reductions import average, mean, prod, reduction, std, sum, var
from chunkflow.scans import cumprod, cumsum, diff, maximum_accumulate, minimum_accumulate
from chunkflow.stream import Chunk, ChunkStream
from chunkflow.trace import Observer, observing
from chunkflow.ufuncs import apply_ufunc

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Array",
    "Budget",
    "BudgetError",
    "Chunk",
    "ChunkStream",
    "ChunkflowError",
    "ClusterPlan",
    "IterationPlan",
    "LabelStatistics",
    "Observer",
    "PassesPlan",
    "Plan",
    "Profile",
    "ReadError",
    "RechunkPlan",
    "WriteError",
    "all",
    "any",
    "apply_ufunc",
    "argmax",
    "argmin",
    "average",
    "bincount",
    "blockwise",
    "chunks",
    "compute",
    "concatenate",
    "copy",
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
    "fft",
    "flip",
    "from_dask",
    "gram",
    "histogram",
    "iteration_plan",
    "jax",
    "label_statistics",
    "map",
    "map_overlap",
    "matmul",
    "max",
    "maximum_accumulate",
    "mean",
    "median",
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
    "open",
    "outer",
    "pad",
    "percentile",
    "prod",
    "ptp",
    "quantile",
    "rechunk",
    "rechunk_plan",
    "reduction",
    "repeat",
    "roll",
    "stack",
    "std",
    "store",
    "sum",
    "tensordot",
    "topk",
    "torch",
    "transpose",
    "unique",
    "var",
    "vecdot",
]

"""Stream arrays larger than GPU memory through a GPU, within a byte budget.

>>> import numpy as np, chunkflow as cf
>>> cf.map(np.sqrt, np.array([1.0, 4.0, 9.0]), device="cpu")
array([1., 2., 3.])
"""

import importlib
from typing import TYPE_CHECKING

from chunkflow import errors, fft, random
from chunkflow.api.chunk_stream import Chunk, ChunkStream, chunks
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.coarsen import coarsen
from chunkflow.api.lazy.compute import PassesPlan, compute, explain, store
from chunkflow.api.lazy.creation import (
    arange,
    empty,
    eye,
    fromfunction,
    full,
    indices,
    linspace,
    meshgrid,
    ones,
    tri,
    zeros,
)
from chunkflow.api.lazy.masked import MaskedArray
from chunkflow.api.lazy.masked_make import masked_array, masked_equal, masked_invalid, masked_where
from chunkflow.api.lazy.numpy_dispatch import takes_expressions
from chunkflow.api.lazy.open import from_dask, open
from chunkflow.api.lazy.times import TimeArray
from chunkflow.api.linalg.gram import corrcoef, cov, gram
from chunkflow.api.linalg.product import dot, einsum, matmul, outer, tensordot, vecdot
from chunkflow.api.live import live
from chunkflow.api.mapping import blockwise, map
from chunkflow.api.rearrange.along import take_along_axis
from chunkflow.api.rearrange.join import concatenate, pad, stack
from chunkflow.api.rearrange.masks import argwhere, extract, flatnonzero
from chunkflow.api.rearrange.put import put
from chunkflow.api.rearrange.rearrange import copy, flip, repeat, roll, transpose
from chunkflow.api.rearrange.take import compress, take
from chunkflow.api.rearrange.where import where
from chunkflow.api.reductions.extremes import all, any, argmax, argmin, count_nonzero, max, min, norm, ptp
from chunkflow.api.reductions.nan import nanargmax, nanargmin, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar
from chunkflow.api.reductions.sums import average, mean, prod, reduction, std, sum, var
from chunkflow.api.scan import cumprod, cumsum, diff, ffill, maximum_accumulate, minimum_accumulate
from chunkflow.api.statistics.histogram import bincount, histogram
from chunkflow.api.statistics.histogramdd import histogram2d, histogramdd
from chunkflow.api.statistics.mode import mode
from chunkflow.api.statistics.quantile import (
    median,
    nanmedian,
    nanpercentile,
    nanquantile,
    percentile,
    quantile,
)
from chunkflow.api.statistics.sort import argsort, sort
from chunkflow.api.statistics.topk import argtopk, topk
from chunkflow.api.statistics.unique import unique
from chunkflow.api.stencil.convolve import convolve
from chunkflow.api.stencil.gradient import gradient
from chunkflow.api.stencil.overlap import iteration_plan, map_overlap
from chunkflow.api.stencil.steps_per_pass import IterationPlan
from chunkflow.api.stencil.windows import sliding_window_view
from chunkflow.api.verify import Verification, verify
from chunkflow.cluster.partition import ClusterPlan
from chunkflow.core.elsewhere import function
from chunkflow.core.spelling import near
from chunkflow.engine.budget import Budget
from chunkflow.engine.observe.analysis import Analysis
from chunkflow.engine.observe.profile import Profile
from chunkflow.engine.trace import Observer, observing
from chunkflow.errors import BudgetError, ChunkflowError, ReadError, WriteError
from chunkflow.planner.plan import Plan
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.new_array import NewArray

if TYPE_CHECKING:
    from chunkflow.api.adapters import jax, torch
    from chunkflow.api.apply_gufunc import apply_gufunc
    from chunkflow.api.apply_ufunc import apply_ufunc
    from chunkflow.api.leftovers import clean, leftovers, recover
    from chunkflow.api.rearrange.rechunk import RechunkPlan, rechunk, rechunk_plan
    from chunkflow.api.statistics.group_reduce import groupby_reduce
    from chunkflow.api.statistics.groups import LabelStatistics, label_statistics
    from chunkflow.core.config import config

try:
    from chunkflow._version import __version__ as __version__
except ImportError:  # a checkout that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Analysis",
    "Array",
    "Budget",
    "BudgetError",
    "Chunk",
    "ChunkStream",
    "ChunkflowError",
    "ClusterPlan",
    "ExistingArray",
    "IterationPlan",
    "LabelStatistics",
    "MaskedArray",
    "NewArray",
    "Observer",
    "PassesPlan",
    "Plan",
    "Profile",
    "ReadError",
    "RechunkPlan",
    "TimeArray",
    "Verification",
    "WriteError",
    "all",
    "any",
    "apply_gufunc",
    "apply_ufunc",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "argtopk",
    "argwhere",
    "average",
    "bincount",
    "blockwise",
    "chunks",
    "clean",
    "coarsen",
    "compress",
    "compute",
    "concatenate",
    "config",
    "convolve",
    "copy",
    "corrcoef",
    "count_nonzero",
    "cov",
    "cumprod",
    "cumsum",
    "diff",
    "dot",
    "einsum",
    "empty",
    "errors",
    "explain",
    "extract",
    "eye",
    "ffill",
    "fft",
    "flatnonzero",
    "flip",
    "from_dask",
    "fromfunction",
    "full",
    "gradient",
    "gram",
    "groupby_reduce",
    "histogram",
    "histogram2d",
    "histogramdd",
    "indices",
    "iteration_plan",
    "jax",
    "label_statistics",
    "leftovers",
    "linspace",
    "live",
    "map",
    "map_overlap",
    "masked_array",
    "masked_equal",
    "masked_invalid",
    "masked_where",
    "matmul",
    "max",
    "maximum_accumulate",
    "mean",
    "median",
    "meshgrid",
    "min",
    "minimum_accumulate",
    "mode",
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
    "norm",
    "observing",
    "ones",
    "open",
    "outer",
    "pad",
    "percentile",
    "prod",
    "ptp",
    "put",
    "quantile",
    "random",
    "rechunk",
    "rechunk_plan",
    "recover",
    "reduction",
    "repeat",
    "roll",
    "sliding_window_view",
    "sort",
    "stack",
    "std",
    "store",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "topk",
    "torch",
    "transpose",
    "tri",
    "unique",
    "var",
    "vecdot",
    "verify",
    "where",
    "zeros",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_LATER = {
    "chunkflow.api.adapters": ("jax", "torch"),
    "chunkflow.api.apply_gufunc": ("apply_gufunc",),
    "chunkflow.api.apply_ufunc": ("apply_ufunc",),
    "chunkflow.api.leftovers": ("clean", "leftovers", "recover"),
    "chunkflow.core.config": ("config",),
    "chunkflow.api.rearrange.rechunk": ("RechunkPlan", "rechunk", "rechunk_plan"),
    "chunkflow.api.statistics.group_reduce": ("groupby_reduce",),
    "chunkflow.api.statistics.groups": ("LabelStatistics", "label_statistics"),
}
"""Modules that are loaded when one of these names is asked for: to load all at once takes longer."""


def __getattr__(name: str) -> object:
    module = next((module for module, names in _LATER.items() if name in names), None)
    if module is None and (elsewhere := function(name, takes_expressions)):
        raise errors.MissingAttributeError(f"chunkflow has no {name}: {elsewhere}")
    if module is None:
        raise AttributeError(f"module 'chunkflow' has no attribute {name!r}{near(name, __all__)}")
    found = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found

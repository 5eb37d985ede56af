"""Reductions keep the contract that those of others inherit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.devices import CHECKING, Place

import chunkflow as cf
from chunkflow.api.operation import Request, operation
from chunkflow.api.reductions.request import request
from chunkflow.kernels.reductions.aggregation import Aggregation
from chunkflow.kernels.reductions.tiled import reduce
from chunkflow.testing import ReductionContract


class TestSum(ReductionContract):
    scale = 100.0

    def reduce(self, x: Any, **options: Any) -> Any:
        return cf.sum(x, **options)

    def expected(self, x: np.ndarray, **options: Any) -> Any:
        return np.sum(x, **options)


class TestSumOnACheckingDevice(TestSum):
    def device(self) -> Any:
        return CHECKING[0].device()


@pytest.mark.gpu
class TestSumOnAGpu(TestSum):
    def device(self) -> Any:
        return Place("cuda").device()


class TestVar(ReductionContract):
    def reduce(self, x: Any, **options: Any) -> Any:
        return cf.var(x, **options)

    def expected(self, x: np.ndarray, **options: Any) -> Any:
        return np.var(x, **options)


class TestArgmax(ReductionContract):
    single_axis = True

    def reduce(self, x: Any, **options: Any) -> Any:
        return cf.argmax(x, **options)

    def expected(self, x: np.ndarray, **options: Any) -> Any:
        return np.argmax(x, **options)


ROOT_MEAN_SQUARE = Aggregation(
    chunk=lambda x, axes, box: (reduce("sum", np.square(x), axes), math.prod(x.shape[a] for a in axes)),
    merge=lambda left, right: (left[0] + right[0], left[1] + right[1]),
    aggregate=lambda total, count: np.sqrt(total / count),
    data_independent=True,
)


@operation
def rms(x: Any, axis: Any = None, keepdims: bool = False, **options: Any) -> Request:
    """Root mean square: a reduction that is not chunkflow's own takes this much."""
    return request(lambda specs, axes: ROOT_MEAN_SQUARE, (x,), axis, keepdims, **options)


class TestRootMeanSquare(ReductionContract):
    dtypes = ("f8",)

    def reduce(self, x: Any, **options: Any) -> Any:
        return rms(x, **options)

    def expected(self, x: np.ndarray, **options: Any) -> Any:
        return np.sqrt(np.mean(np.square(x), **options))

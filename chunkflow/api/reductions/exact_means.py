"""Exact means of the integers that count the unit of times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from chunkflow.api.operation import ArraySpec, Request
from chunkflow.api.reductions.request import Axis, Keywords, count_of, reduction_operation, request
from chunkflow.kernels.reductions import exact_means
from chunkflow.kernels.reductions.aggregation import Aggregation
from chunkflow.kernels.reductions.tiled import Axes


@reduction_operation
def mean_of_counts(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    skip: bool = False,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Mean of int64, as int64, rounded towards zero; the least integer is NaT, which `skip` leaves out.

    Examples
    --------
    >>> mean_of_counts(np.array([2**62, 2**62, 2**62 + 7]), device="cpu")
    np.int64(4611686018427387906)
    """

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        return exact_means.mean(count_of(specs[0].shape, axes), skip=skip, masked=len(specs) > 1)

    return request(make, (x,), axis, keepdims, where=where, **options)

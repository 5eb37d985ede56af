"""What the handles of several expressions, or of one that is seen otherwise, share with `Array`."""

from __future__ import annotations

from typing import Any, Self

from chunkflow.api.compound import Compound
from chunkflow.api.lazy.compute import compute
from chunkflow.api.lazy.dask_protocol import OfBlocks
from chunkflow.api.lazy.in_place import InPlace
from chunkflow.core.spelling import spelt
from chunkflow.engine.options import BudgetLike, ProgressLike


class Together(InPlace, Compound, OfBlocks):
    """Expressions that are one array to their user: they never change, and are computed in the same passes."""

    __slots__ = ()

    @spelt()
    def compute(self, *, budget: BudgetLike = None, device: Any = None, progress: ProgressLike = None) -> Any:
        """The result in memory, as NumPy has such an array, or a scalar; see `chunkflow.compute`."""
        return compute(self, budget=budget, device=device, progress=progress)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

"""Results that are new arrays have the names of dimensions that are known of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.stores.new_array import NewArray, StoredLabels
from chunkflow.stores.registry import open_target


def with_names(out: Any, names: Sequence[str | None], shape: Shape) -> Any:
    """Where a result goes, with names of its dimensions, where it is a new array that can have them.

    What is said of it already comes first.
    """
    if not isinstance(out, str | os.PathLike | NewArray):
        return out
    target: Any = open_target(out, overwrite=True)
    return target.said if takes_names(target) and name_axes(target, names, shape) else out


def takes_names(target: Any) -> bool:
    """Whether a target is a new array that can have names of dimensions, of which none are said."""
    return getattr(target, "takes_labels", False) and target.said.dimension_names is None


def name_axes(target: Any, names: Sequence[str | None], shape: Shape) -> bool:
    """Let a new array have these names of its dimensions, as far as it can: whether it has any."""
    known = [name for name in names if name is not None]
    if not takes_names(target) or not known or len(set(known)) < len(known):
        return False
    fitting = target.fitting(StoredLabels(None, tuple(names)), shape)
    target.said = target.said.with_labels(StoredLabels(None, fitting.dimension_names))
    return True


class Closed:
    """A dataset of an HDF5 file that is opened when elements are read, so that others can open it, too."""

    def __init__(self, dataset: Any) -> None:
        self.shape, self.dtype = dataset.shape, dataset.dtype
        self._file, self._name = dataset.file.filename, dataset.name
        self._kind = type(dataset.file)
        dataset.file.close()

    def __getitem__(self, key: Any) -> np.ndarray:
        with self._kind(self._file, "r") as file:
            return np.asarray(file[self._name][key])

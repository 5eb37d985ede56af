"""Identity of user-supplied sources: deduplication, absolute paths, and a check that they have not changed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ReadError
from chunkflow.stores import Source, is_dask_array, open_source, spec_of
from chunkflow.stores.new_array import StoredLabels
from chunkflow.stores.paths import absolute, located


@runtime_checkable
class View(Protocol):
    """A view of arrays, which is made when they are opened. It has a spec, as `chunkflow.stores.spec_of` asks."""

    @property
    def arrays(self) -> Sequence[Any]:
        """The arrays of the view."""

    def on(self, arrays: Sequence[Any]) -> Any:
        """The same view of other arrays."""

    def __chunkflow_spec__(self) -> ArraySpec: ...


class Unchanged:
    """A `View` of a source that refuses to open if its shape or dtype has changed, as files may."""

    def __init__(self, arrays: Sequence[Any], spec: ArraySpec) -> None:
        self.arrays, self._spec = arrays, spec

    def on(self, arrays: Sequence[Any]) -> Unchanged:
        return Unchanged(arrays, self._spec)

    def __chunkflow_spec__(self) -> ArraySpec:
        return self._spec

    def __chunkflow_source__(self) -> Source:
        """See `chunkflow.stores.open_source`. If its shape or dtype has changed it is a `ReadError`."""
        source = open_source(self.arrays[0])
        try:
            check_unchanged(self._spec, source.spec)
        except BaseException:
            source.close()
            raise
        return source

    def mapped(self) -> np.ndarray:
        """The array of a ``.npy`` file, mapped to memory; raises as `__chunkflow_source__`."""
        array: np.ndarray = np.load(self.arrays[0], mmap_mode="r", allow_pickle=False)
        check_unchanged(self._spec, array)
        return array


class NamedResult:
    """A `View` of an intermediate result, with the names of its axes that are known."""

    def __init__(self, arrays: Sequence[Any], names: Sequence[str | None]) -> None:
        self.arrays, self._names = arrays, tuple(names)

    def on(self, arrays: Sequence[Any]) -> NamedResult:
        return NamedResult(arrays, self._names)

    def __chunkflow_spec__(self) -> ArraySpec:
        return spec_of(self.arrays[0])

    def __chunkflow_source__(self) -> Source:
        """See `chunkflow.stores.open_source`."""
        source: Any = open_source(self.arrays[0])
        source.labels = partial(StoredLabels, None, self._names)
        return cast(Source, source)


def with_axis_names(result: Any, names: Sequence[str | None]) -> Any:
    """An intermediate result with names of its axes; itself where none is known."""
    return NamedResult([result], names) if any(name is not None for name in names) else result


def without_axis_names(result: Any) -> Any:
    """An intermediate result without names."""
    return result.arrays[0] if isinstance(result, NamedResult) else result


def check_unchanged(was: ArraySpec, now: ArraySpec | np.ndarray) -> None:
    """Refuse an array whose shape or dtype has changed since the expression was made, with a `ReadError`."""
    if (now.shape, now.dtype.newbyteorder("=")) != (was.shape, was.dtype):
        raise ReadError(
            f"{was.name} has changed since it was opened: then it had the shape {was.shape} and dtype {was.dtype}, now "
            f"{now.shape} and {now.dtype}. Open it again, and make the expression anew",
            path=was.name,
        )


def lasting(source: Any, spec: ArraySpec) -> Any:
    """A source that can be opened later, from any directory, and is refused if it has changed by then.

    Arrays in memory, views and dask arrays are returned as they are: other code asks for their type.
    """
    if isinstance(source, Unchanged | np.ndarray) or is_dask_array(source):
        return source
    return Unchanged([absolute(source) if isinstance(source, str | os.PathLike) else source], spec)


_tokens: dict[int, tuple[weakref.ref[Any], str]] = {}
"""Tokens by the ids of living objects. The id of a dead object may be reused."""
_lock = threading.Lock()


def identity(source: Any, spec: ArraySpec) -> Hashable:
    """A key that is equal if and only if two sources are the same array, in any process, so that it is read once.

    Task graphs keep it longer than the object lives, and it is never given to another object.
    """
    while isinstance(source, Unchanged):
        source = source.arrays[0]
    if isinstance(source, str | os.PathLike):
        return located(source), spec.shape, str(spec.dtype)
    number = id(source)
    with _lock:
        known, token = _tokens.get(number, (None, ""))
        if known is not None and known() is source:
            return token
        token = os.urandom(16).hex()
        with suppress(TypeError):  # without a weak reference the end of the object goes unnoticed
            _tokens[number] = weakref.ref(source, partial(_forget, number)), token
    return token


def _forget(number: int, reference: weakref.ref[Any]) -> None:
    if _tokens.get(number, (None, ""))[0] is reference:  # no other object has the id yet
        del _tokens[number]

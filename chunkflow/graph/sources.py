"""Sources as their users gave them: told from one another, found from any directory, and seen to be as they were."""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ReadError
from chunkflow.stores import Source, is_dask_array, open_source
from chunkflow.stores.paths import absolute, located


@runtime_checkable
class View(Protocol):
    """Arrays seen in another way when they are opened; it tells its spec as `chunkflow.stores.spec_of` asks."""

    @property
    def arrays(self) -> Sequence[Any]:
        """What is seen."""

    def on(self, arrays: Sequence[Any]) -> Any:
        """The same of other arrays."""

    def __chunkflow_spec__(self) -> ArraySpec: ...


class Unchanged:
    """A source that must have the shape and dtype that it had, when it is opened once more: files change meanwhile.

    It is a `View` of the source.
    """

    def __init__(self, arrays: Sequence[Any], spec: ArraySpec) -> None:
        self.arrays, self._spec = arrays, spec

    def on(self, arrays: Sequence[Any]) -> Unchanged:
        """The same of another way to open it."""
        return Unchanged(arrays, self._spec)

    def __chunkflow_spec__(self) -> ArraySpec:
        """See `chunkflow.stores.spec_of`."""
        return self._spec

    def __chunkflow_source__(self) -> Source:
        """See `chunkflow.stores.open_source`.

        Raises
        ------
        ReadError
            It has another shape or dtype now.
        """
        source = open_source(self.arrays[0])
        try:
            _check(self._spec, source.spec)
        except BaseException:
            source.close()
            raise
        return source

    def mapped(self) -> np.ndarray:
        """The array of a ``.npy`` file, in memory; a `ReadError` as above."""
        array: np.ndarray = np.load(self.arrays[0], mmap_mode="r", allow_pickle=False)
        _check(self._spec, array)
        return array


def _check(was: ArraySpec, now: ArraySpec | np.ndarray) -> None:
    """Refuse to read an array that is no longer what expressions were made of.

    Raises
    ------
    ReadError
        Its shape or dtype is another one.
    """
    if (now.shape, now.dtype.newbyteorder("=")) != (was.shape, was.dtype):
        raise ReadError(
            f"{was.name} has changed since it was opened: then it had the shape {was.shape} and dtype {was.dtype}, now "
            f"{now.shape} and {now.dtype}. Open it again, and make the expression anew",
            path=was.name,
        )


def lasting(source: Any, spec: ArraySpec) -> Any:
    """A source that can be opened later, from whatever directory, and is refused if it is another array then.

    An array in memory, a view and a dask array are themselves: others ask what they are.
    """
    if isinstance(source, Unchanged | np.ndarray) or is_dask_array(source):
        return source
    return Unchanged([absolute(source) if isinstance(source, str | os.PathLike) else source], spec)


def current(source: Any, spec: ArraySpec) -> Any:
    """What `lasting` gave, when it is to be read: an array in memory may have been given another shape in its place."""
    if isinstance(source, np.ndarray):
        _check(spec, source)
    return source


_tokens: dict[int, tuple[weakref.ref[Any], str]] = {}
"""By the ids of objects that are there. That of one that is gone may be another's."""
_lock = threading.Lock()


def identity(source: Any, spec: ArraySpec) -> Hashable:
    """What two sources have in common if and only if they are the same array, in any process: it is read once for both.

    It outlives an object, as graphs of tasks do, and is never another object's.
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
        token = uuid.uuid4().hex
        with suppress(TypeError):  # it takes no weak reference: nobody can know when it is gone
            _tokens[number] = weakref.ref(source, partial(_forget, number)), token
    return token


def _forget(number: int, reference: weakref.ref[Any]) -> None:
    if _tokens.get(number, (None, ""))[0] is reference:  # no other thread puts one there meanwhile: nobody has the id
        del _tokens[number]

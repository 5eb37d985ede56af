"""Arrays that are not NumPy's, as a GPU's are: NumPy dispatches to them, and does not convert them by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Foreign(NDArrayOperatorsMixin):
    """NumPy's array behind the protocols; ufuncs have no methods such as ``reduce``."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return _foreign(ufunc(*_numpys(args), **_numpys(kwargs))) if method == "__call__" else NotImplemented

    def __array_function__(self, fn: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _foreign(fn(*_numpys(args), **_numpys(kwargs)))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.array, name)
        return (lambda *a, **k: _foreign(found(*_numpys(a), **_numpys(k)))) if callable(found) else _foreign(found)

    def __getitem__(self, index: Any) -> Any:
        return _foreign(self.array[_numpys(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[_numpys(index)] = _numpys(value)

    def __len__(self) -> int:
        return len(self.array)

    def __bool__(self) -> bool:
        return bool(self.array)


def _foreign(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value)(map(_foreign, value)) if type(value) is tuple else value
    return Foreign(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


def _numpys(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_numpys, value))
    if isinstance(value, dict):
        return {key: _numpys(each) for key, each in value.items()}
    return value.array if isinstance(value, Foreign) else value

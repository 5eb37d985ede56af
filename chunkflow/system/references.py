"""Whether anybody else refers to an array, so that its memory may be used again."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def only_listed(values: list[Any], i: int) -> bool:
    """Whether an array owns its memory, and `values` alone refers to it.

    A view, or a buffer that a function keeps for its next call, may be overwritten by others.

    >>> kept = np.zeros(3)
    >>> only_listed([np.zeros(3)], 0), only_listed([kept], 0), only_listed([np.zeros(3)[1:]], 0)
    (True, False, False)
    """
    return values[i].base is None and sys.getrefcount(values[i]) <= _ALONE


def _references_of_the_only_one() -> int:
    values = [np.empty(0)]
    return sys.getrefcount(values[0])


_ALONE = _references_of_the_only_one()

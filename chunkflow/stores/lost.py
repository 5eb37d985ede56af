"""Warns of attributes that are gone with an array that is replaced."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

from chunkflow.errors import ChunkflowError, LossWarning
from chunkflow.stores.cf import NAMES
from chunkflow.stores.new_array import labels_of
from chunkflow.stores.registry import open_path
from chunkflow.system.users_line import users_line


def warn_of_lost(targets: Iterable[Any]) -> None:
    """Warn of the attributes of arrays that new ones replace, where nothing is said of the new ones' attributes.

    Those that say how numbers are coded are no loss: the new ones are not.
    """
    for target in targets:
        if not getattr(target, "takes_labels", False) or target.said.attributes is not None:
            continue
        names: list[str] = []
        with suppress(ChunkflowError), closing(open_path(target.name)) as old:  # what cannot be read has none
            names = sorted({*(labels_of(old).attributes or ())} - {*NAMES})
        if names:
            warnings.warn(
                f"{target.name} is replaced, and its attributes are gone: {', '.join(names)}; "
                "chunkflow.NewArray(path, attributes={...}) gives the new array others",
                LossWarning,
                stacklevel=users_line(),
            )

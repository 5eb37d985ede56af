"""A mark that something is done: a small file that gets its name together with what it is said of."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np

from chunkflow.core.grid import Region
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.publication.claim import Claim


class Mark:
    """A mark at a path: one more of the sinks that `chunkflow.stores.commit.commit_all` publishes, without elements.

    Parameters
    ----------
    path : str
        Of the file.
    name : str
        What it is called in errors.
    said : sequence of str
        What the file says.
    """

    def __init__(self, path: str, name: str, said: Sequence[str] = ()) -> None:
        self.spec = ArraySpec(name, (0,), np.dtype("u1"))
        self._path, self._said = path, list(said)
        self._claim: Claim | None = None

    @staticmethod
    def said_by(path: str) -> list[str]:
        """What the mark at a path says."""
        with open(path, encoding="utf-8") as file:
            return [str(word) for word in json.load(file)]

    def write(self, region: Region, block: np.ndarray) -> None:
        """See `Sink.write`: there is nothing to write."""

    def ready(self) -> list[Claim]:
        with translated(WriteError, f"cannot finish {self.spec.name}", self.spec.name, self.abort, OSError):
            self._claim = Claim(self._path)
            fd = os.open(self._claim.partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(self._said, file)
        return [self._claim]

    def published(self) -> None:
        """See `Publishing.published`."""

    def unpublish(self) -> None:
        """See `Publishing.unpublish`."""

    def commit(self) -> None:
        """See `Sink.commit`: a mark is never alone."""
        raise NotImplementedError

    def abort(self) -> None:
        if self._claim is not None:
            self._claim.end()

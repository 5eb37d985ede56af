"""Directories of intermediate results: hidden beside an output, private, and found if their run dies."""

from __future__ import annotations

import os

from chunkflow.errors import WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.paths import scratch_place
from chunkflow.stores.publication.claim import Claim


class Scratch:
    """A directory of intermediate results of one output, which is made when it is first asked for.

    Parameters
    ----------
    output : str
        Path of the output, or what else it is called if it is no file.
    purpose : str
        The operation's name. Two runs at once cannot make the same output for the same purpose.
    """

    def __init__(self, output: str, purpose: str) -> None:
        self._output, self._purpose = output, purpose
        self._claim: Claim | None = None

    @property
    def folder(self) -> str:
        """Path of the directory.

        Raises
        ------
        OutputBusyError
            A run that is alive makes the same output.
        WriteError
            It cannot be made.
        """
        if self._claim is None:
            with translated(WriteError, f"cannot keep intermediate results of {self._output}", self._output, self.end):
                self._claim = Claim(scratch_place(self._output, self._purpose))
                os.mkdir(self._claim.partial, 0o700)
        return self._claim.partial

    @property
    def is_made(self) -> bool:
        """Whether the directory is there."""
        return self._claim is not None

    def end(self) -> None:
        """Remove it with all that is in it. Idempotent."""
        if self._claim is not None:
            self._claim.end()

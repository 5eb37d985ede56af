"""Results of tasks that a later call takes up: files in a directory that the client and all workers reach."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunkflow.cluster.tasks import Program, run
from chunkflow.core.grid import Shape
from chunkflow.engine.resume import packed, unpacked
from chunkflow.errors import WriteError
from chunkflow.graph.nodes import Node
from chunkflow.graph.recognition import recognized
from chunkflow.kernels.digest import digest
from chunkflow.kernels.subnest import on_host
from chunkflow.stores.failures import translated
from chunkflow.stores.identity import Identity, going_on

_ENDING = ".npz"


@dataclass
class KeptResults:
    """The results of one call's tasks.

    Attributes
    ----------
    folder : str
        Path of the directory.
    named : bool
        Whether a name stands for the functions, so that a node is known by its place alone.
    """

    folder: str
    named: bool = False
    read: tuple[Identity, ...] = ()
    """What the arrays were when the first call opened them: no task reads a chunk that was changed since."""
    _identities: dict[Node, str] = field(default_factory=dict)

    def of(self, node: Node, number: int) -> str:
        """What the results of a node's tasks are called: the same for the same node in another process."""
        said, _ = recognized([node], self._identities)  # the call itself compares what the arrays are
        known = "" if self.named else digest(said)[:24]
        return f"{number}-{known}"

    def path(self, name: str, index: Shape) -> str:
        """Path of the result of the task of one partition."""
        return os.path.join(self.folder, f"{name}-{'-'.join(map(str, index))}{_ENDING}")

    @property
    def is_empty(self) -> bool:
        """Whether no task is done."""
        return not any(name.endswith(_ENDING) for name in os.listdir(self.folder))

    def clear(self) -> None:
        """Forget all of them: what they have written is gone."""
        for entry in os.scandir(self.folder):
            if entry.name.endswith(_ENDING):
                os.unlink(entry.path)


def run_and_keep(
    program: Program, index: Sequence[int], arrays: Sequence[Any], path: str, client: str, read: Sequence[Identity]
) -> Any:
    """As `run`, and keep what it gives: None once a partition is stored.

    `client` is the client's machine, `read` as in `KeptResults`.
    """
    with going_on(read):
        result = run(program, index, arrays)
    held: list[np.ndarray] = []
    with suppress(TypeError):  # a value of another kind is computed again
        names = json.dumps(packed(on_host(result), held))
        if socket.gethostname() != client:  # which may go on without this machine, but not without what it has written
            os.sync()
        temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.partial"
        with translated(WriteError, f"cannot keep the result of a task in {path}", path, foreign=OSError):
            with open(temporary, "wb") as file:
                np.savez(file, *held, names=np.frombuffer(names.encode(), np.uint8))
            os.replace(temporary, path)
    return result


def taken(path: str) -> Any:
    """The result of a task that is done."""
    with np.load(path, allow_pickle=False) as file:
        arrays = [file[f"arr_{i}"] for i in range(len(file.files) - 1)]
        return unpacked(json.loads(file["names"].tobytes()), arrays)

"""The keyword arguments that all operations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chunkflow.core.chunking import Chunks
from chunkflow.engine.budget import Budget


@dataclass(frozen=True)
class Options:
    """The keyword arguments that all operations share.

    `chunks` are the sides of the *results'* blocks. An operation that fixes the blocks of the loop nest has them in
    `Declared.block`. `out_chunks` are those of an output that the run creates, and leave the blocks to the planner.
    """

    out: Any = None
    budget: Any = None
    dtype: Any = None
    chunks: Chunks = None
    workspace: float | None = None
    device: Any = None
    overwrite: bool = False
    progress: ProgressLike = False
    out_chunks: Chunks = None
    sync: bool | None = None
    resume: bool | str = False


BudgetLike = Budget | str | int | float | None
"""What operations take as ``budget=``."""

ProgressLike = bool | str | Callable[[int, int], object] | None
"""What ``progress=`` takes; the one string is ``"always"``."""

"""The keyword arguments that all operations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chunkflow.core.chunking import Chunks
from chunkflow.engine.budget import Budget
from chunkflow.errors import ArgumentError, ArgumentTypeError


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
    progress: ProgressLike = None
    out_chunks: Chunks = None
    sync: bool | None = None
    resume: bool = False
    name: str | None = None
    checksum: bool | None = None

    def __post_init__(self) -> None:
        check_named(self.resume, self.name)


def check_named(resume: Any, name: Any) -> None:
    """Check ``resume=``, and ``name=``, which stands for the function where its code does not say all.

    Raises
    ------
    ArgumentTypeError
        `resume` is no bool, `name` no text, or an empty one.
    ArgumentError
        A name of what is not gone on with.
    """
    if isinstance(resume, str):
        raise ArgumentTypeError(
            f"resume={resume!r} must be True or False: if it names the function, give resume=True, name={resume!r}"
        )
    if not isinstance(resume, bool):
        raise ArgumentTypeError(f"resume={resume!r} must be True or False")
    if name is None:
        return
    if not isinstance(name, str) or not name:
        raise ArgumentTypeError(f"name={name!r} must be a text that stands for the function, as 'smooth, 3rd version'")
    if not resume:
        raise ArgumentError(
            f"name={name!r} stands for the function of a run with resume=True: give both to the call that runs, as "
            f"map(fn, array, out=path, resume=True, name={name!r}) or x.to_zarr(path, resume=True, name={name!r}). "
            "To give fn an argument called name, use functools.partial"
        )


BudgetLike = Budget | str | int | float | None
"""What operations take as ``budget=``."""

ProgressLike = bool | str | Callable[[int, int], object] | None
"""What ``progress=`` takes; the one string is ``"always"``."""

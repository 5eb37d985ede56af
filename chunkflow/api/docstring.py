"""Docstrings of operations: what is the same for many of them is said once, and added to each."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from typing import NamedTuple

ENTRIES = ("Parameters", "Raises")
"""Sections of one entry for each name."""

IMPORTS = ">>> import numpy as np, chunkflow as cf"

RUN = """What operations have in common.

Parameters
----------
x : array_like, str or path
    A source, as for `chunkflow.map`.
chunks : int or sequence of int, optional
    Sides of the blocks of `x` that are computed at a time: for each axis a length, -1 or None for the
    whole axis, or "auto" for the planner's choice, which is the default.
out : array, str, path, NewArray or None
    Where the result goes: an array with slice assignment, or the path of a ``.npy`` file or zarr array, or the URL of
    one, to create, which appears under its name only when complete; a `chunkflow.NewArray` says how it is stored, a
    `chunkflow.ExistingArray` which part of one is written. None makes a NumPy array.
budget : int, str, float or Budget, optional
    Bytes of device memory that the run may take: an int, ``"4GB"``, ``"4GiB"``, or a share of what is free now
    (``"80%"``, 0.8). By default what the surrounding ``with Budget(...)`` allows, else the setting ``budget``, 80%.
device : str, int or Device, optional
    ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an ordinal; by default the setting ``device``, "auto".
progress : bool, "always" or callable
    True shows a bar on a terminal or in a notebook, "always" shows it anywhere; a callable gets (done, total) bytes. By
    default the setting ``progress``, which is no bar.
overwrite : bool
    Whether a path in `out` that exists may be replaced (when the new array is complete).
sync : bool, optional
    Whether a new local array is on the disk, and survives a power cut, when the call returns. By default as
    the setting ``sync`` says; what replaces something is in any case.
resume : bool
    Whether what a run that ends early has done is left beside the path in `out`, and the same call goes on with it: see
    ``docs/crashes.md``.
name : str, optional
    A name that stands for the function, where its code does not say all, as with a compiled one. It needs `resume`.
checksum : bool, optional
    Whether an array that is created at the path in `out` has checksums, which are verified when it is read. By default
    those of zarr's format 3 have them.

Returns
-------
array
    `out`, opened where it was a path. Of an expression another expression: `out, budget, device, progress,
    overwrite` and `checksum` are refused then, and belong to what runs it (`chunkflow.compute`, `chunkflow.store`).

Raises
------
BudgetError
    Not even the smallest block fits the budget; it names the smallest budget that would do.
SourceNotFoundError, OutputExistsError
    A missing input; an existing output without `overwrite`.
ReadError, WriteError
    A store failed; nothing appears under the output's name.
"""


def documented(own: str, shared: str, parameters: Iterable[str]) -> str:
    """Complete an operation's docstring.

    It gets the shared texts of the parameters and errors that it does not describe itself, and of the result. Examples
    that import nothing get `IMPORTS`.
    """
    summary, sections = _sections(own)
    common = _common(shared)
    described = {title: _entries(sections.get(title, "")) for title in ENTRIES}
    names = {"Parameters": parameters, "Raises": [*described["Raises"], *common.entries["Raises"]]}
    for title in ENTRIES:
        texts = common.entries[title] | described[title]
        sections[title] = "\n".join(dict.fromkeys([texts[name] for name in names[title] if name in texts]))
    if "import " not in (examples := sections.get("Examples", "import ")):
        sections["Examples"] = f"{IMPORTS}\n{examples}"
    merged = common.sections | sections
    return "\n\n".join([summary, *[f"{title}\n{'-' * len(title)}\n{text}" for title, text in merged.items()]])


class Common(NamedTuple):
    """What the operations of a family have in common: sections by title, and their entries by name."""

    sections: dict[str, str]
    entries: dict[str, dict[str, str]]


@functools.cache
def _common(shared: str) -> Common:
    """The texts of a family, and those of all operations that it does not replace."""
    (_, run), (_, family) = _sections(RUN), _sections(shared)
    everywhere, own = ({title: _entries(f.get(title, "")) for title in ENTRIES} for f in (run, family))
    return Common(run | family, {title: own[title] | everywhere[title] | own[title] for title in ENTRIES})


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring begins with, and its sections by title."""
    start, *rest = _TITLE.split(inspect.cleandoc(text))
    return start, dict(zip(rest[::2], rest[1::2], strict=True))


def _entries(section: str) -> dict[str, str]:
    """Entries of a section by each of the names that they describe."""
    heads = [(text.partition("\n")[0].partition(" :")[0], text) for text in _ENTRY.split(section) if text]
    return {name.strip(" *"): text for head, text in heads for name in head.split(",")}


_TITLE = re.compile(r"\n\n(\w+)\n-+\n")
_ENTRY = re.compile(r"\n(?=\S)")

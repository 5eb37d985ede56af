"""``chunkflow clean`` and ``chunkflow recover`` settle what runs left that were killed."""

from __future__ import annotations

import argparse
import os
from functools import partial

import chunkflow as cf
from chunkflow.cli.common import Commands, command, refuse
from chunkflow.core.units import format_bytes


def add(commands: Commands) -> None:
    """Add the commands."""
    for name, only_begun, told in (
        ("recover", True, "finish or undo what killed runs had begun to publish"),
        ("clean", False, "remove what killed runs left, and finish or undo what they had begun to publish"),
    ):
        parser = command(commands, name, partial(settle, only_begun=only_begun), told)
        parser.add_argument("path", help="a directory, or the path or URL of an output")
        parser.add_argument("--dry-run", action="store_true", help="say what there is, and change nothing")


def settle(options: argparse.Namespace, *, only_begun: bool) -> int:
    """Settle what dead runs left, and say what that was."""
    path, dry = options.path, options.dry_run
    is_url, file = "://" in path, path if os.path.exists(path) else path.partition(":/")[0]
    folder = os.path.dirname(os.path.abspath(file))
    if not is_url and not os.path.isdir(folder):
        refuse(f"there is no directory {folder}")
    found = [left for left in cf.leftovers(path) if left.is_begun or not only_begun]
    if not dry:
        found = list(cf.recover(path) if only_begun else cf.clean(path))
    for left in found:
        what = "finished or undone" if left.is_begun else "removed"
        size = "chunks at a URL" if "://" in left.claim else format_bytes(left.nbytes)
        also = "; the same call with --resume, or resume=True, would go on with it" if dry and left.resumes else ""
        print(f"{left.output or left.claim}: {size}, {'to be ' * dry}{what}{also}")
    if found:
        print(f"{format_bytes(sum(left.nbytes for left in found))} of dead runs in {path}")
    else:  # of an output nothing may be there yet, or its path is misspelt
        what = "to be finished or undone; chunkflow clean lists what else runs left" if only_begun else "left"
        print(f"nothing is {what}" if is_url or os.path.exists(file) else f"nothing is {what}: there is no {file}")
    return 0

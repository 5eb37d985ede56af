"""``chunkflow verify`` reads all of stored arrays, and reports damage."""

from __future__ import annotations

import argparse
from contextlib import suppress

import chunkflow as cf
from chunkflow.cli.common import Commands, command, failed, matching, said
from chunkflow.errors import ArgumentTypeError, ChunkflowError, hidden
from chunkflow.stores.registry import arrays_in

TEXT = """\
All arrays of a file or group are verified, and each file that a pattern matches by itself. What cannot be opened is
told, and the next path goes on.

  chunkflow verify run.h5 image.zarr
  chunkflow verify "steps/step_*.h5:/fields/u"

Exits with 1 if an array is damaged, or with 2 if a path is wrong."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "verify", run, "read all of stored arrays, and report damage by chunk", TEXT)
    told = "arrays, files with several, groups: .npy, zarr, HDF5, TIFF, a URL; or a pattern of files in quotes"
    parser.add_argument("paths", nargs="+", metavar="PATH", help=told)
    parser.add_argument("--missing", choices=("fill", "error"), help="count chunks that are not stored as damaged")


def run(options: argparse.Namespace) -> int:
    """Verify the arrays; 1 if any is damaged, 2 if a path is wrong."""
    return max([_verified(path, options) for path in options.paths])


def _verified(path: str, options: argparse.Namespace) -> int:
    """Verify all arrays of a path; the exit code."""
    try:
        files = matching(path) or [path]
    except ChunkflowError as error:
        return failed(error, options)
    return max([_code(array, array not in files, options) for file in files for array in _arrays(file)])


def _arrays(file: str) -> list[str]:
    """Paths of the arrays in a file. One that cannot be opened says so when it is verified."""
    with suppress(ChunkflowError, OSError):
        return arrays_in(file)
    return [file]


def _code(array: str, is_member: bool, options: argparse.Namespace) -> int:
    """Verify an array; the exit code. A member of a file or group may be of a kind that cannot be read: no fault."""
    try:
        found = cf.verify(array, missing=options.missing, progress=True)
    except (ChunkflowError, OSError) as error:
        if is_member and isinstance(error, ArgumentTypeError):
            print(f"{hidden(array)}: not verified: {said(error)}", flush=True)
            return 0
        return failed(error, options)
    print(found, flush=True)
    return int(not found)

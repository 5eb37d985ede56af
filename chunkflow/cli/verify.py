"""``chunkflow verify`` reads all of stored arrays, and reports damage."""

from __future__ import annotations

import argparse

import chunkflow as cf
from chunkflow.cli.common import Commands, command


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "verify", run, "read all of stored arrays, and report damage by chunk")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a .npy file, a zarr array, x.h5:/name, or a URL")
    parser.add_argument("--missing", choices=("fill", "error"), help="count chunks that are not stored as damaged")


def run(options: argparse.Namespace) -> int:
    """Verify the arrays; 1 if any is damaged."""
    found = []
    for path in options.paths:
        found.append(cf.verify(path, missing=options.missing, progress=True))
        print(found[-1], flush=True)
    return 0 if all(found) else 1

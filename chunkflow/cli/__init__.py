"""The command line."""

from chunkflow.cli.command import main

__all__ = ["main"]

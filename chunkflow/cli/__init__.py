"""The command line."""

from chunkflow.cli.main import main

__all__ = ["main"]

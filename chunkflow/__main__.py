"""``python -m chunkflow`` is the command ``chunkflow``, of the environment that is at hand."""

from __future__ import annotations

import sys

from chunkflow.cli import main

if __name__ == "__main__":
    sys.exit(main())

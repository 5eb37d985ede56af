"""``python -m chunkflow.cli`` is the command ``chunkflow``."""

from chunkflow.cli.command import main

if __name__ == "__main__":
    raise SystemExit(main())

"""Memory of a card that this process has taken, as the driver counts it: other processes use the card too."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def taken_here(bus: str) -> Callable[[], int | None]:
    """A function that tells the bytes that this process holds of the card with a PCI address.

    It asks NVML, through ``nvidia-ml-py``, and gives None where NVML does not answer: without that package, or in a
    container that hides process numbers. A call takes 40 us on an H100.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        card: Any = pynvml.nvmlDeviceGetHandleByPciBusId(bus)
    except Exception:  # not installed, no driver that knows it, or a card that it does not show
        return lambda: None

    def taken() -> int | None:
        with suppress(Exception):
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card):
                if process.pid == os.getpid() and process.usedGpuMemory is not None:
                    return int(process.usedGpuMemory)
        return None

    return taken

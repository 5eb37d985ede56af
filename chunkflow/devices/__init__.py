"""Where arrays are computed: lanes, events and memory pools. Devices know kernels, but no stores or plans."""

from chunkflow.devices.registry import resolve, within

__all__ = ["resolve", "within"]

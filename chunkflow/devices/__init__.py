"""Where arrays are computed: lanes, events and pools of memory. It knows kernels, and no store or plan."""

from chunkflow.devices.registry import resolve, within

__all__ = ["resolve", "within"]

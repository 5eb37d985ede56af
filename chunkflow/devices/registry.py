"""Devices by name: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or a CUDA ordinal."""

from __future__ import annotations

import importlib
import os
import re
from functools import cache
from typing import Any

from chunkflow.devices.protocol import Device
from chunkflow.errors import ArgumentTypeError, DeviceError

VARIABLE = "CHUNKFLOW_DEVICE"
"""Environment variable with the device to use where none is asked for."""


def resolve(spec: str | int | Device | None = None) -> Device:
    """Device for what a person wrote.

    Parameters
    ----------
    spec : str, int, Device or None
        ``"cpu"``; ``"cuda"`` (the first GPU), ``"cuda:1"`` or an ordinal; ``"auto"``: the first GPU if there
        is one, else the CPU. None means the environment variable ``CHUNKFLOW_DEVICE``, else ``"auto"``.

    Raises
    ------
    DeviceError
        There is no such device, or CuPy is not installed.

    Examples
    --------
    >>> resolve("cpu").name
    'cpu'
    """
    if spec is None:
        spec = os.environ.get(VARIABLE) or "auto"
    if isinstance(spec, bool) or not isinstance(spec, str | int):
        if not isinstance(spec, bool) and hasattr(spec, "lane") and hasattr(spec, "machine"):
            return spec
        raise ArgumentTypeError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:1' or an ordinal, not {spec!r}")
    if isinstance(spec, int):
        spec = f"cuda:{spec}"
    if spec == "auto":
        return _cuda().device(0) if _cuda_present() else _cpu()
    if spec == "cpu":
        return _cpu()
    match = re.fullmatch(r"cuda(?::(\d+))?", spec)
    if match is None:
        raise DeviceError(f"unknown device {spec!r}: use 'auto', 'cpu', 'cuda', 'cuda:1' or an ordinal")
    try:
        found: Device = _cuda().device(int(match[1] or 0))
    except ImportError as error:
        raise DeviceError(
            f"device {spec!r} needs CuPy, which cannot be imported ({error}): install chunkflow-stream[cuda13] "
            "(or [cuda12]), or use device='cpu'"
        ) from error
    return found


@cache
def _cpu(lanes: int | None = None) -> Device:
    module = importlib.import_module("chunkflow.devices.cpu.device")
    device: Device = module.NumpyDevice(lanes=lanes)
    return device


def within(device: Device, threads: int) -> Device:
    """A device for one of several processes of a machine: of the CPU so many cores.

    >>> within(resolve("cpu"), 1).machine.lanes
    1
    """
    return _cpu(threads) if device is _cpu() else device


def _cuda() -> Any:
    return importlib.import_module("chunkflow.devices.cuda.device")


@cache
def _cuda_present() -> bool:
    try:
        return bool(_cuda().count() > 0)
    except ImportError:
        return False

"""Devices by name. A device is a folder with a module ``device.py``, and a row in `KINDS`."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any, NamedTuple

from chunkflow.core.settings import setting
from chunkflow.devices.protocol import Device
from chunkflow.errors import ArgumentTypeError, DeviceError

"""Environment variable with the device to use where none is asked for."""


class DeviceKind(NamedTuple):
    """A kind of device: a pattern of its names, whose group is the ordinal; its folder; and the error without it.

    The folder has a module ``device.py`` with ``count()``, and with ``device(ordinal)``, which makes each device once.
    """

    pattern: str
    folder: str
    error: str = "cannot be imported ({error})"

    @property
    def module(self) -> Any:
        """The module of the device, imported when it is first asked for."""
        return importlib.import_module(f"chunkflow.devices.{self.folder}.device")


CPU = DeviceKind("cpu", "cpu")
"""The host, whose cores `within` shares out."""

KINDS = (
    DeviceKind(
        r"cuda(?::(\d+))?",
        "cuda",
        "needs CuPy, which cannot be imported ({error}): install chunkflow-stream[cuda13] (or [cuda12]), or use "
        "device='cpu'",
    ),
    CPU,
)
"""The kinds of device, in the order in which ``"auto"`` looks for one."""


def resolve(spec: str | int | Device | None = None) -> Device:
    """Device for what a person wrote.

    Parameters
    ----------
    spec : str, int, Device or None
        ``"cpu"``; ``"cuda"`` (the first GPU), ``"cuda:1"`` or an ordinal; ``"auto"``: the first GPU if there
        is one, else the CPU. None means the setting ``device``.

    Raises
    ------
    DeviceError
        There is no such device, or CuPy is not installed.

    Examples
    --------
    >>> resolve("cpu").name
    'cpu'
    """
    origin = ""
    if spec is None:
        spec, origin = setting("device"), " (the setting `device`, of chunkflow.config or CHUNKFLOW_DEVICE)"
    if isinstance(spec, bool) or not isinstance(spec, str | int):
        if not isinstance(spec, bool) and hasattr(spec, "lane") and hasattr(spec, "machine"):
            return spec
        raise ArgumentTypeError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:1' or an ordinal, not {spec!r}")
    if isinstance(spec, int):
        spec = f"cuda:{spec}"
    for kind in KINDS:
        match = re.fullmatch(kind.pattern, spec)
        if match is None and not (spec == "auto" and is_present(kind)):
            continue
        try:
            cores = (setting("threads"),) if kind is CPU and setting("threads") else ()
            found: Device = kind.module.device(*cores, *(int(n) for n in (match.groups() if match else ()) if n))
        except ImportError as error:
            raise DeviceError(f"device {spec!r}{origin} {kind.error.format(error=error)}") from error
        return found
    raise DeviceError(f"unknown device {spec!r}{origin}: use 'auto', 'cpu', 'cuda', 'cuda:1' or an ordinal")


def within(device: Device, threads: int) -> Device:
    """A device for one of several processes of a machine. Of the CPU it has so many cores.

    >>> within(resolve("cpu"), 1).machine.lanes
    1
    """
    return CPU.module.device(threads) if device is CPU.module.device() else device


@cache
def is_present(kind: DeviceKind) -> bool:
    """Whether there is a device of a kind, and all that it needs is installed."""
    try:
        return bool(kind.module.count() > 0)
    except ImportError:
        return False

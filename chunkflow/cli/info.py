"""``chunkflow info`` says what a bug report needs: versions, machine, devices, codecs and settings.

With files it says what arrays are in them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import chunkflow as cf
from chunkflow.cli.common import Commands, command, matching
from chunkflow.cli.contents import show
from chunkflow.core.settings import temporary_directory
from chunkflow.core.units import format_bytes
from chunkflow.devices import measured_rates
from chunkflow.devices.registry import CPU, KINDS
from chunkflow.errors import ArgumentError, hidden
from chunkflow.system import host, native

TEXT = """\
With FILEs it shows the arrays in them: the path that other commands take, dtype, shape, bytes, the chunks and codecs
that they are stored with, names of dimensions, units, how numbers are packed and which stand for missing values, and
how they are read. No element is read.

  chunkflow info run.h5
  chunkflow info image.zarr "frames/*.tif" --json

Without one it shows the machine. Nothing is measured: see `chunkflow doctor`. Passwords in URLs are hidden."""

PACKAGES = (
    "numpy",
    "zarr",
    "numcodecs",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-ml-py",
    "nvidia-libnvcomp-cu12",
    "nvidia-libnvcomp-cu13",
    "deflate",
    "isal",
    "h5py",
    "hdf5plugin",
    "dask",
    "distributed",
    "xarray",
    "fsspec",
    "aiohttp",
    "s3fs",
    "gcsfs",
    "tensorstore",
    "torch",
    "jax",
)
"""Distributions whose versions matter."""

_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def add(commands: Commands) -> None:
    """Add the command."""
    told = "show the arrays in files; or versions, machine, devices, codecs and settings"
    parser = command(commands, "info", run, told, TEXT)
    told = "HDF5, netCDF, a zarr group or array, TIFF, .npy, or a URL"
    parser.add_argument("files", metavar="FILE", nargs="*", help=told)
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(options: argparse.Namespace) -> int:
    """Print what is found."""
    if options.files:
        return show([each for file in options.files for each in matching(file) or [file]], as_json=options.json)
    found = gathered()
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for section, values in found.items():
        print(section)
        for name, value in values.items():
            print(f"  {name:<22} {_text(name, value)}")
    return 0


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict) and "from" in value:
        refused = f"; refused: {value['refused']}" if "refused" in value else ""
        return f"{value['value']} ({value['from']}{refused})"
    if isinstance(value, dict) and value.keys() == {"unavailable"}:
        return str(value["unavailable"])
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(key, each)}" for key, each in value.items())
    if isinstance(value, bool) or value is None:
        return {None: "none", True: "yes", False: "no"}[value]
    sized = isinstance(value, int) and name.endswith(("memory", "free", "limit"))
    return format_bytes(value) if sized else str(value)


def gathered() -> dict[str, dict[str, Any]]:
    """All sections, of values that JSON has."""
    return {
        "versions": versions(),
        "machine": machine(),
        "devices": devices(),
        "chunkflow": _parts(),
        "settings": configuration(),
    }


def versions() -> dict[str, str]:
    """Versions of chunkflow, Python and the installed packages that matter. None of them is imported."""
    found = {"chunkflow": cf.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def machine() -> dict[str, Any]:
    """The system, the processor, memory and the directory of temporary files."""
    folder = _temporary_directory()
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": platform.platform(),
        "processor": host.processor(),
        "cores": host.cores(),
        "memory": pages,
        "available memory": host.available_memory(),
        "container's limit": _memory_limit(),
        "temporary files": folder,
        "temporary files free": shutil.disk_usage(folder).free,
    }


def _temporary_directory() -> str:
    try:
        return temporary_directory()
    except ArgumentError:  # a wrong setting is shown below
        return tempfile.gettempdir()


def _memory_limit() -> int | None:
    with suppress(OSError, ValueError):
        return int(_MEMORY_LIMIT.read_text())  # "max" for none
    return None


def devices() -> dict[str, Any]:
    """The devices that runs can use, with their memory and kept rates; or why there is no GPU."""
    found: dict[str, Any] = {"cpu": {"rates": _rates(CPU.module.device().model)}}
    for kind in KINDS:
        if kind is not CPU:
            found.update(_tried(partial(_gpus, kind), kind.folder))
    return found


def _gpus(kind: Any) -> dict[str, Any]:
    if importlib.util.find_spec("cupy") is None:
        return {kind.folder: {"unavailable": "CuPy is not installed"}}
    number = kind.module.count()
    return {each.name: _gpu(each) for each in map(kind.module.device, range(number))} or {
        kind.folder: {"unavailable": "no GPU"}
    }


def _gpu(device: Any) -> dict[str, Any]:
    about = {"model": device.model, "free": device.free_memory()}
    about.update(_nvml(device.name))
    codecs = sorted({decoding.codec for decoding in device.machine.decodings})
    return {**about, "decodes": codecs, "rates": _rates(device.model)}


def _nvml(name: str) -> dict[str, Any]:
    """What the driver says besides, where nvidia-ml-py is installed: memory, version, link."""
    with suppress(Exception):
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(int(name.partition(":")[2]))
        generation, width = nvml.nvmlDeviceGetCurrPcieLinkGeneration(card), nvml.nvmlDeviceGetCurrPcieLinkWidth(card)
        return {
            "memory": int(nvml.nvmlDeviceGetMemoryInfo(card).total),
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "link": f"PCIe {generation} x{width}",
        }
    return {}


def _rates(model: str) -> str:
    where = measured_rates.path(model)
    return (
        f"measured, in {where}"
        if where is not None and where.is_file()
        else "usual ones: chunkflow calibrate measures them"
    )


def _parts() -> dict[str, Any]:
    """What chunkflow has of its own: compiled loops, and decoders of the host."""
    return {
        "installed in": str(Path(cf.__file__).parent),
        "compiled loops": native.complete,
        **_tried(lambda: {"decodes itself": codecs()}, "decodes itself"),
    }


def codecs() -> list[str]:
    """Codecs that the host decodes without zarr's or HDF5's own pipeline."""
    return sorted(importlib.import_module("chunkflow.stores.codecs.registry").ZARR_2)


def configuration() -> dict[str, Any]:
    """Settings and where each comes from, and other variables of the environment."""
    found: dict[str, Any] = {"files": f"refused: {hidden(cf.config.unread)}"} if cf.config.unread else {}
    for name, (value, origin) in cf.config.sources().items():
        plain = value if isinstance(value, bool | int | float | None) else hidden(str(value))
        found[name] = {"value": plain, "from": hidden(str(origin))}
        if refused := cf.config.refused(name):
            found[name]["refused"] = hidden(str(refused))
    found |= dict.fromkeys(cf.config.unknown(), "no such setting, in a file")
    settings = {f"CHUNKFLOW_{name.upper()}" for name in found}
    for name, value in sorted(os.environ.items()):
        if name.startswith("CHUNKFLOW_") and name not in settings:
            wrong = "; no such setting: misspelt?" if name in cf.config.misspelt() else ""
            found[name] = {"value": hidden(value), "from": f"environment{wrong}"}
    return found


def _tried(found: Callable[[], dict[str, Any]], name: str) -> dict[str, Any]:
    """What is found, or the error instead: a bug report needs it, too."""
    try:
        return found()
    except Exception as error:
        return {name: hidden(f"{type(error).__name__}: {error}")}

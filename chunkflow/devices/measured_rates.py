"""Rates that were measured on this machine. They are kept in a file, and replace the default ones.

``chunkflow calibrate`` writes the file (`chunkflow.cli.calibrate` measures). It lies in the directory that the
environment variable ``CHUNKFLOW_RATES`` names, or else in the user's cache. Its name is made of the device, the
processor and the number of cores, so that machines may share the directory. With ``CHUNKFLOW_RATES=0`` no file is used.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkflow.core.machine import Machine
from chunkflow.errors import ArgumentError
from chunkflow.system.host import cores, processor
from chunkflow.system.users_line import users_line

VARIABLE = "CHUNKFLOW_RATES"

ABSENT = ("create", "scatter", "separate", "load", "disk", "fresh", "multiply")
"""Rates that a device may lack."""

RATES = ("read", "upload", "compute", "download", "write", "decode", "encode", *ABSENT)
"""Bytes, or multiply-adds, per second."""

SECONDS = ("overhead", "handling")
"""Seconds for each block, and for each chunk that is read."""

LONGEST = 1.0
"""Most seconds of these that are believed."""

SIZES = {"threads": (1, 256), "piece": (4 << 10, 1 << 30)}
"""Integers, with their least and greatest values."""


def path(model: str) -> Path | None:
    """The file with the rates of a device of this model; None if none is wanted.

    >>> os.environ[VARIABLE] = "/var/cache/rates"
    >>> path("cpu").parent.as_posix()
    '/var/cache/rates'
    >>> os.environ[VARIABLE] = "0"
    >>> path("cpu") is None
    True
    """
    where = os.environ.get(VARIABLE)
    if where == "0":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chunkflow"
    name = re.sub(r"[^a-z0-9]+", "-", f"{model} {processor()} {cores()}".lower()).strip("-")
    return (Path(where) if where else base) / f"{name}.json"


def kept(machine: Machine, model: str) -> Machine:
    """`machine` with its measured rates, if there are any.

    A file that cannot be used gives a warning only: rates matter for speed, not for results.
    """
    where = path(model)
    if where is None:
        return machine
    try:
        import json  # not at the top: it takes a millisecond

        return replace(machine, **_checked(json.loads(where.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        return machine
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        warnings.warn(
            f"rates in {where} are not used: {error}. Run `chunkflow calibrate` again", stacklevel=users_line()
        )
        return machine


def are_kept(model: str) -> bool:
    """Whether rates of a device of this model were measured here, and are wanted."""
    where = path(model)
    return where is not None and where.exists()


def keep(machine: Machine, model: str) -> Path:
    """Write the rates of a machine, for later processes.

    `ArgumentError` if none are wanted, or the file cannot be written.
    """
    where = path(model)
    if where is None:
        raise ArgumentError(f"{VARIABLE}=0 says that no rates are kept: unset it, or name a directory")
    import json

    values = {name: getattr(machine, name) for name in (*RATES, *SIZES, *SECONDS)}
    partial = where.with_suffix(f".{os.getpid()}")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, where)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise ArgumentError(f"cannot keep rates in {where}: {error}: name a directory in {VARIABLE}") from error
    return where


def forget(model: str) -> Path | None:
    """Remove the file; return its path, or None if there was none."""
    where = path(model)
    try:
        if where is not None:
            where.unlink()
        return where
    except FileNotFoundError:
        return None


def _checked(values: object) -> dict[str, Any]:
    """The contents of a file, checked."""
    if not isinstance(values, dict):
        raise ValueError("it holds no table")
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in (*RATES, *SIZES, *SECONDS):
            raise ValueError(f"it has an unknown entry {name!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} is {value!r}, which is no rate")
        usual = (0 if name in (*SECONDS, *ABSENT) else 1, LONGEST if name in SECONDS else math.inf)
        low, high = SIZES.get(name, usual)
        if 0 < value < 1 and name not in (*SECONDS, *SIZES):
            raise ValueError(f"{name} is {value!r}, which is less than a byte per second")
        if not low <= value <= high or (name in SIZES and not isinstance(value, int)):
            raise ValueError(f"{name} is {value!r}, and must be between {low} and {high}")
        found[name] = value
    return found

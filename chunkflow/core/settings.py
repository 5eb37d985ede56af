"""What calls leave open, and where it is set: `chunkflow.config` has the values, which this module checks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from chunkflow.core.spelling import meant
from chunkflow.core.units import parse_bytes
from chunkflow.errors import ArgumentError
from chunkflow.system.deferred import at


class Setting(NamedTuple):
    """A setting: what it is where nobody says anything, what it is for, and what makes a value of what was said."""

    default: Any
    says: str
    checked: Callable[[Any], Any]


_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": None, "null": None}


def _budget(value: Any) -> Any:
    parse_bytes(value, whole=1 << 62)
    return value


def _device(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"|auto|cpu|cuda(:\d+)?|\d+", value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ArgumentError("it must be 'auto', 'cpu', 'cuda', 'cuda:1' or an ordinal")


def _number(value: Any) -> int | None:
    value = _plain(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ArgumentError("it must be a whole number, at least 1, or None")


def _bytes(value: Any) -> int:
    return parse_bytes(value)


def _bytes_or_none(value: Any) -> int | None:
    return None if _plain(value) is None else parse_bytes(value)


def _plain(value: Any) -> Any:
    """What a text of the environment stands for, in YAML's words; other values as they are."""
    return _WORDS.get(value.lower(), value) if isinstance(value, str) else value


def _switch(value: Any) -> bool:
    value = _plain(value)
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ArgumentError("it must be True or False")


def _switch_or_none(value: Any) -> bool | None:
    return None if _plain(value) is None else _switch(value)


def _progress(value: Any) -> Any:
    return value if value == "always" or callable(value) else _switch(value)


def _folder(value: Any) -> str | None:
    if _plain(value) is None:
        return None
    if isinstance(value, str | os.PathLike) and Path(value).is_dir():
        return os.fspath(value)
    raise ArgumentError("there is no such directory")


SETTINGS: dict[str, Setting] = {
    "budget": Setting("80%", "bytes, or a share of the device's free memory, of runs without `budget=`", _budget),
    "device": Setting("auto", "the device of runs without `device=`", _device),
    "threads": Setting(None, "cores that runs on the CPU use; None for all that the process may use", _number),
    "piece": Setting(None, "bytes that a thread moves to or from a GPU at a time, from the first run there on; None as "
                     "measured", _bytes_or_none),
    "progress": Setting(False, "whether runs without `progress=` show a bar", _progress),
    "sync": Setting(False, "whether outputs are on the disk when a call without `sync=` ends", _switch),
    "checksum": Setting(None, "whether new zarr arrays and HDF5 datasets get checksums; None as the format has it",
                        _switch_or_none),
    "array_limit": Setting("1GB", "bytes of an expression up to which it is computed where an array is needed", _bytes),
    "message_limit": Setting("64MB", "bytes of an array in memory up to which it travels in a pickled expression",
                             _bytes),
    "temporary_directory": Setting(None, "where temporary files lie; None as Python's `tempfile` has it", _folder),
}  # fmt: skip
"""All settings, by name."""

VARIABLES = frozenset(f"CHUNKFLOW_{name}" for name in ("COMPILED", "CONFIG", "DEBUG", "NVCOMP", "RATES"))
"""Variables of the environment that are no settings."""


def checked(name: str, value: Any, origin: str) -> Any:
    """A value as it is used.

    Raises
    ------
    ArgumentError
        It is none for this setting, or there is no such setting.
    """
    if name not in SETTINGS:
        there = meant(name, SETTINGS) or f": there are {', '.join(SETTINGS)}"
        raise ArgumentError(f"{name!r} ({origin}) is no setting{there}")
    try:
        return SETTINGS[name].checked(value)
    except (ArgumentError, TypeError) as error:
        raise ArgumentError(f"{name}={value!r} ({origin}): {error}") from error


def setting(name: str) -> Any:
    """What is set now; an empty text, as of a variable of the environment, is nothing.

    >>> setting("sync")
    False
    """
    return checked(name, _value(name), "chunkflow.config")


def origin(name: str) -> str:
    """Where a setting comes from, for users: files are read for it."""
    return str(_sources()[name][1])


_sources = at("chunkflow.core.config:sources")
_value = at("chunkflow.core.config:value")  # donfig takes 30 ms to load: more than the rest of this wing


def temporary_directory() -> str:
    """Where temporary files lie."""
    import tempfile  # not at the top: it takes 2 ms

    return str(setting("temporary_directory") or tempfile.gettempdir())

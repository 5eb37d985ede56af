"""`chunkflow.config`: settings from the environment, from files, or for a ``with`` block, by donfig as zarr's are."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import donfig
from donfig.config_obj import collect_yaml

from chunkflow.core.markup import preformatted
from chunkflow.core.settings import SETTINGS, VARIABLES, checked
from chunkflow.errors import ArgumentError
from chunkflow.system.users_line import users_line

PREFIX = "CHUNKFLOW_"

CLOSE = 0.8
"""Likeness of a name to that of a setting, from which on it is likely a misspelling of it."""


class Config(donfig.Config):  # type: ignore[misc]
    """Settings of what calls leave open; an argument of a call always comes first.

    A value is, in this order: what `set` gave; the environment's variable, as ``CHUNKFLOW_BUDGET=4GB``; that of a
    YAML file in ``~/.config/chunkflow/`` or in the directory ``CHUNKFLOW_CONFIG``; and the default. The environment and
    files are read once, and again by `refresh`. All of them are checked when the first setting is needed. The names
    are those of `chunkflow.core.settings.SETTINGS`.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> with cf.config.set(budget="1MB", device="cpu"):
    ...     plan = cf.explain(np.sqrt, np.ones((100, 100)))
    >>> plan.budget
    1000000
    >>> cf.config.get("array_limit")
    '1GB'
    """

    def __repr__(self) -> str:
        return "\n".join(f"{name:<20} {value!s:<12} {origin}" for name, (value, origin) in self.sources().items())

    def _repr_html_(self) -> str:
        return preformatted(repr(self))

    def set(self, arg: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        """Set some, for good or inside a ``with`` block; in all threads.

        Parameters
        ----------
        arg : mapping, optional
        **kwargs
            Settings by name.

        Raises
        ------
        ArgumentError
            There is no such setting, or the value is none for it. Nothing is set then.
        """
        given = {**(arg or {}), **kwargs}
        for name, value in given.items():
            checked(name, value, "given to set()")
        return super().set(given)

    def refresh(self, **kwargs: Any) -> None:
        """Read the environment and files again."""
        self._is_checked, self._unread = False, ""
        place = self.env.get(f"{PREFIX}CONFIG")
        if place and not Path(place).exists():
            self._unread = f"{PREFIX}CONFIG names {place}, which does not exist"
        try:
            super().refresh(**kwargs)
        except Exception as error:  # of YAML's, of files', of what is in them
            self._unread = f"settings cannot be read: {' '.join(str(error).split())}"

    def value(self, name: str) -> Any:
        """A setting as it was said; an empty text, as of a variable of the environment, is nothing.

        Raises
        ------
        ArgumentError
            Some setting of the environment or of a file makes no sense, whether it is this one or not.
        """
        if not self._is_checked:
            if self._unread:
                raise ArgumentError(self._unread)
            for other in SETTINGS:
                if said := self.refused(other):
                    raise said
            self._is_checked = True  # also if a warning is an error: it is said once
            self._warn()
        found = self.get(name)
        return SETTINGS[name].default if found == "" else found

    @property
    def unread(self) -> str:
        """Why files were not read, if so."""
        return self._unread

    def refused(self, name: str) -> ArgumentError | None:
        """Why the value of a setting makes no sense, if so."""
        value = self.get(name)
        if value != "":
            try:
                checked(name, value, "chunkflow.config")
            except ArgumentError:
                try:
                    checked(name, value, self.sources()[name][1])
                except ArgumentError as error:
                    return error
        return None

    def _warn(self) -> None:
        for name in self.unknown():
            said = f"{name!r} is no setting of chunkflow's, and a file has it: {_meant(name)}"
            warnings.warn(said, stacklevel=users_line())
        for name in self.misspelt():
            warnings.warn(f"{name} is no setting of chunkflow's: {_meant(name)}", stacklevel=users_line())

    def sources(self) -> dict[str, tuple[Any, str]]:
        """Of each setting its value, and where that comes from.

        >>> import chunkflow as cf
        >>> with cf.config.set(sync=True):
        ...     cf.config.sources()["sync"]
        (True, 'config.set')
        """
        found = {}
        for name, setting in SETTINGS.items():
            value, origin, of_it = self.get(name), "default", setting.default
            for path in map(Path, () if self._unread else self.paths):
                for file in sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]:
                    for content in collect_yaml([str(file)]):
                        if (said := {key.replace("-", "_"): each for key, each in content.items()}) and name in said:
                            origin, of_it = str(file), said[name]
            environment = self.collect(paths=[])
            if name in environment:
                origin, of_it = f"{PREFIX}{name.upper()} in the environment", environment[name]
            found[name] = value, origin if value == of_it else "config.set"
        return found

    def misspelt(self) -> list[str]:
        """Variables of the environment that are likely misspelt. Others may be somebody else's.

        >>> Config("chunkflow", env={"CHUNKFLOW_BUDGTE": "1GB", "CHUNKFLOW_HOME": "/"}).misspelt()
        ['CHUNKFLOW_BUDGTE']
        """
        known = {f"{PREFIX}{name.upper()}" for name in SETTINGS} | VARIABLES
        names = (name for name in self.env if name.startswith(PREFIX) and name not in known)
        return sorted(name for name in names if _close(name))

    def unknown(self) -> list[str]:
        """Names in files that are no settings: they are likely misspelt."""
        found = {name for content in collect_yaml([] if self._unread else self.paths) for name in content}
        return sorted(name for name in found if name.replace("-", "_") not in SETTINGS)


def _close(name: str) -> list[str]:
    return difflib.get_close_matches(name.removeprefix(PREFIX).lower(), SETTINGS, 1, CLOSE)


def _meant(name: str) -> str:
    return f"{_close(name)[0]!r} is one" if _close(name) else f"there are {', '.join(SETTINGS)}"


config = Config("chunkflow", defaults=[{name: setting.default for name, setting in SETTINGS.items()}], env=os.environ)
"""The settings of this process."""

value, sources = config.value, config.sources

"""`chunkflow.config`: settings from the environment, from files, or for a ``with`` block, by donfig as zarr's are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import donfig
from donfig.config_obj import collect_yaml

from chunkflow.core.settings import SETTINGS, checked

PREFIX = "CHUNKFLOW_"


class Config(donfig.Config):  # type: ignore[misc]
    """Settings of what calls leave open; an argument of a call always comes first.

    A value is, in this order: what `set` gave; the environment's variable, as ``CHUNKFLOW_BUDGET=4GB``; that of a
    YAML file in ``~/.config/chunkflow/`` or in the directory ``CHUNKFLOW_CONFIG``; and the default. The environment and
    files are read once, and again by `refresh`. The names are those of `chunkflow.core.settings.SETTINGS`.

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
            for path in map(Path, self.paths):
                for file in sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]:
                    for content in collect_yaml([str(file)]):
                        if name in content:
                            origin, of_it = str(file), content[name]
            environment = self.collect(paths=[])
            if name in environment:
                origin, of_it = f"{PREFIX}{name.upper()} in the environment", environment[name]
            found[name] = value, origin if value == of_it else "config.set"
        return found

    def unknown(self) -> list[str]:
        """Names in files that are no settings: they are likely misspelt."""
        return sorted({name for content in collect_yaml(self.paths) for name in content} - set(SETTINGS))


config = Config("chunkflow", defaults=[{name: setting.default for name, setting in SETTINGS.items()}], env=os.environ)
"""The settings of this process."""

value = config.get

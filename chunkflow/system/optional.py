"""Packages that an extra of chunkflow installs."""

from __future__ import annotations


def missing(error: ModuleNotFoundError, package: str, what: str, extra: str = "") -> ModuleNotFoundError:
    """The error of an import, with the command that installs a package if that is what is missing.

    Without an `extra` of chunkflow's it is the package's own name that is installed.

    >>> print(missing(ModuleNotFoundError(name="dask.array"), "dask", "chunkflow.dask", "dask"))
    chunkflow.dask needs dask, which is not installed: pip install "chunkflow-stream[dask]"
    """
    if (error.name or "").partition(".")[0] != package:
        return error
    command = f'"chunkflow-stream[{extra}]"' if extra else package
    told = f"{what} needs {package}, which is not installed: pip install {command}"
    return ModuleNotFoundError(told, name=error.name)

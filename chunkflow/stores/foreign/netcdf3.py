"""Variables of netCDF files of version 3, which xarray reads, with scipy or netCDF4."""

from __future__ import annotations

import importlib
import os
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from chunkflow.errors import ArgumentError, ReadError
from chunkflow.stores.foreign.xarray import StoredSource, StoredVariable
from chunkflow.stores.identity import Guard
from chunkflow.stores.new_array import StoredLabels
from chunkflow.stores.paths import listed, netcdf3_parts
from chunkflow.stores.protocol import Source


class Netcdf3Source(StoredSource):
    """A variable of a file, as it is stored: its attributes say what its numbers mean."""

    def __init__(self, path: str, file: str, dataset: Any, name: str) -> None:
        variable = dataset[name].variable
        super().__init__(StoredVariable(variable, variable.dims), None)
        self._dataset, self.attributes = dataset, dict(variable.attrs)
        self.spec = replace(self.spec.with_storage(how="through xarray"), name=path)
        self.guard = Guard.of_files(path, file)
        self.labels = partial(_labels_of, variable)

    def close(self) -> None:
        """See `Source.close`."""
        self._dataset.close()


def _labels_of(variable: Any) -> StoredLabels:
    """Attributes of a variable as Python's numbers, texts and lists of them, and names of its dimensions."""
    numpys = (np.ndarray, np.generic)
    attributes = {key: v.tolist() if isinstance(v, numpys) else v for key, v in variable.attrs.items()}
    return StoredLabels(attributes, tuple(map(str, variable.dims)))


def inside(path: str) -> list[str]:
    """Paths of the variables in a file; none of a variable."""
    parts = netcdf3_parts(path)
    assert parts is not None
    file, name = parts
    if name:
        return []
    with closing(_opened(os.path.abspath(file))) as dataset:
        return [f"{file}:{each}" for each in dataset.variables]


def open_netcdf3(path: str) -> Source:
    """Source of a variable of a netCDF file of version 3, by its path ``file.nc:name``; of ``file.nc`` if it has one.

    Raises
    ------
    ArgumentError
        It has no such variable, or what xarray needs is not installed.
    ReadError
        Xarray cannot read it.
    """
    parts = netcdf3_parts(path)
    assert parts is not None
    file, name = os.path.abspath(parts[0]), parts[1]
    dataset = _opened(file)
    if not name and len(dataset.data_vars) == 1:
        name = str(next(iter(dataset.data_vars)))
    if name not in dataset.variables:
        dataset.close()
        raise ArgumentError(
            f"{file} holds {listed(map(str, dataset.variables))}: add the name of one, as in "
            f"'{parts[0]}:{next(iter(dataset.data_vars), 'name')}'"
        )
    return Netcdf3Source(f"{file}:{name}", file, dataset, name)


def _opened(file: str) -> Any:
    """The dataset of xarray's that a file is."""
    try:
        return importlib.import_module("xarray").open_dataset(file, decode_cf=False)
    except (ImportError, ValueError) as error:  # ValueError: there is no backend for it
        why = " ".join(str(error).split("\n")[0].split())
        raise ArgumentError(
            f"{file} is netCDF 3, which xarray reads with scipy or netCDF4: pip install xarray scipy ({why})"
        ) from error
    except Exception as error:  # of whatever library reads it
        raise ReadError(f"xarray cannot read {file}: {type(error).__name__}: {error}", path=file) from error

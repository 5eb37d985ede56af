"""Zarr arrays of datetime64 and timedelta64, by metadata that have integers in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chunkflow.stores.times import NAT, counts_dtype


def counted(metadata: Mapping[str, Any], times: np.dtype | None, name: str) -> dict[str, Any]:
    """Metadata of an array of the dtype `times`, whose elements are read as integers; without a dtype as they are.

    Raises
    ------
    ReadError
        The array has another dtype.

    Examples
    --------
    >>> counted({"zarr_format": 2, "dtype": ">M8[us]", "fill_value": "NaT"}, np.dtype("M8[us]"), "log.zarr")
    {'zarr_format': 2, 'dtype': '>i8', 'fill_value': -9223372036854775808}
    """
    found = dict(metadata)
    if times is None or found.get("node_type", "array") != "array":
        return found
    if found.get("zarr_format") == 2:
        found["dtype"] = counts_dtype(found["dtype"], times, name).str
    else:
        counts_dtype(_dtype(found["data_type"]), times, name)
        found["data_type"] = "int64"
    return found | {"fill_value": NAT if found["fill_value"] == "NaT" else found["fill_value"]}


def _dtype(given: Any) -> str:
    """NumPy's name of a dtype of format 3, if it is one of times."""
    if not isinstance(given, Mapping):
        return str(given)
    how = given.get("configuration", {})
    return f"{str(given['name']).removeprefix('numpy.')}[{how.get('scale_factor')}{how.get('unit')}]"

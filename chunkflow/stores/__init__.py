"""Where arrays live: sources to read from and targets to write to.

Stores know regions and NumPy arrays; they know no device, plan or operation. `protocol` has the contracts, `registry`
says which format opens what, and `chunkflow.testing.stores` has the tests that every store inherits.
"""

from chunkflow.stores.checks import is_dask_array, is_labelled
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.new_array import NewArray
from chunkflow.stores.protocol import Sink, Source, Target
from chunkflow.stores.registry import (
    Between,
    Published,
    array_of,
    format_of,
    is_new,
    open_source,
    open_target,
    scratch_array,
    spec_of,
)

__all__ = [
    "Between",
    "ExistingArray",
    "NewArray",
    "Published",
    "Sink",
    "Source",
    "Target",
    "array_of",
    "format_of",
    "is_dask_array",
    "is_labelled",
    "is_new",
    "open_source",
    "open_target",
    "scratch_array",
    "spec_of",
]

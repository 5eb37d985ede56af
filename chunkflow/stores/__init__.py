"""Where arrays live: sources to read from and targets to write to. It knows regions and NumPy, and no device."""

from chunkflow.stores.protocol import Sink, Source, Target
from chunkflow.stores.registry import is_dask_array, is_labelled, open_source, open_target, spec_of

__all__ = ["Sink", "Source", "Target", "is_dask_array", "is_labelled", "open_source", "open_target", "spec_of"]

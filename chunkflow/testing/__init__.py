"""Contract suites that every store, device and reduction passes, and arrays that count or fail.

For tests only: needs pytest and hypothesis.
"""

from chunkflow.testing.arrays import CountingSource, FailingArray, filled, laid_out
from chunkflow.testing.devices import DeviceContract
from chunkflow.testing.reductions import ReductionContract
from chunkflow.testing.stores import PathSinkContract, SinkContract, SourceContract

__all__ = [
    "CountingSource",
    "DeviceContract",
    "FailingArray",
    "PathSinkContract",
    "ReductionContract",
    "SinkContract",
    "SourceContract",
    "filled",
    "laid_out",
]

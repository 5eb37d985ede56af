"""Contract suites that every store, codec, device and reduction passes, and arrays that count or fail.

For tests only: needs pytest and hypothesis.
"""

from chunkflow.testing.arrays import CountingSource, FailingArray, filled, laid_out
from chunkflow.testing.codecs import CodecContract
from chunkflow.testing.devices import DeviceContract
from chunkflow.testing.foreign import ForeignReader, ForeignWriter
from chunkflow.testing.reductions import ReductionContract
from chunkflow.testing.stores import PathSinkContract, SinkContract, SourceContract

__all__ = [
    "CodecContract",
    "CountingSource",
    "DeviceContract",
    "FailingArray",
    "ForeignReader",
    "ForeignWriter",
    "PathSinkContract",
    "ReductionContract",
    "SinkContract",
    "SourceContract",
    "filled",
    "laid_out",
]

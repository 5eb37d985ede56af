"""Contract suites that every store, codec, device and reduction passes, and arrays that count or fail.

For tests only: needs pytest and hypothesis.
"""

from chunkflow.testing.arrays import CountingSource, FailingArray, filled, laid_out
from chunkflow.testing.codecs import CodecContract
from chunkflow.testing.devices import DeviceContract
from chunkflow.testing.reductions import ReductionContract
from chunkflow.testing.stores import PathSinkContract, Reader, SinkContract, SourceContract, Writer

__all__ = [
    "CodecContract",
    "CountingSource",
    "DeviceContract",
    "FailingArray",
    "PathSinkContract",
    "Reader",
    "ReductionContract",
    "SinkContract",
    "SourceContract",
    "Writer",
    "filled",
    "laid_out",
]

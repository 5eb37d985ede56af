"""Targets that are HDF5 datasets of the user's."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.core.grid import Region
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, WriteError
from chunkflow.stores.checks import ExistingTarget
from chunkflow.stores.codecs.step import encoded
from chunkflow.stores.failures import translated, unwritten
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.hdf5.facts import Facts, facts_of, lacking
from chunkflow.stores.hdf5.index import full_chunk
from chunkflow.stores.protocol import Encoder
from chunkflow.stores.touched import aligned, touched


class DatasetTarget(ExistingTarget):
    """An `h5py.Dataset` of the user's."""

    def __init__(self, dataset: Any) -> None:
        if not dataset:
            raise ArgumentError(
                "the file of an HDF5 dataset was closed before it could be written: keep it open until the run is over"
            )
        self.dataset, self._facts = dataset, facts_of(dataset)
        self._spec = self._facts.spec
        self.name = self._facts.name
        if dataset.file.mode == "r":
            raise ArgumentError(f"the output {self.name} lies in a file that was opened read-only: open it with 'r+'")
        self.writes = self._facts.path or ""
        self.footprint: Footprint | None = self._facts.footprint

    def open(self, spec: ArraySpec) -> DatasetSink:
        return DatasetSink(self.dataset, self._facts)

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        chain, dtype = self._facts.chain, self._facts.dtype
        if chain is None or not chain.encodes or not chain.steps:
            return None
        steps = chain.steps
        return lambda block: encoded(np.ascontiguousarray(block, dtype), steps)


class DatasetSink:
    """A dataset of the user's that is being written.

    Its file is open, and h5py may buffer any of its bytes, so h5py stores them. Whole chunks are encoded here before.
    """

    def __init__(self, dataset: Any, facts: Facts) -> None:
        self._dataset, self._facts, self.spec = dataset, facts, facts.spec
        self._chain = facts.chain if facts.chain is not None and facts.chain.encodes else None

    def write(self, region: Region, block: np.ndarray) -> None:
        if not block.size:
            return
        facts, chunks = self._facts, self._facts.chunks
        try:
            if self._chain is None or chunks is None or not aligned(region, chunks, facts.shape):
                self._dataset[region] = block
                return
            for index, inner, place in touched(region, chunks):
                corner = tuple(i * c for i, c in zip(index, chunks, strict=True))
                if any(at + c > n for at, c, n in zip(corner, chunks, facts.shape, strict=True)):
                    # The dataset may say that chunks at the edge are not filtered, and h5py does not tell.
                    part = tuple(slice(at + s.start, at + s.stop) for at, s in zip(corner, inner, strict=True))
                    self._dataset[part] = block[place]
                    continue
                raw = self._chain.encode(full_chunk(block[place], inner, chunks, facts.dtype, facts.fill))
                self._dataset.id.write_direct_chunk(corner, raw)
        except Exception as error:
            failed = OSError(f"{error}{missing}") if (missing := lacking(self._dataset)) else error
            raise unwritten(region, self.spec.name, failed, "to the HDF5 dataset") from error

    def commit(self) -> Any:
        with translated(WriteError, f"cannot finish {self.spec.name}", self.spec.name):
            self._dataset.file.flush()
        return self._dataset

    def abort(self) -> None:
        """See `Sink.abort`: what was written stays, as in any assignment that fails half-way."""

"""A source whose elements are those of other sources, in other places: nothing is moved before it is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chunkflow.grid import Region, Shape, shape_of, within
from chunkflow.ops.rearrange import Arrangement, Piece
from chunkflow.spec import ArraySpec
from chunkflow.stores.base import Footprint, Scattered, Source
from chunkflow.stores.layout import part


class ComposedSource:
    """Sources put together by an arrangement.

    Parameters
    ----------
    sources : sequence of Source
        Closed with this one. Their dtypes are cast to `dtype`.
    arrangement : Arrangement
        Which region of the result comes from where.
    dtype : numpy.dtype
        Of the result, in native byte order.
    chunks : tuple of int, optional
        Box that is read at no loss.
    new : int, optional
        Axis of the result that the sources lack: along it each of them has one place.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        arrangement: Arrangement,
        dtype: np.dtype,
        chunks: Shape | None = None,
        new: int | None = None,
    ) -> None:
        self._sources, self._arrangement, self._new = list(sources), arrangement, new
        names = ", ".join(source.spec.name for source in self._sources[:3])
        name = f"{names}, ..." if len(self._sources) > 3 else names
        orders = {source.spec.order for source in self._sources}
        order = orders.pop() if len(orders) == 1 and new is None else ()
        self.spec = ArraySpec(name, arrangement.shape, dtype, chunks, order)
        # Even of one source never the same elements in the same order.
        self.footprint: Footprint | None = Scattered.of(source.footprint for source in self._sources)

    @property
    def parts(self) -> Sequence[Source]:
        """The sources that are put together."""
        return self._sources

    def read(self, region: Region, out: np.ndarray) -> None:
        """See `Source.read`."""
        for piece in self._arrangement.pieces(region):
            place = part(out, within(piece.place, region))
            if piece.fill is not None:
                place[...] = piece.fill
            elif place.size:
                self._read(piece, place)

    def _read(self, piece: Piece, place: np.ndarray) -> None:
        """Fill a place with a piece of a source."""
        source, region, parts = self._sources[piece.number], piece.source, piece.parts
        if self._new is not None:
            region = (*region[: self._new], *region[self._new + 1 :])
            place = np.moveaxis(place, self._new, 0)[0, ...]
            parts = (*parts[: self._new], *parts[self._new + 1 :])
        place = part(place, tuple(slice(None, None, -1 if p.back else 1) for p in parts))
        if place.shape == shape_of(region) and place.dtype == source.spec.dtype:
            source.read(region, place)
            return
        found = np.empty(shape_of(region), source.spec.dtype)
        source.read(region, found)
        if all(n == 1 or n == wanted for n, wanted in zip(found.shape, place.shape, strict=True)):
            np.copyto(place, found, casting="same_kind")
            return
        rows = [(np.arange(n) + p.skip) // p.times for n, p in zip(place.shape, parts, strict=True)]
        np.copyto(place, found[np.ix_(*rows)], casting="same_kind")

    def view(self, region: Region) -> np.ndarray | None:
        """See `Source.view`: what is put together is copied."""
        return None

    def close(self) -> None:
        """See `Source.close`."""
        for source in self._sources:
            source.close()

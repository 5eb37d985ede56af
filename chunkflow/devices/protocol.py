"""The protocol of a device, and what all devices share. Knows bytes and orderings, not operations.

Work is enqueued on *lanes* (CUDA streams, or their likes), each of which runs in order. Lanes and host
threads are ordered among each other by *events* and *latches* alone, with CUDA's meaning: recording an
event marks the lane's work so far, waiting for it orders what follows after the mark, and a wait for an
event that was never recorded does nothing. Every wait names its `Edge`, so that a test can take each
one away and see the referee (`chunkflow.devices.race_detector`) object.

The way of a block, with the edges between its stations::

    fill slot --(program order)--> upload --UPLOADED--> compute --COMPUTED--> download --LANDED--> write
        ^                            | ^                   |                                         |
        +----------- REFILL ---------+ +---- OVERWRITE ----+            free result <---- STORED ----+
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.machine import Machine
from chunkflow.core.memory import Projection
from chunkflow.core.pieces import Piece
from chunkflow.devices.mover import Mover

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Edge(Enum):
    """Why one thing waits for another."""

    PUBLISHED = "a worker takes a block's pieces only after the slot is ready for them"
    REFILL = "a pinned slot is filled again only after its upload"
    OVERWRITE = "a device slot is overwritten only after its last reader"
    ENQUEUED = "waiting for an event makes sense only after it was recorded"
    UPLOADED = "a kernel reads a slot only after its uploads"
    COMPLETE = "a block is read, or its halo copied for the next one, only after its own halo is in it"
    FOLDED = "partial results of other lanes are merged only after they were computed"
    COMPUTED = "a result is downloaded (or stored) only after its kernel"
    LANDED = "a pinned slot is written to the store only after its download"
    STORED = "a result is freed only after it is stored"


class Block:
    """An array on the device: it has natural axes, memory order `order`, and for the referee an `owner`."""

    __slots__ = ("array", "inverse", "order", "owner")

    def __init__(self, array: Any, order: Shape, owner: object) -> None:
        self.array = array
        self.order = order
        self.inverse = inverse(order)
        self.owner = owner


class PartOf(NamedTuple):
    """A part of an owner's memory that a call uses; pieces that are copied are parts too."""

    owner: object
    name: str


def inverse(order: Shape) -> Shape | None:
    """Axes that bring an array in memory order back to natural axes; None where they agree."""
    if order == tuple(range(len(order))):
        return None
    return tuple(int(i) for i in np.argsort(order))


def shaped(flat: Any, dtype: np.dtype, shape: Shape, back: Shape | None) -> Any:
    """View of a flat byte array's beginning as `shape` (memory order), transposed to natural axes."""
    array = flat[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return array if back is None else array.transpose(back)


class HostBuffer:
    """Host memory that pieces pass through; pinned where the device needs it.

    It may be larger than was asked for. Its views are kept, for the hot path must not make one per piece.
    `owner` is its identity to the referee, a new one whenever a pool hands the slot out.
    """

    __slots__ = ("_views", "array", "owner", "pointer")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.owner = object()
        self.pointer = int(array.ctypes.data)
        self._views: dict[object, np.ndarray] = {}

    def view(self, dtype: np.dtype, piece: Piece, back: Shape | None) -> np.ndarray:
        """The slot as one piece, in natural axes."""
        key = (dtype.char, piece.shape, back)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = shaped(self.array, dtype, piece.shape, back)
        return view

    def renew(self) -> None:
        """Forget what was in it, for another run."""
        self.owner = object()
        self._views.clear()

    def pin(self) -> None:
        """Make the memory fit for asynchronous copies. Called by its thread before the first one."""

    def close(self) -> None:
        """Give back what is not Python's own."""


class Event(Protocol):
    """A mark in a lane's work."""

    def synchronize(self, edge: Edge) -> None:
        """Let the calling thread wait for the mark."""

    def seconds(self) -> float:
        """When the mark was reached, on `time.perf_counter`'s scale; only after `synchronize`, if timed."""


class Latch(Protocol):
    """A count of arrivals that host threads can wait for."""

    def arrive(self) -> None:
        """Count one arrival."""

    def wait(self, edge: Edge) -> None:
        """Let the calling thread wait for the last arrival."""


class Pending(Protocol[T_co]):
    """What a call on a lane will return. Getting it orders nothing on the device."""

    def result(self) -> T_co:
        """The value, once the call has been made; raises what the call raised."""


class Decoder(Protocol):
    """Decodes chunks that lie on the device, many at once; called in a lane's turn, on which its work follows."""

    def __call__(self, number: int, columns: int, table: int, temporary: int, room: int) -> None:
        """Decode a batch.

        Parameters
        ----------
        number : int
            Items, at least one: chunks, or parts of them that are encoded each by itself.
        columns : int
            Numbers in each of the table's rows, of 8 bytes each.
        table : int
            Address of the table. Its rows are: where each encoded item lies, its bytes, the bytes that there are for
            it decoded, and where these lie; then, to be filled, how many were decoded, and as numbers of 4 bytes what
            came of it, 0 for success, and if the codec is gzip their CRC-32.
        temporary, room : int
            Address and size of memory for the decoder itself.

        Raises
        ------
        DeviceError
            The batch could not be begun. What is wrong with an item the table says.
        """


class Lane(Protocol):
    """A queue of work that runs in order."""

    def upload(self, slot: HostBuffer, block: Block, piece: Piece, scratch: Any) -> None:
        """Copy a piece from a slot into a block, by way of `scratch` where it is not contiguous there."""

    def download(self, block: Block, piece: Piece, slot: HostBuffer, scratch: Any) -> None:
        """Copy a piece of a block into a slot."""

    def call(self, fn: Callable[[], T], reads: Sequence[object] = (), writes: Sequence[object] = ()) -> Pending[T]:
        """Call `fn` in the lane's turn. `reads` and `writes` are the owners of the memory it uses, or parts of it."""

    def record(self, event: Event) -> None:
        """Mark the lane's work so far."""

    def wait(self, events: Sequence[Event], edge: Edge) -> None:
        """Order what follows on this lane after the latest mark of each event."""

    def synchronize(self) -> None:
        """Let the calling thread wait for everything enqueued."""

    def close(self) -> None:
        """Finish what is enqueued and give the lane back."""


class Pool(Protocol):
    """The memory of one budget on one device. What it took it keeps for the next run until closed."""

    limit: int

    @property
    def used(self) -> int:
        """Bytes of device memory in use now."""

    @property
    def peak(self) -> int:
        """Most bytes taken from the driver so far, what the libraries took included."""

    def begin(self, memory: Projection) -> None:
        """A run that takes so much begins."""

    def claim(self, apart: Sequence[int], nbytes: int, most: int) -> None:
        """Take at once what the present lane's work will allocate, up to `most` bytes; no error if it can't.

        `apart` are the bytes of results that have a place each; the rest is one piece, with room for what lies badly.
        """

    def allocate(self, nbytes: int) -> Any:
        """Flat byte array on the device; raises the device's out-of-memory error beyond the limit."""

    def free(self, array: Any) -> None:
        """Take back an array of `allocate`, or a result that was adopted."""

    def adopt(self, array: Any) -> None:
        """Count an array that the user's function allocated until it is freed."""

    def active(self) -> AbstractContextManager[None]:
        """Let allocations of the calling thread come from the pool."""

    def measure(self, fn: Callable[[], T]) -> tuple[T, int]:
        """Call `fn`; return its result and the most bytes that were allocated at once meanwhile."""

    def host_buffers(self, number: int, nbytes: int) -> list[HostBuffer]:
        """Host memory for staging, kept for the next run when given back."""

    def release_host(self, slots: list[HostBuffer]) -> None:
        """Give slots back."""

    def rest(self) -> None:
        """Let go what libraries keep for the calling thread, which ends its work; the memory stays with the pool."""

    def close(self) -> None:
        """Return everything to the driver. Idempotent."""


class Device(Protocol):
    """A place to compute."""

    name: str
    model: str
    """What kind of device it is, whatever its number."""
    xp: Any
    """The array module: NumPy or CuPy."""
    machine: Machine
    lines: Callable[[], Any] | None
    """Makes lines (`chunkflow.devices.job_queue`), where there are compiled loops for its copies; else None."""
    elementwise: Callable[..., Any] | None
    """Makes a function of arrays from a kernel's text (`kernels.fusion.codegen.Elementwise`); None: no gain."""
    unshuffle: Callable[[int, int, int, Any], None] | None
    """Puts chunks together: addresses of a table of where items lie and of the chunks' facts
    (`chunkflow.core.encoded_chunks`), a chunk's bytes, and a flat array of uint32 for them all. None: chunks that are
    cut into items the host decodes."""

    @property
    def reserve(self) -> int:
        """Bytes of device memory that libraries took outside every pool, as far as known."""

    def free_memory(self) -> int:
        """Bytes of device memory that are free now."""

    def pool(self, limit: int) -> Pool:
        """Memory under a hard limit in bytes."""

    def lane(self) -> Lane:
        """A lane of its own, of this device."""

    def caller_lane(self) -> Lane:
        """The lane on which the calling thread's own array code runs."""

    def event(self, *, timed: bool = False) -> Event:
        """An event that was never recorded."""

    def latch(self, number: int) -> Latch:
        """A latch that opens after so many arrivals."""

    def mover(self, lane: Any, stations: Sequence[tuple[HostBuffer, Any, Any]], scratch: Any) -> Mover | None:
        """The compiled loops for a thread with its lane and stations: slots with their events, done and begun.

        Pieces that are scattered on the device land in `scratch`, if that is not None.
        """

    def decoder(self, codec: str) -> Decoder | None:
        """What decodes chunks of a codec on the device, if anything does; `Machine.decodings` says how fast."""

    def address(self, array: Any) -> int:
        """Address of an array on the device."""

    def attach(self) -> AbstractContextManager[None]:
        """Make the device current for the calling thread."""

    def rounding(self) -> AbstractContextManager[None]:
        """Let products in the calling thread round factors of single precision, where that is faster."""

    def to_device(self, array: np.ndarray) -> Any:
        """Copy of a host array, in the memory of the active pool."""

    def is_array(self, value: object) -> bool:
        """Whether `value` is an array of this device."""

    def supports(self, dtype: np.dtype) -> bool:
        """Whether the device computes with this dtype."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` says that device memory ran out."""

    def host_reads(self, owner: object, part: object = None) -> None:
        """Declare that the calling thread reads memory (for the referee)."""

    def host_writes(self, owner: object, part: object = None) -> None:
        """Declare that the calling thread writes, or frees, memory (for the referee)."""

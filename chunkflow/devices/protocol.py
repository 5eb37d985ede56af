"""The protocol of a device, and what all devices share. Knows bytes and memory orders, not operations.

Work is enqueued on *lanes* (CUDA streams, or the like). Each lane runs its work in order. Only *events* and *latches*
order lanes and host threads among each other, with CUDA's meaning: recording an event marks the lane's work so far.
Waiting for an event orders later work after the mark. A wait for an event that was never recorded does nothing. Every
wait names its `Edge`, so that a test can drop each one and see the race detector (`chunkflow.devices.race_detector`)
report a race.

The way of a block, with the edges between its stages::

    fill pinned buffer --(program order)--> upload --UPLOADED--> compute --COMPUTED--> download --LANDED--> write
            ^                                 | ^                   |                                         |
            +------------ REFILL -------------+ +---- OVERWRITE ----+            free result <---- STORED ----+
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
from chunkflow.kernels.protocol import Library

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Edge(Enum):
    """Why one thing waits for another."""

    PUBLISHED = "a thread takes a block's pieces only after the buffer is ready for them"
    REFILL = "a pinned buffer is filled again only after its upload"
    OVERWRITE = "a device buffer is overwritten only after its last reader"
    ENQUEUED = "an event is waited for only after it was recorded"
    UPLOADED = "a kernel reads a device buffer only after its uploads"
    COMPLETE = "a block is read, or its halo copied for the next one, only after its own halo is filled"
    FOLDED = "partial results of other lanes are merged only after they were computed"
    COMPUTED = "a result is downloaded (or stored) only after its kernel"
    LANDED = "a pinned buffer is written to the store only after its download"
    STORED = "a result is freed only after it is stored"


class Block:
    """An array on the device, in natural axes and memory order `order`. The race detector knows it by its `owner`."""

    __slots__ = ("array", "inverse", "order", "owner")

    def __init__(self, array: Any, order: Shape, owner: object) -> None:
        self.array = array
        self.order = order
        self.inverse = inverse(order)
        self.owner = owner


class PartOf(NamedTuple):
    """A part of an owner's memory that a call uses. Pieces that are copied are parts too."""

    owner: object
    name: str


def inverse(order: Shape) -> Shape | None:
    """Axes that bring an array in memory order back to natural axes; None where they agree."""
    if order == tuple(range(len(order))):
        return None
    return tuple(int(i) for i in np.argsort(order))


def shaped(flat: Any, dtype: np.dtype, shape: Shape, back: Shape | None) -> Any:
    """View of the beginning of a flat byte array as `shape` (in memory order), transposed to natural axes."""
    array = flat[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return array if back is None else array.transpose(back)


class Loan:
    """An array that is handed out. Its memory must not be used for anything else as long as the loan lives."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What NumPy makes an array of, whose base is the loan then."""
        found: dict[str, Any] = self.array.__array_interface__
        return found


class HostBuffer:
    """Host memory that pieces pass through, pinned where the device needs it.

    It may be larger than was asked for. Its views are kept, so that the hot path makes none per piece. The race
    detector knows the memory by its `owner`, which is new whenever a pool hands the buffer out.
    """

    __slots__ = ("_views", "array", "owner", "pointer")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.owner = object()
        self.pointer = int(array.ctypes.data)
        self._views: dict[object, np.ndarray] = {}

    def view(self, dtype: np.dtype, piece: Piece, back: Shape | None) -> np.ndarray:
        """The buffer as one piece, in natural axes."""
        key = (dtype.char, piece.shape, back)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = shaped(self.array, dtype, piece.shape, back)
        return view

    def renew(self) -> None:
        """Drop what belongs to a run that has ended."""
        self.owner = object()
        self._views.clear()

    def pin(self) -> None:
        """Make the memory ready for asynchronous copies. Called by its thread before the first one."""

    def close(self) -> None:
        """Give back memory that Python does not manage."""


class Event(Protocol):
    """A mark in a lane's work."""

    def synchronize(self, edge: Edge) -> None:
        """Let the calling thread wait for the mark."""

    def seconds(self) -> float:
        """When the mark was reached, on the clock of `time.perf_counter`. For timed events, after `synchronize`."""


class StagingBuffer(Protocol):
    """A host buffer of one transfer thread, with the events that mark the end and, if timed, the begin of its copy."""

    host: HostBuffer
    done: Event
    begun: Event | None


class Latch(Protocol):
    """A count of arrivals that host threads can wait for."""

    def arrive(self) -> None:
        """Count one arrival."""

    def wait(self, edge: Edge) -> None:
        """Let the calling thread wait for the last arrival."""


class Pending(Protocol[T_co]):
    """The result of a call on a lane. To get it orders nothing on the device."""

    def result(self) -> T_co:
        """Wait for the call, and return or raise what it did."""


class Decoder(Protocol):
    """Decodes many chunks on the device at once. It is called by a lane, and enqueues its work there."""

    def __call__(self, number: int, columns: int, table: int, temporary: int, room: int) -> None:
        """Decode a batch.

        Parameters
        ----------
        number : int
            Items, at least one: chunks, or parts of chunks that are each encoded separately.
        columns : int
            Numbers of 8 bytes in each row of the table.
        table : int
            Address of the table. Rows to read: address of each encoded item, its bytes, the bytes of room for the
            decoded item, and the address of that room. Rows to fill: the decoded bytes, and as numbers of 4 bytes the
            status (0 for success) and, if the codec is gzip, the CRC-32 of the decoded bytes.
        temporary, room : int
            Address and size of memory for the decoder itself.

        Raises
        ------
        DeviceError
            The batch could not be started. Errors of items are in the table.
        """


class Lane(Protocol):
    """A queue of work that runs in order."""

    def upload(self, buffer: HostBuffer, block: Block, piece: Piece, scratch: Any) -> None:
        """Copy a piece from a buffer into a block, by way of `scratch` where it is not contiguous there."""

    def download(self, block: Block, piece: Piece, buffer: HostBuffer, scratch: Any) -> None:
        """Copy a piece of a block into a buffer."""

    def call(self, fn: Callable[[], T], reads: Sequence[object] = (), writes: Sequence[object] = ()) -> Pending[T]:
        """Enqueue a call of `fn`. `reads` and `writes` are the owners, or parts, of the memory that it uses."""

    def record(self, event: Event) -> None:
        """Mark the lane's work so far."""

    def wait(self, events: Sequence[Event], edge: Edge) -> None:
        """Order later work on this lane after the latest mark of each event."""

    def synchronize(self) -> None:
        """Let the calling thread wait for all enqueued work."""

    def close(self) -> None:
        """Finish what is enqueued and give the lane back."""


class Pool(Protocol):
    """The memory of one budget on one device. It keeps its memory for the next run until it is closed."""

    limit: int

    @property
    def used(self) -> int:
        """Bytes of device memory in use now."""

    @property
    def peak(self) -> int:
        """Most bytes taken from the driver so far, by libraries too."""

    def begin(self, memory: Projection) -> None:
        """Begin a run that takes `memory`."""

    def claim(self, apart: Sequence[int], nbytes: int, most: int) -> None:
        """Allocate in advance what the current lane's work needs, up to `most` bytes. No error if it fails.

        `apart` are the bytes of results, or of partial ones, that are allocated one by one; the rest is one allocation,
        with spare room.
        """

    def allocate(self, nbytes: int) -> Any:
        """Flat byte array on the device. Beyond the limit, raises the device's out-of-memory error."""

    def free(self, array: Any) -> None:
        """Take back an array of `allocate`, or a result that was adopted."""

    def adopt(self, array: Any) -> None:
        """Count an array that the user's function allocated until it is freed."""

    def active(self) -> AbstractContextManager[None]:
        """Serve allocations of the calling thread from the pool."""

    def measure(self, fn: Callable[[], T], most: int | None = None) -> tuple[T, int]:
        """Call `fn`; return its result and the peak of its allocations in bytes.

        Memory runs out where they pass `most`, as far as the device counts them meanwhile, or the pool's own limit.
        """

    def host_buffers(self, number: int, nbytes: int) -> list[HostBuffer]:
        """Host memory for staging. Once given back it is kept for the next run."""

    def release_host(self, buffers: list[HostBuffer]) -> None:
        """Give host buffers back."""

    def trim(self) -> None:
        """Return what is kept for later runs."""

    def rest(self) -> None:
        """End the calling thread's work: free what libraries keep for it. The memory stays with the pool."""

    def close(self) -> None:
        """Return everything to the driver. Idempotent."""


class Device(Protocol):
    """A place to compute."""

    name: str
    model: str
    """The kind of device, without its number."""
    xp: Any
    """The array module: NumPy or CuPy."""
    machine: Machine
    in_turn: bool
    """Whether lanes must get blocks in turn, because they run nothing until somebody waits for it."""
    job_queue: Callable[[], Any] | None
    """Makes a `chunkflow.devices.job_queue.JobQueue` where there are compiled loops for the copies; else None."""
    elementwise: Callable[..., Any] | None
    """Makes a function of arrays from the source of a kernel (`kernels.fusion.codegen.Elementwise`); None: no gain."""
    unshuffle: Callable[[int, int, int, Any], None] | None
    """Joins the items of chunks. Arguments: address of a table with the items' addresses, address of the chunks' facts
    (`chunkflow.core.encoded_chunks`), bytes of a chunk, and a flat array of uint32 for all chunks. None: the host
    decodes chunks that are cut into items."""

    @property
    def reserve(self) -> int:
        """Bytes of device memory that are taken outside every pool: by libraries, and by what is `keeping`."""

    def keeping(self, nbytes: int) -> AbstractContextManager[None]:
        """Count bytes that the library has in host memory between runs, where that is the device's."""

    def to_load(self, library: Library) -> int:
        """Most bytes that a library takes outside every pool when the calling thread first uses it; 0 once it does."""
        return 0

    def load(self, library: Library) -> None:
        """Let a library take what it needs for the calling thread, and count that in the `reserve`."""
        return

    def free_memory(self) -> int:
        """Bytes of device memory that are free now."""

    def pool(self, limit: int) -> Pool:
        """Memory under a hard limit in bytes."""

    def lane(self, *, kernels: bool = False) -> Lane:
        """A new lane. One for `kernels` is ordered with the device's default stream.

        That is where libraries prepare what their kernels use, and the caller the arrays that his function closes over.
        """

    def caller_lane(self) -> Lane:
        """The lane on which the calling thread's own array code runs."""

    def event(self, *, timed: bool = False) -> Event:
        """An event that was never recorded."""

    def latch(self, number: int) -> Latch:
        """A latch that opens after so many arrivals."""

    def mover(self, lane: Any, buffers: Sequence[StagingBuffer], scratch: Any) -> Mover | None:
        """The compiled loops for a thread with its lane and its buffers; None without them.

        Pieces that are scattered on the device land in `scratch`, if that is not None.
        """
        return None

    def decoder(self, codec: str) -> Decoder | None:
        """The decoder of a codec on the device, or None. `Machine.decodings` has its rates."""
        return None

    def address(self, array: Any) -> int:
        """Address of an array on the device."""

    def attach(self) -> AbstractContextManager[None]:
        """Make the device current for the calling thread."""

    def rounding(self) -> AbstractContextManager[None]:
        """Let matrix products in the calling thread round single-precision factors (TF32), where that is faster."""

    def to_device(self, array: np.ndarray) -> Any:
        """Copy of a host array, in the memory of the active pool."""

    def lend(self, loan: Loan) -> Any:
        """The array of a loan. The loan lives as long as it does, and all arrays and tensors that share its memory."""

    def is_array(self, value: object) -> bool:
        """Whether `value` is an array of this device."""

    def supports(self, dtype: np.dtype) -> bool:
        """Whether the device computes with this dtype."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` says that device memory ran out."""

    def counted(self, fn: Callable[[], T]) -> tuple[T, int | None]:
        """The result of a call, and the most bytes that it had allocated at once; None if nobody counts them."""
        return fn(), None

    def bytes_asked(self, error: BaseException) -> int | None:
        """Bytes that could not be had when memory ran out; None if the error does not say."""
        return None

    def hint(self, error: BaseException) -> str:
        """A note for an error of the user's function that has to do with the device's arrays; else empty."""
        return ""

    def host_reads(self, owner: object, part: object = None) -> None:
        """Tell the race detector that the calling thread reads memory."""
        return

    def host_writes(self, owner: object, part: object = None) -> None:
        """Tell the race detector that the calling thread writes or frees memory."""
        return

"""A torch dataset of an array's blocks, for a training loop."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

import chunkflow
from chunkflow.api.adapters import DEFAULT_STREAM
from chunkflow.errors import UnsupportedError


class Blocks(IterableDataset[torch.Tensor]):
    """The blocks of an array as tensors on the device, read ahead and without a copy.

    Parameters
    ----------
    array : array_like, str or path
        A source, as for `chunkflow.map`.
    **options
        As for `chunkflow.chunks`: ``chunks=(256, -1)`` makes batches of 256 rows.

    Raises
    ------
    UnsupportedError
        When it is iterated over in a worker process: chunkflow's own threads read ahead.

    Notes
    -----
    A tensor is not to be written to. Tensors that the loop keeps stay as they are, and count in the budget: ``clone()``
    what is kept for long. Loop over the dataset, or give it to ``DataLoader(dataset, batch_size=None)``.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.datasets import Blocks
    >>> rows = Blocks(np.arange(12.0).reshape(6, 2), chunks=(4, -1), device="cpu")
    >>> [float(batch.sum()) for batch in rows]
    [28.0, 38.0]
    """

    def __init__(self, array: Any, **options: Any) -> None:
        inspect.signature(chunkflow.chunks).bind(array, **options)  # an unknown option is refused here
        self._array, self._options = array, options

    def __iter__(self) -> Iterator[torch.Tensor]:
        if get_worker_info() is not None:
            raise UnsupportedError("Blocks are read ahead by threads: use DataLoader(..., num_workers=0)")
        with chunkflow.chunks(self._array, **self._options) as stream:
            for chunk in stream:
                tensor = torch.from_dlpack(chunk.data)
                yield tensor
                if tensor.is_cuda:
                    # The memory's next use waits for the loop's work on the block, on whatever stream that is.
                    pointer = chunk.data.__cuda_array_interface__["stream"]
                    default = torch.cuda.default_stream(tensor.device)
                    lane = default if pointer == DEFAULT_STREAM else torch.cuda.ExternalStream(pointer, tensor.device)
                    lane.wait_stream(torch.cuda.current_stream(tensor.device))

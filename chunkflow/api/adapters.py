"""Adapters of functions written for torch or JAX. Blocks and results are passed by DLPack, without a copy.

Functions of CuPy arrays (CuPy's own kernels, numba's) need no adapter: see ``docs/libraries.md``.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from chunkflow.errors import ResultError, ResultTypeError
from chunkflow.system.optional import missing

DEFAULT_STREAM = 1
"""Number of the default stream in the ``__cuda_array_interface__``."""


def torch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of tensors, or a module, take blocks: on the CPU as on a GPU, where it runs on chunkflow's stream.

    Parameters
    ----------
    fn : callable
        Gets a tensor for each block, which it must not write to, and returns one, or a tuple of them, on the same
        device, which it must not keep. It runs under ``torch.no_grad()``; a module with parameters belongs on the
        device of the blocks, in evaluation mode.

    Returns
    -------
    callable
        The same for NumPy and CuPy blocks, as `chunkflow.map` and its like call it. Where torch runs out of device
        memory it raises a MemoryError, so that the block is computed in halves.

    Raises
    ------
    ModuleNotFoundError
        torch is not installed.

    Notes
    -----
    On a GPU torch allocates by itself, beyond the budget. The plan leaves room for that where ``workspace=`` says how
    many bytes an element takes, and ``torch.cuda.set_per_process_memory_fraction`` makes it a limit.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> import torch  # doctest: +SKIP
    >>> relu = cf.torch(torch.nn.functional.relu)  # doctest: +SKIP
    >>> cf.map(relu, np.array([-1.0, 2.0]), device="cpu")  # doctest: +SKIP
    array([0., 2.])
    """
    library = _library("torch")

    def lane(block: Any) -> AbstractContextManager[Any]:
        interface = getattr(block, "__cuda_array_interface__", None)
        if interface is None:
            return nullcontext()
        pointer, device = interface["stream"], block.device.id
        if pointer == DEFAULT_STREAM:
            return library.cuda.stream(library.cuda.default_stream(device))  # type: ignore[no-any-return]
        return library.cuda.stream(library.cuda.ExternalStream(pointer, device=device))  # type: ignore[no-any-return]

    def work(*args: Any, **kwargs: Any) -> Any:
        try:
            with library.no_grad():
                return fn(*args, **kwargs)
        except library.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    def settled(tensor: Any) -> Any:
        return tensor.detach().resolve_conj().resolve_neg()

    return _adapted(fn, work, library.from_dlpack, library.Tensor, settled, lane, lambda tensor: tensor._version > 0)


def jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of JAX's arrays take blocks, as `chunkflow.torch`.

    Parameters
    ----------
    fn : callable
        Gets a JAX array for each block and returns one, or a tuple of them, on the same device; ``jax.jit`` it before.

    Returns
    -------
    callable
        The same for NumPy and CuPy blocks. JAX has 32-bit numbers alone unless ``jax_enable_x64`` says otherwise.

    Raises
    ------
    ModuleNotFoundError
        JAX is not installed.

    Notes
    -----
    JAX has streams and memory of its own. It takes three quarters of a GPU's memory at once unless the environment
    variable ``XLA_PYTHON_CLIENT_PREALLOCATE`` is ``false``, and all that it takes is beyond the budget.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> import jax  # doctest: +SKIP
    >>> cf.map(cf.jax(jax.jit(jax.numpy.tanh)), np.zeros(3, "f4"), device="cpu")  # doctest: +SKIP
    array([0., 0., 0.], dtype=float32)
    """
    library = _library("jax")
    # Its work runs on streams of its own, on the CPU too, and a block's memory is soon used again.
    return _adapted(fn, fn, library.numpy.from_dlpack, library.Array, library.block_until_ready)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing(error, name, f"chunkflow.{name}") from error


def _adapted(
    fn: Callable[..., Any],
    work: Callable[..., Any],
    taken: Callable[[Any], Any],
    kind: type,
    settled: Callable[[Any], Any],
    lane: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    written: Callable[[Any], bool] = lambda _: False,
) -> Callable[..., Any]:
    """`work` as a function of blocks. `taken` makes the library's array of one, `settled` completes a result of `kind`.

    Whether the function has `written` to a block is checked on a copy, in the first call.
    """
    called: list[bool] = []

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        blocks = [a for a in args if hasattr(a, "__dlpack__")]
        xp = sys.modules[type(blocks[0]).__module__.partition(".")[0]]  # NumPy or CuPy, whichever it is

        def given(value: Any) -> Any:
            if not isinstance(value, kind):
                return value
            value = settled(value)
            if value.__dlpack_device__() != blocks[0].__dlpack_device__():
                return value  # which is refused, and named
            if "bfloat16" in str(value.dtype):
                raise ResultTypeError(
                    f"{getattr(fn, '__name__', 'fn')} gave {value.dtype}, which {xp.__name__} does not have: convert "
                    "the result, with .float() where it is torch's, or with .astype('float32')"
                )
            array = xp.from_dlpack(value)
            # A view of a block would change on its way to the store, and does not tell.
            return array.copy() if any(xp.may_share_memory(array, block) for block in blocks) else array

        with lane(blocks[0]):
            lent = {i: _lent(taken, a if called else a.copy()) for i, a in enumerate(args) if hasattr(a, "__dlpack__")}
            result = work(*(lent.get(i, a) for i, a in enumerate(args)), **kwargs)
            if any(map(written, lent.values())):
                raise ResultError(
                    f"{getattr(fn, '__name__', 'fn')} wrote to its block, which is in use still: let it clone() the "
                    "tensor first, or use functions that give a new one"
                )
            called[:] = [True]
            return tuple(map(given, result)) if isinstance(result, tuple) else given(result)

    call.__module__ = type(fn).__module__ if getattr(fn, "__module__", None) is None else fn.__module__
    return call


def _lent(taken: Callable[[Any], Any], block: Any) -> Any:
    """The library's array on a block's memory; on a copy, if the library cannot take the block itself."""
    if any(stride < 0 for stride in block.strides):  # some torch ends the process where others raise
        return taken(block.copy())
    # Most libraries refuse read-only memory.
    readonly = isinstance(block, np.ndarray) and not block.flags.writeable
    try:
        return taken(np.asarray(_Writable(block)) if readonly else block)
    except (BufferError, RuntimeError, ValueError):
        return taken(block.copy())


class _Writable:
    """A read-only NumPy array that claims to be writable."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array  # keeps the memory alive
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}

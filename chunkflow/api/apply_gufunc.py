"""``apply_gufunc``: functions that need some axes whole, as the signature of a generalized ufunc says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.operation import check_delegated, check_passed, delegated
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.request import Stated
from chunkflow.kernels.map import is_scalar
from chunkflow.stores import is_labelled, spec_of

Names = tuple[str, ...]


def apply_gufunc(
    func: Callable[..., Any],
    signature: str,
    *args: Any,
    vectorize: bool = False,
    output_sizes: Mapping[str, int] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Apply a function block by block, with the axes of a signature whole, as ``dask.array.apply_gufunc``.

    Parameters
    ----------
    func : callable
        ``func(*blocks, **kwargs)``, with blocks that have the axes of the signature last, and others before them that
        broadcast. It returns an array with the axes of the result last, or a tuple of arrays.
    signature : str
        As NumPy's for generalized ufuncs, such as ``"(i),(i)->()"``: for each array names of its last axes, which are
        never cut, and after the arrow those of each result. Several results have the same.
    *args : array_like, str, path, Array or scalar
        Sources, as for `chunkflow.map`.
    vectorize : bool
        Whether `func` takes the axes of the signature alone, and is called in a loop, on the CPU (`numpy.vectorize`).
    output_sizes : dict, optional
        Lengths of axes of the result that no array has.
    kwargs : dict, optional
        Passed to `func`.
    **options
        ``out, budget, dtype, device, progress, overwrite, sync, workspace`` as for `chunkflow.map`; ``dtype=`` is that
        of the result, or a tuple of them.

    Returns
    -------
    array or tuple of arrays
        As `chunkflow.map` gives; expressions where one of the arrays is one.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A signature that cannot be read, another number of arrays, arrays with too few axes, lengths that differ or are
        not known.
    UnsupportedError
        Results with different axes.
    BudgetError, ResultError, ResultTypeError, ReadError, WriteError
        As for `chunkflow.map`.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> cf.apply_gufunc(lambda a, b: (a * b).sum(axis=-1), "(i),(i)->()", x, x[0], device="cpu")
    array([ 5., 14.])
    >>> cf.apply_gufunc(np.linalg.eigvals, "(i,i)->(i)", cf.open(np.eye(2)[None]), dtype="c16").shape
    (1, 2)
    """
    check_delegated("apply_gufunc", options, mapping.blockwise, func)
    taken, given = _sides(signature)
    if len(taken) != len(args):
        raise ArgumentError(f"the signature {signature!r} is of {len(taken)} arrays, and {len(args)} were given")
    if len(set(given)) != 1:
        raise UnsupportedError(f"results of {signature!r} have different axes: call apply_gufunc for each")
    lengths: dict[str, int] = dict(output_sizes or {})
    pairs: list[Any] = []
    loops = 0
    for number, (arg, names) in enumerate(zip(args, taken, strict=True)):
        if is_labelled(arg):
            raise ArgumentTypeError("labelled arrays have names of dimensions: use chunkflow.apply_ufunc")
        array = np.asarray(arg) if isinstance(arg, list | tuple) else arg
        if is_scalar(array):
            if names:
                raise ArgumentError(f"argument {number} is a scalar, and {signature!r} asks for the axes {names}")
            pairs += [array, None]
            continue
        shape = spec_of(array).shape
        own = len(shape) - len(names)
        if own < 0:
            raise ArgumentError(f"argument {number} of shape {shape} has fewer axes than {signature!r} asks for")
        for name, n in zip(names, shape[own:], strict=True):
            if lengths.setdefault(name, n) != n:
                raise ArgumentError(
                    f"the axis {name!r} of {signature!r} is {lengths[name]} long, and {n} in argument {number}"
                )
        loops = max(loops, own)
        pairs += [array, (*range(-own, 0), *(("core", number, place) for place in range(len(names))))]
    (ends,) = set(given)
    if unknown := [name for name in ends if name not in lengths]:
        raise ArgumentError(f"the lengths of the result's axes {unknown} are not known: give them in output_sizes=")
    passed = dict(kwargs or {})
    check_passed("apply_gufunc", passed)
    work = np.vectorize(func, signature=signature) if vectorize else func
    return delegated(
        "apply_gufunc",
        mapping.blockwise,
        Stated(partial(work, **passed), len(given)),
        (*range(-loops, 0), *(("result", place) for place in range(len(ends)))),
        *pairs,
        new_axes={("result", place): lengths[name] for place, name in enumerate(ends)},
        **options,
    )


def _sides(signature: str) -> tuple[Sequence[Names], Sequence[Names]]:
    """Names of the axes of each array, and of each result.

    >>> _sides("(i, j),()->(j)")
    ([('i', 'j'), ()], [('j',)])
    """
    text = signature.replace(" ", "") if isinstance(signature, str) else ""
    if not re.fullmatch(r"(\((\w+(,\w+)*)?\),?)+->(\((\w+(,\w+)*)?\),?)+", text):
        raise ArgumentError(f"signature={signature!r} is none of a generalized ufunc, such as '(i),(i)->()'")
    taken, given = (
        [tuple(filter(None, names.split(","))) for names in re.findall(r"\((.*?)\)", side)] for side in text.split("->")
    )
    return taken, given

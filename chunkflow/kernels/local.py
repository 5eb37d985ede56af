"""Which calls of a kernel are of functions whose values at a place must depend on what is near it alone."""

from __future__ import annotations

from chunkflow.kernels.fusion.program import Call, Fused, Instruction
from chunkflow.kernels.map import MapKernel
from chunkflow.kernels.protocol import Kernel, Kind
from chunkflow.kernels.subnest import SubNestKernel
from chunkflow.kernels.users import users_function


def is_local(kernel: Kernel) -> bool:
    """Whether it calls such a function of the user's, by itself or in a program.

    >>> from chunkflow.kernels.map import SLOT, MapKernel
    >>> from textwrap import dedent
    >>> is_local(MapKernel(dedent, (SLOT,), {}, (0,)))
    True
    """
    if isinstance(kernel, SubNestKernel):  # a partition of a cluster's graph
        return False
    if isinstance(kernel, Fused):
        return any(is_local_call(call) for call, _ in kernel.program)
    return kernel.kind is Kind.MAP and _is_foreign(kernel)


def is_local_call(call: Instruction) -> bool:
    """Whether an instruction calls such a function."""
    return isinstance(call, Call) and _is_foreign(call.kernel)


def _is_foreign(kernel: Kernel) -> bool:
    """Whether it calls a function of the user's, or one of NumPy's that he chose; ufuncs look at single elements."""
    chosen = isinstance(kernel, MapKernel) and kernel.chosen and not kernel.is_ufunc
    return not kernel.wants and (chosen or users_function(kernel) is not None)

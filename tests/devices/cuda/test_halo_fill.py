"""The kernel that makes up what lies beyond the edges, with a C++ compiler in the place of CUDA's."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import CTYPE_OF, built, needs_compiler

from chunkflow.core.halo import Boundary, assign, reach
from chunkflow.devices.cuda.halo_fill import filler
from chunkflow.kernels.fusion.codegen import Parameters
from chunkflow.testing import filled

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What a device makes of the text: a loop over all threads."""
    folder: Path = tmp_path_factory.mktemp("rims")

    @cache
    def made(inputs: Parameters, outputs: Parameters, body: str) -> Any:
        ((raw, block),) = outputs
        ctype = CTYPE_OF[raw.removeprefix("raw ")]
        taken = ", ".join(f"const {CTYPE_OF[dtype]} *p_{name}" for dtype, name in inputs)
        loads = "".join(f"const {CTYPE_OF[dtype]} {name} = *p_{name};\n" for dtype, name in inputs)
        code = (
            f'extern "C" void run({taken}, {ctype} *{block}, long size) {{\n'
            f"for (long i = 0; i < size; i++) {{\n{loads}{body}\n}} }}"
        )
        run = built(folder, code, "-fsanitize=undefined", "-fno-sanitize-recover")

        def kernel(*args: Any, size: int) -> None:
            *scalars, block = args
            held = [np.array([n]) for n in scalars]
            assert [(a.dtype.name, block.dtype.name) for a in held] == [(d, raw[4:]) for d, _ in inputs]
            run(*(ctypes.c_void_p(a.ctypes.data) for a in (*held, block)), ctypes.c_long(size))

        return kernel

    return made


EDGES: list[tuple[Boundary, ...]] = [
    ("nearest",),
    ("mirror", "reflect"),
    ("nearest", "nearest", "nearest"),
    (7, "reflect", "none"),
    (3, "mirror", 5),
    ("none", 2.5, "nearest"),
    ("periodic", "nearest", 1),
    ("periodic", "periodic"),
    ("mirror", "periodic", "none"),
    ("none", "none"),
]


@pytest.mark.parametrize("edges", EDGES, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@given(data=st.data())
def test_rims_are_what_slices_would_give(
    make: Callable[..., Any], edges: tuple[Boundary, ...], reverse: bool, data: st.DataObject
) -> None:
    region, extents = [], []
    for kind in edges:
        extent = data.draw(st.integers(1, 9))
        start = data.draw(st.integers(0, extent - 1))
        stop = data.draw(st.integers(start + 1, extent))
        before, behind = (data.draw(st.integers(0, extent - (kind == "mirror"))) for _ in range(2))
        if kind in ("reflect", "mirror"):  # see `chunkflow.kernels.stencil.overlap`: a block holds what is mirrored
            before = behind
        region.append(reach(slice(start, stop), (before, behind), extent, kind))
        extents.append(extent)
    shape = [side.stop - side.start for side in region]
    dtype = data.draw(st.sampled_from(["f4", "i2"]))
    block = filled(tuple(shape[::-1] if reverse else shape), dtype)
    block = block.T if reverse else block
    expected = block.copy()
    assign(expected, tuple(region), tuple(extents), edges)
    filler(make)(block, tuple(region), tuple(extents), edges)
    np.testing.assert_array_equal(block, expected)


def test_what_is_in_no_order_is_filled_slice_by_slice() -> None:
    block = np.zeros((8, 8), "f4")[::2, ::2]
    block[1:3, 1:3] = 1

    def make(*_: Any) -> Any:
        raise AssertionError("no kernel knows these strides")

    filler(make)(block, (slice(-1, 3), slice(-1, 3)), (2, 2), ("nearest", "nearest"))
    assert (block == 1).all()


def test_no_element_is_made_twice(make: Callable[..., Any]) -> None:
    region, extents = (slice(-2, 4), slice(-1, 6)), (3, 5)
    sizes = []

    def counting(*text: Any) -> Any:
        return lambda *args, size: sizes.append(size)

    filler(counting)(np.zeros((6, 7), "f4"), region, extents, ("nearest", "nearest"))
    outside = [not (0 <= i < 3 and 0 <= j < 5) for i, j in itertools.product(range(-2, 4), range(-1, 6))]
    assert sizes == [sum(outside)]

"""Chains of elementwise functions as one kernel: on a GPU, and here with a C++ compiler in the place of CUDA's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import same
from support.kernels import CTYPE_OF, built, needs_compiler

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.kernels.fusion.codegen import ARGUMENTS, FORMS, Link, Parameters, text
from chunkflow.testing import filled


@pytest.fixture(scope="module")
def elementwise(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What a device makes of a text: a loop over all elements."""
    folder: Path = tmp_path_factory.mktemp("chain")

    @cache
    def make(inputs: Parameters, outputs: Parameters, body: str) -> Any:
        names = [*inputs, *outputs]
        lines = [f"{CTYPE_OF[d]} *p_{n}, long n_{n}" for d, n in names]
        loads = "".join(f"const {CTYPE_OF[d]} {n} = p_{n}[n_{n} > 1 ? i : 0];\n" for d, n in inputs)
        stores = "".join(f"{CTYPE_OF[d]} &{n} = p_{n}[i];\n" for d, n in outputs)
        code = (
            f'extern "C" void run(long size, {", ".join(lines)}) {{ for (long i = 0; i < size; i++) {{\n'
            f"{loads}{stores}{body}\n}} }}"
        )
        run = built(folder, code, "-w", "-ffp-contract=off")

        def kernel(*arrays: Any) -> None:
            *_, last = arrays
            held = [np.broadcast_to(a, last.shape) if np.ndim(a) else np.array([a]) for a in arrays[: len(inputs)]]
            held = [np.ascontiguousarray(a) for a in held]
            results = [np.empty(last.shape, a.dtype) for a in arrays[len(inputs) :]]
            given: list[Any] = [ctypes.c_long(last.size)]
            for array in (*held, *results):
                given += [ctypes.c_void_p(array.ctypes.data), ctypes.c_long(array.size)]
            run(*given)
            for place, result in zip(arrays[len(inputs) :], results, strict=True):
                place[...] = result

        return kernel

    return make


@pytest.fixture
def device(elementwise: Callable[..., Any]) -> Any:
    """The CPU, with that, and `made`: the texts that were asked for."""
    found: Any = NumpyDevice()
    found.made = []

    def noted(inputs: Parameters, outputs: Parameters, body: str) -> Any:
        found.made.append(body)
        return elementwise(inputs, outputs, body)

    found.elementwise = noted
    return found


@needs_compiler
def test_ten_steps_are_one_kernel(device: Any) -> None:
    x = filled((50, 40), "f4")
    e, expected = cf.open(x), x
    for _ in range(10):
        e, expected = np.sqrt(e * e + 1), np.sqrt(expected * expected + 1)
    same(e.compute(device=device, budget=2_000_000), expected)
    assert len(set(device.made)) == 1
    assert device.made[0].count("sqrt") == 10


@needs_compiler
def test_several_results_and_broadcasting(device: Any) -> None:
    u, v, w = filled((30, 40), "f4"), filled((40,), "f4"), filled((30, 1), "i4")
    a, b, c = map(cf.open, (u, v, w))
    energy = (a**2 + b**2 + c**2) / 2
    got = cf.compute(energy, energy.sum(axis=0), energy > 3, device=device, budget=2_000_000)
    expected = (u**2 + v**2 + w**2) / 2
    same(got[0], expected)
    np.testing.assert_allclose(got[1], expected.sum(axis=0))
    same(got[2], expected > 3)
    assert device.made


@needs_compiler
def test_what_has_no_text_is_called_as_ever(device: Any) -> None:
    x = filled((30, 40), "f4")
    z = x.astype("c8")
    same((cf.open(z) * 2 + 1).compute(device=device), z * 2 + 1)
    same(np.maximum(cf.open(x) * 2, 1).compute(device=device), np.maximum(x * 2, 1))
    assert not device.made
    e = np.cbrt(cf.open(x) * 2 + 1) * 3 - 1
    same(e.compute(device=device), np.cbrt(x * 2 + 1) * 3 - 1)
    assert len(set(device.made)) == 2


@needs_compiler
def test_what_a_call_is_told_besides_keeps_it_out_of_a_kernel(device: Any) -> None:
    x = filled((30, 40), "f4")
    for fn in (
        lambda x: np.add(x * 2, 1, dtype="f8") * 2,
        lambda x: cf.map(np.add, x * 2, 1, dtype="f8") * 2,
        lambda x: cf.map(lambda b: b + 1, x * 2, dtype="f8") * 2,
    ):
        expected = ((x * 2).astype("f8") + 1) * 2
        np.testing.assert_allclose(fn(cf.open(x)).compute(device=device), expected, rtol=1e-6)
    assert not device.made


@needs_compiler
def test_what_feeds_an_operation_that_has_a_pass_of_its_own(device: Any) -> None:
    x, y = filled((30, 40), "f4"), filled((40, 20), "f4")
    product = cf.matmul(cf.open(x) * 2 + 1, cf.open(y))
    np.testing.assert_allclose(product.compute(device=device), (x * 2 + 1) @ y, rtol=1e-4)
    assert len(set(device.made)) == 1


@needs_compiler
def test_a_part_of_a_nest_has_kernels_too(device: Any) -> None:
    pytest.importorskip("dask")
    x = filled((30, 40), "f4")
    same((cf.open(x) * 2 + 1).to_dask("1kB", device=device).compute(scheduler="sync"), x * 2 + 1)
    assert device.made


@needs_compiler
def test_what_folds_give_of_nothing_takes_no_kernel(device: Any) -> None:
    x = cf.open(np.empty((0, 5)))
    total, lines = cf.compute((abs(x) * 2 + 1).sum(), (x * x + 1).max(axis=1), device=device)
    assert (total, lines.shape, device.made) == (0, (0,), [])


@needs_compiler
def test_transposed_arrays_keep_their_order(device: Any) -> None:
    x = np.asfortranarray(filled((30, 40), "f4"))
    same((cf.open(x) * 2 + 1).compute(device=device), x * 2 + 1)


UNARY = [
    *(np.negative, np.square, np.sqrt, np.absolute, np.floor, np.logical_not, np.reciprocal, np.invert),
    *(np.isnan, np.isfinite, np.isinf),
]
BINARY = [
    *(np.add, np.subtract, np.multiply, np.true_divide, np.less, np.equal, np.logical_and, np.greater_equal),
    *(np.floor_divide, np.remainder, np.minimum, np.maximum, np.bitwise_and, np.bitwise_or, np.bitwise_xor),
    *(np.left_shift, np.right_shift, np.where),
]
DTYPES = ["f4", "f8", "i4", "u1", "i8", "?"]


@needs_compiler
@given(data=st.data())
def test_random_chains_are_numpys(elementwise: Callable[..., Any], data: st.DataObject) -> None:
    """Of what NumPy computes, a text gives the same to the bit, if there is one."""
    arrays = [filled((7,), data.draw(st.sampled_from(DTYPES)))[::step] for step in (1, -1)]
    values: list[Any] = list(arrays)
    links = []
    for _ in range(data.draw(st.integers(2, 4))):
        ufunc: Any = data.draw(st.sampled_from(UNARY + BINARY))
        given = [data.draw(st.integers(0, len(values) - 1))]
        args: list[Any] = [values[given[0]]]
        link: list[Any] = [(given[0],)]
        if ufunc is np.where:
            given.append(data.draw(st.integers(0, len(values) - 1)))
            args, link = [values[i] for i in given], [(i,) for i in given]
        if ufunc in BINARY:
            scalar = data.draw(st.none() | st.sampled_from([2, 0, -1, 1.5, np.float32(3), True]))
            other = data.draw(st.integers(0, len(values) - 1))
            args.append(values[other] if scalar is None else scalar)
            link.append((other,) if scalar is None else scalar)
        try:
            with np.errstate(all="ignore"):
                result = ufunc(*args)
        except (TypeError, OverflowError, ValueError):
            continue
        links.append(Link(len(values), ufunc, tuple(link)))
        values.append(result)
    results = [link.register for link in links]
    if not results:
        return
    made = text(links, [0, 1], [a.dtype for a in arrays], results)
    if made is None:
        return
    outputs = [np.empty(7, dtype) for dtype, _ in made.outputs]
    elementwise(made.inputs, made.outputs, made.body)(*arrays, *made.scalars, *outputs)
    for register, output in zip(results, outputs, strict=True):
        same(output, values[register])


@needs_compiler
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u2"])
def test_integers_go_round(elementwise: Callable[..., Any], dtype: str) -> None:
    """Where a compiler would take it that they never do, a number would be less than the next one."""
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.min + 1, limits.max - 1, limits.max], dtype)
    links = [Link(1, np.add, ((0,), 1)), Link(2, np.greater, ((1,), (0,))), Link(3, np.square, ((0,),))]
    made = text(links, [0], [x.dtype], [1, 2, 3])
    assert made is not None
    outputs = [np.empty(4, name) for name, _ in made.outputs]
    elementwise(made.inputs, made.outputs, made.body)(x, *made.scalars, *outputs)
    for got, expected in zip(outputs, (x + 1, x + 1 > x, np.square(x)), strict=True):
        same(got, expected)


def test_a_comparison_of_unlike_integers_has_no_text() -> None:
    dtypes = [np.dtype("i8"), np.dtype("u8")]
    assert text([Link(2, np.less, ((0,), (1,)))], [0, 1], dtypes, [2]) is None


EACH = [
    pytest.param(fn, dtype, id=f"{fn.__name__}-{dtype}")
    for fn, forms in FORMS.items()
    for dtype in ("f4", "f8", "i4", "i8", "u1", "?")
    if any(np.dtype(dtype).char in form.chars for form in forms)
]


@pytest.mark.gpu
@pytest.mark.parametrize(("fn", "dtype"), EACH)
def test_each_is_the_separate_function_to_the_bit(fn: Any, dtype: str) -> None:
    import cupy

    rng, floats = np.random.default_rng(3), dtype in ("f4", "f8")
    x, y = (
        (np.abs(filled((100, 100), dtype)) % 1,) * 2 if floats else rng.integers(-70, 70, (2, 100, 100)).astype(dtype)
    )
    if fn in (np.isnan, np.isfinite, np.isinf):
        x[::7, ::3], x[::5, ::11] = np.nan, np.inf
    given = {1: (x,), 2: (x, y), 3: (x > y, x, y)}[ARGUMENTS.get(fn, getattr(fn, "nin", 0))]

    def of(*arrays: Any) -> Any:  # a chain has two functions at least
        found = fn(*arrays)
        return np.logical_not(found) if found.dtype == bool else found * 3 - 1

    got = of(*map(cf.open, given)).compute(device="cuda")
    with np.errstate(all="ignore"):
        same(got, of(*map(cupy.asarray, given)).get() if floats else of(*given))


@needs_compiler
def test_an_expression_has_the_same_kernels_each_time(device: Any) -> None:
    a = np.arange(24.0).reshape(4, 6)
    for _ in range(8):
        parts = [((cf.open(a) + i) * (i + 1)).sum(axis=0) for i in range(5)]
        got = (parts[0] / parts[1] + parts[2] * parts[3] - parts[4]).compute(device=device)
        sums = [((a + i) * (i + 1)).sum(axis=0) for i in range(5)]
        same(got, sums[0] / sums[1] + sums[2] * sums[3] - sums[4])
    assert len(set(device.made)) == 2  # one for all sums, and one of them

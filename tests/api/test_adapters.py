"""Functions written for other libraries see a block's own memory, on its stream, and give what NumPy's would."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.devices import Place, everywhere, on_cpu_and_gpu, same

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.adapters import _adapted, _lent


@pytest.fixture(params=["torch", "jax"])
def library(request: pytest.FixtureRequest) -> Any:
    """A library by its adapter, with its own module."""
    module = pytest.importorskip(request.param)
    if request.param == "jax":
        module.config.update("jax_enable_x64", True)
    return getattr(cf, request.param), module if request.param == "torch" else module.numpy


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).random(shape)


def room(place: Place, nbytes: int) -> int:
    """A budget that leaves so much for blocks, and on a GPU room for what the libraries take besides."""
    return place.budget(nbytes) + (2 << 30 if place.is_gpu else 0)


@everywhere
def test_the_same_function_in_each_library(library: Any, place: Place) -> None:
    adapter, module = library
    x, y = values(60, 40), values(40).astype("f4")

    def work(u: Any, v: Any, power: Any, xp: Any = np) -> Any:
        return xp.sqrt(xp.abs(u - v)) ** power

    expected = cf.map(work, x, y, 2, device="cpu")
    got = cf.map(adapter(work), x, y, 2, xp=module, budget=room(place, 40_000), device=place.device())
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert got.dtype == expected.dtype


@on_cpu_and_gpu
@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i8", "f2", "f4", "c8"])
def test_dtypes_layouts_and_several_results(library: Any, dtype: str, place: Place) -> None:
    adapter, module = library
    x = (values(7, 5, 6) * 9).astype(dtype)
    for array in (x, np.asfortranarray(x), x[::-1, :, ::2], np.broadcast_to(x[:1], x.shape), x[:0]):
        twice, turned = cf.map(
            adapter(lambda b: (module.concatenate([b, b], 1)[:, : b.shape[1]], b)),
            array,
            chunks=(2, -1, -1),
            device=place.device(),
        )
        same(twice, array)
        same(turned, array)


@everywhere
def test_a_result_may_be_its_block_or_a_view_of_it(library: Any, place: Place) -> None:
    adapter, _ = library
    x = values(64, 16)
    got = cf.map(adapter(lambda b: b), x, budget=room(place, 4096), device=place.device())
    same(got, x)
    got = cf.map(adapter(lambda b: b[:, 3]), x, drop_axis=1, budget=room(place, 4096), device=place.device())
    same(got, x[:, 3])


def test_the_cpu_is_not_copied(library: Any) -> None:
    adapter, _ = library
    # JAX takes memory as it is only where it lies at multiples of 64 bytes.
    base = np.empty(4096 + 8)
    first = -base.ctypes.data % 64 // 8
    x = base[first : first + 4096].reshape(64, 64)
    x[:] = values(64, 64)
    places: list[int] = []

    def work(b: Any) -> Any:
        places.append(b.data_ptr() if hasattr(b, "data_ptr") else b.unsafe_buffer_pointer())
        return b + 1

    fn = adapter(work)
    fn(x)  # the first call gets a copy, to see whether it is written to
    places.clear()
    same(cf.map(fn, x, chunks=(8, -1), device="cpu"), x + 1)
    assert all(x.ctypes.data <= p < x.ctypes.data + x.nbytes for p in places)


def test_a_function_that_writes_to_its_block_is_refused_before_it_does_harm() -> None:
    torch = pytest.importorskip("torch")
    x = values(64, 16)
    before = x.copy()
    for fn in (lambda t: t.add_(1), torch.nn.ReLU(inplace=True)):
        with pytest.raises(errors.ResultError, match=r"clone\(\)"):
            cf.map(cf.torch(fn), x, device="cpu")
    same(x, before)


def test_reductions_stencils_and_expressions_take_them_too(library: Any) -> None:
    adapter, module = library
    x = values(40, 30)
    total = cf.reduction(
        x, adapter(lambda b, axis, keepdims: b.sum(axis[0]).reshape(1, -1)), np.sum, axis=0, device="cpu"
    )
    np.testing.assert_allclose(total, x.sum(0))
    blurred = cf.map_overlap(
        adapter(lambda b: module.roll(b, 1, 0) + b), x, depth={0: 1}, boundary="periodic", device="cpu"
    )
    np.testing.assert_allclose(blurred, np.roll(x, 1, 0) + x)
    lazy = cf.map(adapter(module.tanh), cf.open(x) * 2)
    np.testing.assert_allclose(lazy.compute(device="cpu"), np.tanh(x * 2))


def test_what_is_no_array_of_the_library_is_refused(library: Any) -> None:
    adapter, _ = library
    with pytest.raises(errors.ResultTypeError, match="str"):
        cf.map(adapter(lambda b: "x"), values(4), device="cpu")
    with pytest.raises(ZeroDivisionError) as caught:
        cf.map(adapter(lambda b: 1 / 0), values(4), device="cpu")
    assert "block" in caught.value.__notes__[0]


def test_block_id_is_passed_on(library: Any) -> None:
    adapter, _ = library
    got = cf.map(adapter(lambda b, block_id: b * 0 + block_id[0]), values(6), chunks=2, device="cpu")
    same(got, np.array([0.0, 0, 1, 1, 2, 2]))


def test_read_only_memory_is_lent_and_what_cannot_be_is_copied() -> None:
    """NumPy's first protocol refuses read-only memory, for those who could not be told."""

    def unversioned(array: np.ndarray) -> np.ndarray:
        class Old:
            __dlpack_device__ = array.__dlpack_device__

            def __dlpack__(self, **_: Any) -> Any:
                return array.__dlpack__()

        return np.from_dlpack(Old())  # type: ignore[arg-type]

    x = values(5)
    x.flags.writeable = False
    with pytest.raises(BufferError):
        unversioned(x)
    assert np.shares_memory(_lent(unversioned, x), x)
    torch = pytest.importorskip("torch")
    same(_lent(torch.from_dlpack, x[::-1]).numpy(), x[::-1])


def test_torch_modules_and_gradients() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).double().eval()
    x = values(50, 8)
    got = cf.blockwise(cf.torch(model), "io", x, "ij", new_axes={"o": 4}, device="cpu")
    np.testing.assert_allclose(got, model(torch.from_numpy(x)).detach().numpy())

    def slope(b: Any) -> Any:
        with torch.enable_grad():
            b = b.clone().requires_grad_()
            (b**3).sum().backward()
        return b.grad

    np.testing.assert_allclose(cf.map(cf.torch(slope), x, device="cpu"), 3 * x**2)


def test_torch_out_of_memory_is_the_devices() -> None:
    torch = pytest.importorskip("torch")
    calls: list[int] = []

    def scarce(b: Any) -> Any:
        calls.append(b.numel())
        if b.numel() > 500:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return b + 1

    x = values(4000)
    same(cf.map(cf.torch(scarce), x, chunks=1000, dtype="f8", workspace=8, device="cpu"), x + 1)
    assert max(calls) == 1000
    assert min(calls) == 500


def test_blocks_of_a_dataset_are_the_arrays() -> None:
    torch = pytest.importorskip("torch")
    from chunkflow.datasets import Blocks

    x = values(100, 3)
    dataset = Blocks(x, chunks=(32, -1), device="cpu")
    for loader in (dataset, torch.utils.data.DataLoader(dataset, batch_size=None)):
        batches = [batch.clone() for batch in loader]
        assert [len(b) for b in batches] == [32, 32, 32, 4]
        same(torch.cat(batches).numpy(), x)
    first = next(iter(dataset))
    assert x.ctypes.data == first.data_ptr()
    workers = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(errors.UnsupportedError, match="num_workers=0"):
        next(iter(workers))


@pytest.mark.gpu
def test_torch_sees_the_blocks_memory_on_chunkflows_stream() -> None:
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    places: list[int] = []
    seen: list[tuple[bool, int, int]] = []

    def work(tensor: Any) -> Any:
        streams = torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr
        seen.append((tensor.data_ptr() == places[-1], *streams))
        return tensor * 2

    adapted = cf.torch(work)

    def fn(block: Any) -> Any:
        places.append(block.data.ptr)
        return adapted(block)

    x = values(1 << 20)
    same(cf.map(fn, x, chunks=1 << 18, budget="2GB", device="cuda"), x * 2)
    assert len(seen) >= 5
    assert not seen[0][0]  # a copy, lest a function that writes does harm
    assert all(here for here, _, _ in seen[1:])
    assert all(one == other for _, one, other in seen if other)


@pytest.mark.gpu
def test_results_of_torch_are_not_copied() -> None:
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x, pool = cupy.arange(1 << 20, dtype="f4"), cupy.get_default_memory_pool()
    before = pool.used_bytes()
    y = cf.torch(lambda t: t + 1)(x)
    assert pool.used_bytes() == before
    assert float(y[5]) == 6
    same(cf.torch(lambda t: t)(x).get(), x.get())


@pytest.mark.gpu
def test_a_training_loop_on_a_gpu_reads_what_is_stored() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    from chunkflow.datasets import Blocks

    x = values(1 << 14, 64)
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    side = torch.cuda.Stream()
    for batch in Blocks(x, chunks=(512, -1), device="cuda", budget="2GB"):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total += batch.sum()
        torch.cuda.current_stream().wait_stream(side)
    assert float(total) == pytest.approx(x.sum(), rel=1e-12)


@pytest.mark.gpu
def test_cupys_kernels_and_numbas_take_blocks_as_they_are() -> None:
    cupy = pytest.importorskip("cupy")
    x = values(1000, 33)
    doubled = cupy.ElementwiseKernel("T x", "T y", "y = 2 * x", "doubled")
    same(cf.map(doubled, x, device="cuda"), 2 * x)
    raw = cupy.RawKernel(
        'extern "C" __global__ void f(const double* x, double* y, long long n) '
        "{ long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] + 1; }",
        "f",
    )

    def added(b: Any) -> Any:
        b, out = cupy.ascontiguousarray(b), cupy.empty(b.shape)
        raw((-(-b.size // 256),), (256,), (b, out, b.size))
        return out

    same(cf.map(added, x, device="cuda"), x + 1)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Grid size")
def test_numbas_kernels_run_on_the_stream_they_are_given() -> None:
    cupy, cuda = pytest.importorskip("cupy"), pytest.importorskip("numba.cuda")

    @cuda.jit
    def kernel(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] * 3

    try:
        kernel[1, 32](cupy.zeros(2), cupy.zeros(2))
    except AttributeError as error:  # what of NumPy's an older numba asks for may be gone
        pytest.skip(f"this numba does not work with NumPy {np.__version__}: {error}")

    def tripled(b: Any) -> Any:
        out = cupy.empty_like(b)
        kernel[-(-b.size // 128), 128, cuda.external_stream(cupy.cuda.get_current_stream().ptr)](b, out)
        return out

    x = values(100_000)
    same(cf.map(tripled, x, device="cuda", budget="2GB"), x * 3)


class Brain:
    """An array of a library that has a dtype more than NumPy."""

    shape, dtype = (3,), "torch.bfloat16"

    def __getitem__(self, region: Any) -> Any:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_what_numpy_has_no_dtype_for_is_to_be_converted() -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"torch\.bfloat16.*\.float\(\)"):
        cf.map(np.negative, Brain())
    fn = _adapted(lambda block: Brain(), lambda block: Brain(), lambda block: block, Brain, lambda value: value)
    with pytest.raises(errors.ResultTypeError, match=r"torch\.bfloat16.*\.float\(\)"):
        cf.map(fn, np.ones(3), device="cpu")


@pytest.mark.parametrize("pointer", [1, 7])
def test_torch_computes_on_the_stream_of_its_block(pointer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torch: the default stream is no pointer that it takes."""
    used: list[Any] = []
    cuda = SimpleNamespace(
        stream=lambda stream: nullcontext(used.append(stream)),
        default_stream=lambda device: ("default", device),
        ExternalStream=lambda pointer, device: (pointer, device),
        OutOfMemoryError=MemoryError,
    )
    torch = SimpleNamespace(cuda=cuda, no_grad=nullcontext, from_dlpack=lambda block: block, Tensor=int)
    monkeypatch.setitem(sys.modules, "torch", torch)
    facts = {"__dlpack__": None, "strides": (8,), "copy": lambda block: block, "_version": 0, "__module__": "numpy"}
    where = {"__cuda_array_interface__": {"stream": pointer}, "device": SimpleNamespace(id=3)}
    block = type("Block", (), facts | where)()
    assert cf.torch(lambda tensor: tensor)(block) is block
    assert used == [("default", 3) if pointer == 1 else (7, 3)]

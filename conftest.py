"""Settings of every test, the doctests in ``chunkflow/`` among them (hence here and not in ``tests/``)."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import re
import signal
import warnings
import zlib
from functools import cache

import pytest
from hypothesis import HealthCheck, seed, settings

# Plans are those of the usual machine, not of the one that somebody has measured.
os.environ["CHUNKFLOW_RATES"] = "0"

# JAX takes three quarters of a card at once, which other tests are then without.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# netCDF4 names a directory of filters to every HDF5 of the process, which fit only its own: h5py has others first.
if importlib.util.find_spec("hdf5plugin"):
    importlib.import_module("hdf5plugin")

# A script's background jobs start with Ctrl-C ignored, and Python leaves it so: tests of it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A run is repeatable, and a slow machine is no failure. `--hypothesis-profile=thorough` looks further.
settings.register_profile(
    "ci",
    max_examples=3,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", settings.get_profile("ci"), derandomize=False, max_examples=2000, stateful_step_count=100
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Doctests are found by importing each module, and these cannot be imported without what they are for.
collect_ignore = [] if importlib.util.find_spec("cupy") else ["chunkflow/devices/cuda/device.py"]
if not importlib.util.find_spec("xarray"):
    collect_ignore += ["chunkflow/xarray.py", "chunkflow/api/apply_ufunc.py"]
if not importlib.util.find_spec("torch"):
    collect_ignore += ["chunkflow/datasets.py"]
if not importlib.util.find_spec("h5py"):
    collect_ignore += ["chunkflow/stores/hdf5"]
if not importlib.util.find_spec("dask"):
    collect_ignore += [
        "chunkflow/dask",
        "chunkflow/stores/foreign/dask.py",
        "chunkflow/api/lazy/dask_protocol.py",
        "chunkflow/api/lazy/open.py",
    ]


@cache
def has_gpu() -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns of what is wrong with an installation
            import cupy

            return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # no package, no driver, no device: each has an exception of its own
        return False


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # pytest-xdist would begin files of few tests last: some take longest


def is_thorough() -> bool:
    return settings().max_examples >= settings.get_profile("thorough").max_examples


def values(item: pytest.Item) -> set[tuple[object, ...]]:
    """What a test is tried with."""
    params = item.callspec.params  # type: ignore[attr-defined]
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    groups = [tuple(re.findall(r"\w+", " ".join([name] if isinstance(name, str) else name))) for name in names]
    groups += [(name,) for name in params if not any(name in group for group in groups)]  # of fixtures
    return {(group, *(id(params[name]) for name in group)) for group in groups}


def of_each_value(items: list[pytest.Item]) -> list[pytest.Item]:
    """All tests but those of whose parameters each value is tried by others, of which a GPU has its own.

    Each class that inherits a contract suite has tests of its own.
    """
    tests: dict[tuple[str, bool], list[tuple[pytest.Item, set[tuple[object, ...]]]]] = {}
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("combinations"):
            key = item.nodeid.partition("[")[0], item.get_closest_marker("gpu") is not None
            tests.setdefault(key, []).append((item, values(item)))
    left_out = set()
    for same in tests.values():
        left = set().union(*(tried for _, tried in same))
        while left:
            chosen = max(same, key=lambda test: len(test[1] & left))
            left -= chosen[1]
            same.remove(chosen)
        left_out.update(item for item, _ in same)
    return [item for item in items if item not in left_out]


def in_a_quarter_of_the_places(items: list[pytest.Item]) -> list[pytest.Item]:
    """All tests, but of a contract that all devices keep every fourth one: in other places from test to test."""
    tried: dict[str, list[pytest.Item]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        place = params.get("place", params.get("where"))
        if getattr(place, "mode", ""):
            tried.setdefault(item.nodeid.replace(str(place), ""), []).append(item)
    some = [(zlib.crc32(test.encode()), same) for test, same in tried.items() if len(same) > 3]
    left_out = {item for number, same in some for i, item in enumerate(same) if i % 4 != number % 4}
    return [item for item in items if item not in left_out]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not is_thorough():
        chosen = in_a_quarter_of_the_places([item for item in items if not item.get_closest_marker("thorough")])
        chosen = of_each_value(chosen)
        config.hook.pytest_deselected(items=[*set(items).difference(chosen)])
        items[:] = chosen
    # What libraries take on a GPU counts in every later budget of the process: small budgets come first, they last.
    items.sort(key=lambda item: ("engine/test_budget" not in item.nodeid) + ("test_adapters" in item.nodeid))
    items.sort(key=lambda item: "tests/torture/" not in item.nodeid)  # others run beside what takes longest
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    # Thousands of tests are no garbage: many of them collect, which takes half a second where it looks through these.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    # What is repeatable is the same for each parameter: other examples for each of them show more.
    if item.get_closest_marker("hypothesis") and hasattr(item, "callspec") and settings().derandomize:
        test = item.obj  # type: ignore[attr-defined]
        seed(zlib.crc32(item.nodeid.encode()))(getattr(test, "__func__", test))


@pytest.fixture(autouse=True)
def _doctests_write_elsewhere(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path_factory.mktemp("doctest"))

"""Settings of every test, the doctests in ``chunkflow/`` among them (hence here and not in ``tests/``)."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import warnings
from functools import cache

import pytest
from hypothesis import HealthCheck, settings

# Plans are those of the usual machine, not of the one that somebody has measured.
os.environ["CHUNKFLOW_RATES"] = "0"

# A script's background jobs start with Ctrl-C ignored, and Python leaves it so: tests of it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A run is repeatable, and a slow machine is no failure. `--hypothesis-profile=thorough` looks further.
settings.register_profile(
    "ci",
    max_examples=60,
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What libraries take on a GPU counts in every later budget of the process: small budgets come first, they last.
    items.sort(key=lambda item: ("engine/test_budget" not in item.nodeid) + ("test_adapters" in item.nodeid))
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    # Thousands of tests are no garbage: many of them collect, which takes half a second where it looks through these.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _doctests_write_elsewhere(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path_factory.mktemp("doctest"))

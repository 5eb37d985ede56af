"""Resources: tasks ask for a GPU if the cluster's workers declare GPUs, so that each runs one task at a time."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dask

RESOURCE = "GPU"


def asking(device: Any) -> AbstractContextManager[Any]:
    """Let each task that is made within this context ask for a GPU of its worker, if any worker has declared one.

    Tasks do not ask if resources are annotated already (``dask.annotate``), or if `device` is the CPU.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or str(device) == "cpu" or "resources" in (dask.get_annotations() or {}):
        return nullcontext()
    try:
        client = distributed.default_client()
    except ValueError:  # tasks are for another scheduler
        return nullcontext()
    # Not `scheduler_info`: what the client keeps is replaced every two seconds by an account without workers, maybe
    # just before it is returned. A client within an event loop cannot wait here, and has only that.
    account = client.scheduler_info() if client.asynchronous else client.sync(client.scheduler.identity)
    workers = account["workers"].values()
    declared = any(worker.get("resources", {}).get(RESOURCE) for worker in workers)
    return dask.annotate(resources={RESOURCE: 1}) if declared else nullcontext()

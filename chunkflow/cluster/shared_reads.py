"""Shared reads: layers of a dask graph that merge the tasks of several results that read the same partitions.

dask culls a graph layer by layer, from its results down. A layer on which several results depend comes last, and then
sees which of them are wanted together. Until then, or if dask does not cull, each result has its own tasks.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakValueDictionary

import dask.base
from dask._task_spec import Alias, List, Task, TaskRef
from dask.highlevelgraph import Layer, MaterializedLayer

from chunkflow.cluster.tasks import run, run_together
from chunkflow.core.grid import Shape


class Reading(MaterializedLayer):  # type: ignore[misc]
    """The tasks of one result, one for each partition. When dask culls this layer, the layer `shared` takes them over.

    `mapping` has the tasks, and the program under the key `program`; `indices` has the partition of each task. If the
    program is `carried`, each task has its own copy.
    """

    def __init__(
        self, mapping: Mapping[Any, Any], program: str, indices: dict[Any, Shape], shared: Shared, carried: bool
    ) -> None:
        super().__init__(mapping)
        self._program, self._indices, self._shared, self._carried = program, indices, shared, carried

    def __reduce__(self) -> Any:
        """Pickle the arguments, so that the shared layer finds this one in another process too."""
        made = self.mapping, self._program, self._indices, self._shared, self._carried
        return Reading, made, {"annotations": self.annotations, "collection_annotations": self.collection_annotations}

    @property
    def program(self) -> Any:
        """The program of the tasks."""
        return self[self._program].value

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """The layer without the tasks that `keys` do not need."""
        if self._carried:
            self._shared.known[self._program] = self
        tasks: dict[Any, Any] = {}
        for key in self._indices.keys() & keys:
            tasks[key] = Alias(key, (self._shared.name, self._program, *self._indices[key]))
        if tasks or self._program in keys:
            tasks[self._program] = self[self._program]
        return _materialized(self, tasks)


class Shared(MaterializedLayer):  # type: ignore[misc]
    """The layer of all results that read the same partitions. It is empty until dask culls it.

    Its keys are its name, a program's key and a partition's index. `arrays` has for each partition the keys that its
    task waits for. `known` has the `Reading` layers whose tasks have their own copy of the program, by its key; tasks
    wait for other programs. These references are weak and not pickled, since the layers may belong to other graphs.
    """

    def __init__(self, name: str, arrays: Mapping[Shape, tuple[Any, ...]]) -> None:
        super().__init__({})
        self.name, self._arrays = name, arrays
        self.known: WeakValueDictionary[str, Reading] = WeakValueDictionary()

    def __reduce__(self) -> Any:
        """Pickle the name, so that there is one layer of this name in another process too."""
        state = {"annotations": self.annotations, "collection_annotations": self.collection_annotations}
        return meeting, (self.name, self._arrays), state

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """The layer without the tasks that `keys` do not need."""
        wanted: dict[Shape, list[str]] = {}
        for key in keys:
            if isinstance(key, tuple) and key[:1] == (self.name,):
                wanted.setdefault(key[2:], []).append(key[1])
        tasks: dict[Any, Any] = {}
        for index, programs in wanted.items():
            arrays = List(*map(TaskRef, self._arrays[index]))
            keyed = {(self.name, program, *index): self._given(program) for program in sorted(programs)}
            if len(keyed) == 1:
                tasks |= {key: Task(key, run, what, index, arrays, _data_producer=True) for key, what in keyed.items()}
                continue
            together = (f"{self.name}-{dask.base.tokenize(sorted(programs))}", *index)
            what = List(*keyed.values())
            tasks[together] = Task(together, run_together, what, index, arrays, _data_producer=True)
            tasks |= {key: Task(key, operator.getitem, TaskRef(together), i) for i, key in enumerate(keyed)}
        return _materialized(self, tasks)

    def _given(self, program: str) -> Any:
        """A program as an argument of tasks: itself, or a reference to wait for."""
        reading = self.known.get(program)
        return TaskRef(program) if reading is None else reading.program


_met: WeakValueDictionary[str, Shared] = WeakValueDictionary()


def meeting(name: str, arrays: Mapping[Shape, tuple[Any, ...]]) -> Shared:
    """The one layer of this name. When dask merges graphs it keeps one of them, which must know all programs."""
    return _met.setdefault(name, Shared(name, arrays))


def _materialized(layer: Layer, tasks: dict[Any, Any]) -> tuple[Layer, Mapping[Any, set[Any]]]:
    """Tasks as a layer with the annotations of `layer`, and the keys that each task waits for."""
    found = MaterializedLayer(tasks, annotations=layer.annotations)
    return found, {key: set(task.dependencies) for key, task in tasks.items()}

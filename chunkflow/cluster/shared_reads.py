"""Layers of dask's graphs in which the tasks of several results that read the same partitions become one.

dask culls a graph from its results down, layer by layer. So a layer on which several results depend is asked last, and
sees which of them are wanted together. Until then, and where nothing is culled, each has tasks of its own.
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
    """The tasks of one result, one for each partition; when it is culled they are left to the layer `shared`.

    Parameters
    ----------
    mapping : dict
        The tasks, and their program.
    program : str
        Its key.
    indices : dict
        For each task's key the index of its partition.
    shared : Shared
        The layer of all that read the same.
    carried : bool
        Whether tasks have the program with them.
    """

    def __init__(
        self, mapping: Mapping[Any, Any], program: str, indices: dict[Any, Shape], shared: Shared, carried: bool
    ) -> None:
        super().__init__(mapping)
        self._program, self._indices, self._shared, self._carried = program, indices, shared, carried

    def __reduce__(self) -> Any:
        """As it was made, so that the layer where it meets others knows it in another process too."""
        made = self.mapping, self._program, self._indices, self._shared, self._carried
        return Reading, made, {"annotations": self.annotations, "collection_annotations": self.collection_annotations}

    @property
    def program(self) -> Any:
        """The program itself."""
        return self[self._program].value

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """See `dask.highlevelgraph.Layer.cull`."""
        if self._carried:
            self._shared.known[self._program] = self
        tasks: dict[Any, Any] = {}
        for key in self._indices.keys() & keys:
            tasks[key] = Alias(key, (self._shared.name, self._program, *self._indices[key]))
        if tasks or self._program in keys:
            tasks[self._program] = self[self._program]
        return _materialized(self, tasks)


class Shared(MaterializedLayer):  # type: ignore[misc]
    """Where the tasks of all that read the same partitions meet: empty until dask says which are wanted.

    Parameters
    ----------
    name : str
        The first entry of the keys that it is asked for; further ones are a program's key and a partition's index.
    arrays : dict
        For each partition the keys of what its task waits for.

    Attributes
    ----------
    known : mapping
        By the keys of their programs those `Reading` layers whose tasks have these with them; others are waited for.
        It keeps none of them, nor takes them to another process: they may be of graphs that have no part in this one.
    """

    def __init__(self, name: str, arrays: Mapping[Shape, tuple[Any, ...]]) -> None:
        super().__init__({})
        self.name, self._arrays = name, arrays
        self.known: WeakValueDictionary[str, Reading] = WeakValueDictionary()

    def __reduce__(self) -> Any:
        """The one of its name, in another process too."""
        state = {"annotations": self.annotations, "collection_annotations": self.collection_annotations}
        return meeting, (self.name, self._arrays), state

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """See `dask.highlevelgraph.Layer.cull`."""
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
        """What tasks get for a program: itself, or what they have to wait for."""
        reading = self.known.get(program)
        return TaskRef(program) if reading is None else reading.program


_met: WeakValueDictionary[str, Shared] = WeakValueDictionary()


def meeting(name: str, arrays: Mapping[Shape, tuple[Any, ...]]) -> Shared:
    """The one layer of this name: of those in graphs that are merged dask keeps one, which must know all programs."""
    return _met.setdefault(name, Shared(name, arrays))


def _materialized(layer: Layer, tasks: dict[Any, Any]) -> tuple[Layer, Mapping[Any, set[Any]]]:
    """Tasks as a layer with another's annotations; and what each of them waits for."""
    found = MaterializedLayer(tasks, annotations=layer.annotations)
    return found, {key: set(task.dependencies) for key, task in tasks.items()}

"""
The timeline of a run
=====================

An observer sees what each thread does, and when: here the stages of a run that reads an encoded file, computes and
writes. Each stage has a color, each thread that tells of them a row, and stages of different blocks overlap.
"""

import tempfile
import threading
import time

import matplotlib.pyplot as plt
import numpy as np

import chunkflow as cf

folder = tempfile.TemporaryDirectory()
field = np.random.default_rng(11).standard_normal((64, 256, 256), "f4").round(1)
cf.copy(field, cf.NewArray(f"{folder.name}/field.zarr", chunks=(8, 128, 128), compressors="zstd"))


class Timeline(cf.Observer):
    """Keeps each span of work, by the thread that did it."""

    wants_spans = True

    def __init__(self):
        self.spans = []

    def started(self, plan, run=None):
        self.begin = time.perf_counter()

    def span(self, stage, start, stop, nbytes, block=None, lane=None):
        self.spans.append((threading.get_ident(), stage, start - self.begin, stop - start))

    def finished(self, error, peak):
        self.end = time.perf_counter() - self.begin


timeline = Timeline()
with cf.observing(timeline):
    cf.map(lambda x: np.tanh(x) * 3, f"{folder.name}/field.zarr", out=f"{folder.name}/out.zarr", budget="24MB")

# %%
# One row for each thread:

colors = {"read": "tab:blue", "compute": "tab:orange", "write": "tab:green"}
threads = list(dict.fromkeys(thread for thread, *_ in timeline.spans))
figure, ax = plt.subplots(figsize=(9.5, 3.6), layout="constrained")
for stage, color in colors.items():
    for thread in threads:
        bars = [(1000 * start, 1000 * long) for t, s, start, long in timeline.spans if (t, s) == (thread, stage)]
        ax.broken_barh(bars, (threads.index(thread) - 0.4, 0.8), color=color)
    ax.plot([], [], lw=8, color=color, label=stage)
ax.set(
    title="What each thread does",
    xlabel="milliseconds since the run began",
    ylabel="thread",
    yticks=range(len(threads)),
)
ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
plt.show()

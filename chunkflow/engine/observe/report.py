"""The figures of runs: seconds, bytes and rates of each stage, and how well the stages overlap."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from chunkflow.core import markup
from chunkflow.core.units import format_bytes
from chunkflow.engine.observe.advice import Advice, advised
from chunkflow.engine.observe.seen import Seen
from chunkflow.engine.trace import Stage
from chunkflow.errors import ChunkflowError


@dataclass(frozen=True)
class StageReport:
    """One stage of the pipeline.

    Attributes
    ----------
    name : str
        ``"read"``, ``"upload"``, ``"decode"`` (on the device), ``"compute"``, ``"download"`` or ``"write"``.
    seconds : float
        Time during which at least one thread or lane was in the stage.
    nbytes : int
        Bytes that went through it. Of ``"read"`` they are those of the elements that blocks are given: where these cut
        chunks more is read, which `Report.notes` say.
    """

    name: Stage
    seconds: float
    nbytes: int

    @property
    def rate(self) -> float:
        """Bytes per busy second; 0 where no time passed."""
        return self.nbytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Report:
    """The figures of a `Profile`; ``print`` shows them as a table.

    Attributes
    ----------
    stages : tuple of StageReport
        In the order of the pipeline; those that no block went through are left out.
    seconds : float
        Length of the runs. Where they overlap, the time is counted once.
    runs : int
        How many began.
    peak : int
        Most bytes of device memory that blocks and results took at once, in any of them.
    notes : tuple of str
        Notes of the runs, each once.
    seen : tuple of chunkflow.engine.observe.advice.Seen
        What is known of the runs that ended well, of the first 256.
    planned, budget : int
        Bytes that the largest of their plans counts with, and those that it may take. On the CPU the plan has what no
        peak shows: what chunks take to decode, temporaries of the function, and Python's objects.
    """

    stages: tuple[StageReport, ...]
    seconds: float
    runs: int
    peak: int
    notes: tuple[str, ...] = ()
    seen: tuple[Seen, ...] = field(default=(), repr=False, compare=False)
    planned: int = 0
    budget: int = 0

    def advice(self) -> Advice:
        """Why the longest of the runs took as long as it did, and what would make it shorter; print it.

        Raises
        ------
        ChunkflowError
            No run has finished.

        Examples
        --------
        >>> import numpy as np
        >>> import chunkflow as cf
        >>> with cf.Profile() as profile:
        ...     y = cf.map(np.sqrt, np.ones((64, 64)), device="cpu")
        >>> profile.report.advice().bound_by in ("read", "compute", "write")
        True
        """
        if not self.seen:
            raise ChunkflowError(
                "there is no advice, as no run has finished in this process: mend what refused or stopped it, run it "
                "again, and ask then. chunkflow.explain shows the plan of a run that has not begun"
            )
        return replace(advised(max(self.seen, key=lambda run: run.seconds)), passes=len(self.seen))

    @property
    def bound_by(self) -> Stage | None:
        """Name of the busiest stage: a faster one would shorten the run. None if there is none."""
        return max(self.stages, key=lambda stage: stage.seconds).name if self.stages else None

    @property
    def efficiency(self) -> float:
        """Overlap efficiency: the busiest stage's seconds / the runs' seconds.

        1 means that all other stages are hidden behind the busiest one; with nothing overlapped it
        is that stage's share of the work. 0 if there was no run.
        """
        busiest = max((stage.seconds for stage in self.stages), default=0.0)
        return busiest / self.seconds if self.seconds else 0.0

    @property
    def table(self) -> str:
        """The stages as a table of HTML."""
        return markup.table(
            ("stage", "busy s", "of run", "bytes", "GB/s"),
            [
                (
                    stage.name,
                    f"{stage.seconds:.3f}",
                    f"{stage.seconds / self.seconds if self.seconds else 0:.0%}",
                    format_bytes(stage.nbytes),
                    f"{stage.rate / 1e9:.2f}",
                )
                for stage in self.stages
            ],
        )

    @property
    def summary(self) -> str:
        """The runs in a line."""
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        planned = f", planned {format_bytes(self.planned)} of {format_bytes(self.budget)}" if self.planned else ""
        return f"{runs} in {self.seconds:.3f} s, peak {format_bytes(self.peak)}{planned}"

    @property
    def bound(self) -> str:
        """What bounds the runs, in words; empty if no block went through."""
        return f"bound by {self.bound_by}; overlap efficiency {self.efficiency:.0%}" if self.stages else ""

    def _repr_html_(self) -> str:
        return f"<p>{markup.text(self.summary)}</p>{self.table}<p>{self.bound}</p>{markup.bullets(self.notes)}"

    def __str__(self) -> str:
        lines = [self.summary]
        if self.stages:
            lines.append(f"  {'stage':<9}{'busy s':>9}{'of run':>8}{'bytes':>12}{'GB/s':>9}")
        for stage in self.stages:
            share = stage.seconds / self.seconds if self.seconds else 0.0
            lines.append(
                f"  {stage.name:<9}{stage.seconds:>9.3f}{share:>8.0%}"
                f"{format_bytes(stage.nbytes):>12}{stage.rate / 1e9:>9.2f}"
            )
        lines += [self.bound] if self.stages else []
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join(lines)

"""Tables and pictures of what was found, and the page of results."""

from __future__ import annotations

import importlib
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import Listing
from benchmarks.harness import Found

HERE = Path(__file__).parent
PAGE = HERE / "RESULTS.md"
KEPT = HERE / "results"
INTRODUCTION = """# Results

`python -m benchmarks CASE ... --report` writes this page from [`results/`](results): rows of the cases that it ran, on
the device that it ran on, replace the older ones. `python -m benchmarks --list` says what each case is. The limit is
measured beside the case, in the same run; *share* is what chunkflow reaches of it. A goal in bold was missed. *Peers*
are their time over chunkflow's: 2 means that they take twice as long; where it was measured, their anonymous memory
over chunkflow's is behind it. Machines of one kind differ by a third: rates
belong to the machine, shares and ratios are what to hold on to. Runs before 2026-11-25 name the scripts of that time
and the commit that recorded them. Older tables, what holds up the rest and what was tried are in [`history/`](history).
"""


def table(title: str, rows: Sequence[Sequence[object]], head: Sequence[str], level: int = 3) -> str:
    """Markdown table."""
    lines = [f"{'#' * level} {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(figure: float | None, digits: str = ".2f") -> str:
    """A figure, or nothing."""
    return "" if figure is None else format(figure, digits)


def described(found: Found, missing: tuple[str, ...]) -> str:
    """Table of one case."""
    rows = []
    for name, times in found.seconds.items():
        rate = found.rates[name]
        spread = f"{min(times):.3g}-{max(times):.3g}"
        share = None if found.limit_rate is None else rate / found.limit_rate
        ratio = "-" if name == found.ours else f"{found.rate / rate:.2f}"
        more = (cells.get(name, "-") for cells in found.columns.values() if cells)
        rows.append((name, f"{statistics.median(times):.3g}", spread, f"{rate:.3g}", cell(share) or "-", ratio, *more))
    limit = "" if found.limit_rate is None else f"; limit: {found.limit}, {found.limit_rate:.3g} {found.unit}"
    heads = (head for head, cells in found.columns.items() if cells)
    head = ["contender", "seconds", "range", found.unit, "of the limit", "chunkflow / this", *heads]
    absent = f"\nNot installed: {', '.join(missing)}.\n" if missing else ""
    return table(f"{found.name}: {found.what}{limit}", rows, head) + absent


def listed(listing: Listing) -> str:
    """Table of figures that are no race."""
    return table(listing.title, listing.rows, listing.head)


def summary(all_found: Sequence[Found]) -> str:
    """Table of all cases."""
    words = {True: "yes", False: "no", None: ""}
    rows = [
        (
            f.name,
            f"{f.rate:.3g} {f.unit}",
            "" if f.limit_rate is None else f"{f.limit}, {f.limit_rate:.3g}",
            cell(f.share),
            f.goal,
            words[f.met],
            cell(f.overlap),
            cell(f.modelled),
        )
        for f in all_found
    ]
    head = ["case", "chunkflow", "limit", "of the limit", "goal", "met", "busiest stage", "took / predicted"]
    return table("all cases", rows, head)


def kept_row(f: Found, run: int) -> dict[str, Any]:
    """A case as `results/` keeps it; its run is the number of the one that it is from."""
    return {
        "seen": f.rate,
        "unit": f.unit,
        "limit": f.limit,
        "limit_rate": f.limit_rate,
        "goal": f.goal,
        "met": f.met,
        "share": f.share,
        "peers": {name: ratio for name, ratio in f.peers.items() if name != f.limit},
        "memory": memory_of(f),
        "run": run,
        **({"reason": f.reason} if f.reason else {}),
    }


def memory_of(f: Found) -> dict[str, float]:
    """How many times chunkflow's anonymous memory the others take; of less than a MB it counts as one."""
    taken = {name: max(1.0, float(cell)) for name, cell in f.columns.get("anonymous, MB", {}).items()}
    return {name: each / taken[f.ours] for name, each in taken.items() if name != f.ours}


def update(kept: dict[str, Any], all_found: Sequence[Found], run: Mapping[str, str]) -> dict[str, Any]:
    """A device's figures with those of one more run; runs of which no row is left are dropped."""
    runs = kept["runs"] if dict(run) in kept["runs"] else [*kept["runs"], dict(run)]
    rows = kept["cases"] | {f.name: kept_row(f, runs.index(dict(run))) for f in all_found}
    used = sorted({row["run"] for row in rows.values()})
    number = {old: new for new, old in enumerate(used)}
    cases = {name: row | {"run": number[row["run"]]} for name, row in rows.items()}
    return {"device": kept["device"], "runs": [runs[old] for old in used], "cases": cases}


def write(device: str, all_found: Sequence[Found], run: Mapping[str, str], kept: Path = KEPT, to: Path = PAGE) -> None:
    """Keep the figures of a run, and write the page anew."""
    kept.mkdir(parents=True, exist_ok=True)
    path = kept / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    before = json.loads(path.read_text()) if path.exists() else {"device": device, "runs": [], "cases": {}}
    path.write_text(json.dumps(update(before, all_found, run), indent=1) + "\n")
    to.write_text(page(kept))


def page(kept: Path = KEPT) -> str:
    """The page of results, from what is kept."""
    devices = [json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))]
    return "\n".join([INTRODUCTION, *map(device_table, devices)])


def device_table(kept: Mapping[str, Any]) -> str:
    """A device's table, and the runs that its rows are from."""
    families: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, row in kept["cases"].items():
        families.setdefault(re.sub(r", axis \d$", ", each axis", name), {})[name] = row
    head = ["case", "seen", "limit", "share", "goal", "peers", "run"]
    lines = [table(kept["device"], [page_row(*named) for named in families.items()], head, 2)]
    reasons = [f"- {name}: {row['reason']}" for name, row in kept["cases"].items() if "reason" in row]
    if reasons:
        lines.append("\n".join(["What keeps rows from their goals, by profiles:", "", *reasons, ""]))
    machines: dict[str, list[str]] = {}
    for i, run in enumerate(kept["runs"]):
        date, _, what = run["machine"].partition("; ")
        machines.setdefault(what, []).append(f"{letter(i)}: {date}, `{run['command']}`, commit {run['commit']}")
    lines += [f"{what}: {'; '.join(runs)}.\n" for what, runs in machines.items()]
    return "\n".join(lines)


def page_row(family: str, named: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Cells of a case, or of one for each axis."""
    rows = list(named.values())
    row, name = rows[-1], family if len(rows) > 1 else next(iter(named))
    seen = f"{span([r['seen'] for r in rows], '.3g')} {row['unit']}"
    limit, share = "", ""
    if row["limit_rate"] is not None:
        limit = f"{row['limit']}, {row['limit_rate']:.3g}"
        share = span([r["share"] for r in rows], ".2f")
    goal = f"**{row['goal']}**" if any(r["met"] is False for r in rows) else row["goal"]
    taken = {name: f", memory {times(ratio)}" for name, ratio in row.get("memory", {}).items()}
    shown = "; ".join(f"{peer}: {times(ratio)}{taken.get(peer, '')}" for peer, ratio in row["peers"].items())
    return name, seen, limit, share, goal, shown, letter(row["run"])


def times(ratio: float) -> str:
    """A ratio in three digits."""
    return format(ratio, ".2f" if ratio < 10 else ".0f")


def span(figures: Sequence[float], digits: str) -> str:
    """A figure, or the least and the most of some."""
    least, most = format(min(figures), digits), format(max(figures), digits)
    return least if least == most else f"{least}-{most}"


def letter(number: int) -> str:
    """Name of a run: a, b, c ..."""
    return chr(ord("a") + number)


def draw(all_found: Sequence[Found], directory: Path) -> Path:
    """Picture of every contender's share of its case's limit."""
    importlib.import_module("matplotlib").use("agg")
    plt = importlib.import_module("matplotlib.pyplot")
    all_found = [f for f in all_found if f.limit_rate is not None]
    names = list(dict.fromkeys(name for f in all_found for name in f.rates))
    figure, axes = plt.subplots(figsize=(9, 1 + 0.35 * sum(len(f.rates) for f in all_found)))
    place, ticks, labels = 0.0, [], []
    colours = plt.get_cmap("tab10")
    seen: set[str] = set()
    for f in reversed(all_found):
        assert f.limit_rate is not None
        middle = place + (len(f.rates) - 1) / 2
        for name, rate in reversed(f.rates.items()):
            label = None if name in seen else name
            seen.add(name)
            axes.barh(place, rate / f.limit_rate, color=colours(names.index(name) % 10), label=label)
            place += 1
        ticks.append(middle)
        labels.append(f.name)
        place += 0.7
    axes.set_yticks(ticks, labels)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("share of the limit measured in the same run")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize="small", frameon=False)
    figure.tight_layout()
    path = directory / "benchmarks.svg"
    figure.savefig(path)
    plt.close(figure)
    return path


def draw_curves(listing: Listing, path: Path) -> None:
    """Picture of a listing's curves, both axes logarithmic."""
    importlib.import_module("matplotlib").use("agg")
    plt = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(figsize=(6, 4))
    for name, points in listing.curves.items():
        axes.loglog(*zip(*points, strict=True), marker="o", label=name)
    axes.set_title(listing.title, fontsize="medium")
    axes.set_xlabel(listing.head[0])
    axes.set_ylabel("milliseconds")
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)

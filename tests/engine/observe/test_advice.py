"""Advice on runs: each cause is named where its facts are, and only there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from support.decoders import DecodingDevice
from support.devices import machine, numpy_device
from zarr import codecs

import chunkflow as cf
from chunkflow.core.machine import Decoding
from chunkflow.core.nest import Along, Output, nest
from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.core.units import format_bytes
from chunkflow.devices import measured_rates, resolve
from chunkflow.engine.observe import watched_run, what_if
from chunkflow.engine.observe.advice import advised
from chunkflow.engine.observe.seen import Seen
from chunkflow.engine.observe.what_if import STARTING
from chunkflow.planner.plan import Plan
from chunkflow.planner.search import make_plan

CPU = {"device": "cpu"}
BUSY = {"read": 0.2, "compute": 0.9, "write": 0.3}


def plan(*, staged: bool = False, lanes: int = 4, budget: int = 8 << 30, **spec: Any) -> Plan:
    """Of a map of an array to a new one."""
    x = ArraySpec("x.zarr", (512, 512, 512), np.dtype("f4"), **spec)
    out = replace(x, name="y.npy", chunks=None, storage=Storage())
    op = nest([x.shape])
    op = replace(op, outputs=(Output(tuple(map(Along, range(3)))),))
    return make_plan(op, [x], [out], machine(staged=staged, lanes=lanes), budget)


def seen(of: Plan, busy: Mapping[str, float] = BUSY, **facts: Any) -> Seen:
    """Of a run of a second in which all lanes were at work."""
    spent = {stage: seconds * of.lanes for stage, seconds in busy.items()}
    told = {"spent": spent, "moved": dict.fromkeys(busy, 4 << 30), "processor": sum(spent.values()), "cores": of.lanes}
    told |= facts
    return Seen(of, 1.0, busy, told.pop("spent"), told.pop("moved"), **told)


def causes(run: Seen) -> list[str]:
    return [cause.name for cause in advised(run).causes]


READS = {"read": 0.9, "compute": 0.3, "write": 0.1}
SMALL = {"chunks": (8, 8, 8), "storage": Storage(how="zarr")}


def test_nothing_is_named_where_nothing_was_seen() -> None:
    advice = advised(seen(plan()))
    assert not advice.causes
    assert advice.bound_by == "compute"
    assert "nothing that is known" in str(advice)


def cases() -> dict[str, Seen]:
    coded = {"chunks": (64, 64, 64), "storage": Storage(how="zarr", codec="zstd")}
    gpu = plan(staged=True, **coded)
    able = replace(gpu.machine, decodings=(Decoding("zstd", chunk=1, peak=1, temporary=max),))
    return {
        "threads wait for each other": seen(plan(), processor=1.2),
        "other processes": seen(plan(), others=3.0, processor=1.2),
        "small chunks": seen(plan(**SMALL), READS),
        "the files were not in memory": seen(plan(), READS, cold=2 << 30),
        "decoding takes long": seen(plan(**coded), READS, moved={"read": 1 << 29}),
        "one core decodes": seen(plan(**coded), READS, spent=READS, processor=1.0),
        "a slow link": seen(plan(staged=True), {"read": 0.1, "upload": 0.9, "compute": 0.1}),
        "the host decodes": seen(replace(gpu, machine=able), READS),
    }


@pytest.mark.parametrize("name", sorted(cases()))
def test_each_cause_is_named_by_its_facts(name: str) -> None:
    run = cases()[name]
    found = causes(run)
    assert name in found
    (cause,) = [cause for cause in advised(run).causes if cause.name == name]
    assert cause.seen
    assert cause.remedy
    assert cause.seen in str(advised(run))


def test_one_core_decodes_the_chunks_that_small_blocks_share() -> None:
    """Other threads wait for it, and seem to read."""
    coded = Storage(how="zarr", codec="zstd", kept=True)
    shared = plan(staged=True, budget=48 << 20, chunks=(128, 512, 512), storage=coded)
    assert math.prod(shared.block) < 128 * 512 * 512
    assert shared.traffic.decode == 512**3 * 4, "once"
    assert "one core decodes" in causes(seen(shared, READS))
    assert "one core decodes" not in causes(seen(plan(staged=True, chunks=(64, 64, 64), storage=coded), READS))


def test_threads_do_not_wait_where_others_have_the_cores() -> None:
    assert causes(cases()["other processes"]) == ["other processes"]


def test_decoding_does_not_take_long_where_chunks_are_read_at_the_rate_of_memory() -> None:
    coded = plan(chunks=(64, 64, 64), storage=Storage(how="zarr", codec="zstd"))
    assert causes(seen(coded, READS)) == []
    assert causes(seen(plan(), READS, moved={"read": 1 << 29})) == [], "there are no chunks"


def test_a_server_is_not_taken_for_a_slow_codec() -> None:
    coded = plan(chunks=(64, 64, 64), storage=Storage(how="zarr", codec="zstd", remote=True))
    assert "decoding takes long" not in causes(seen(coded, READS, moved={"read": 1 << 29}))


def test_a_codec_that_is_slow_for_the_host_is_named_beside_the_missing_decoder() -> None:
    run = seen(cases()["the host decodes"].plan, READS, moved={"read": 1 << 29})
    assert {"decoding takes long", "the host decodes"} <= set(causes(run))


def test_nothing_is_advised_on_no_elements() -> None:
    advice = profiled(lambda: cf.map(np.sqrt, np.zeros((0, 5)), **CPU))
    assert not advice.what_ifs


def test_a_missing_decoder_is_named_of_a_run(tmp_path: Path) -> None:
    """The plan that the run had says so: a device that decodes nothing tells no less of the codec."""
    zarr.create_array(f"{tmp_path}/x.zarr", data=np.zeros((64, 64)), compressors=codecs.ZstdCodec())
    device = DecodingDevice()
    device.machine = replace(device.machine, decodings=())
    assert "the host decodes" in causes(seen(cf.explain(cf.sum, f"{tmp_path}/x.zarr", device=device), READS))


def test_a_library_for_the_decoder_may_be_missing() -> None:
    (cause,) = advised(
        seen(plan(staged=True, chunks=(64, 64, 64), storage=Storage(how="zarr", codec="zstd")), READS)
    ).causes
    assert "nvcomp" in cause.remedy


def as_predicted(report: Any) -> Seen:
    """A report's run as if it had taken the predicted time, with nobody else on the machine."""
    (run,) = report.seen
    estimate = run.plan.estimate
    found: Seen = replace(run, seconds=estimate.seconds, spent=estimate.stages, others=0.0)
    return found


def profiled(call: Any) -> Any:
    with cf.Profile() as profile:
        call()
    return profile.report.advice()


def test_chunks_across_the_blocks_are_named_and_better_ones_told(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((256, 128, 128), "f4")
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(256, 32, 32))
    run = {"chunks": (8, -1, -1), "budget": x.nbytes // 2, "out": tmp_path / "y.npy"}
    with cf.Profile() as profile:
        cf.map(np.tanh, tmp_path / "x.zarr", dtype="f4", workspace=4, **run, **CPU)
    advice = profile.report.advice()
    (cause,) = [cause for cause in advice.causes if cause.name == "chunks lie across the blocks"]
    assert "(256, 32, 32)" in cause.seen
    what_ifs = advised(as_predicted(profile.report)).what_ifs
    (better,) = [each for each in what_ifs if each.change == f"chunks of (8, 128, 128) of {tmp_path}/x.zarr"]
    assert better.seconds < profile.report.seen[0].plan.estimate.seconds / 2


def test_halos_and_cut_chunks_are_causes_of_their_own(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((64, 128, 128), "f4")
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(16, 128, 128))
    run = {"depth": 8, "budget": 2 * x.nbytes, "chunks": (12, 64, -1), "out": tmp_path / "y.npy"}
    with cf.Profile() as profile:
        cf.map_overlap(np.negative, tmp_path / "x.zarr", **run, **CPU)
    (run_seen,) = profile.report.seen
    plan = run_seen.plan
    assert min(plan.overlap, plan.excess) > 1.2
    larger = replace(plan, estimate=replace(plan.estimate, seconds=plan.estimate.seconds / 9))
    reading = replace(as_predicted(profile.report), busy=READS, replan=lambda budget, **_: larger)
    told = {cause.name: cause.seen for cause in advised(reading).causes}
    assert f"given {plan.overlap:.2g} times" in told["elements are read again"]
    assert f"{plan.excess:.2g} times the bytes that blocks need are read" in told["chunks lie across the blocks"]


@pytest.mark.parametrize(("chunk", "expected"), [(512, 0.5), (16, 1.0)])
def test_the_memory_of_large_chunks_does_not_count_for_small_ones(chunk: int, expected: float) -> None:
    """A run of a second by one lane in which one chunk after the other was decoded, half of it the system's time."""
    storage = Storage(how="zarr", codec="gzip", kept=True)
    of = plan(lanes=1, chunks=(chunk, 512, 512), storage=storage)
    small = plan(lanes=1, chunks=(1, 512, 512), storage=storage)
    assert of.kept == {0}
    run = seen(of, {"read": 1.0}, processor=1.0, system=0.5)
    assert what_if._read(run, small, 1.0) == pytest.approx(expected, rel=0.1)


def test_decoding_hides_what_blocks_larger_than_the_cache_take() -> None:
    coded, bare = (
        plan(lanes=1, chunks=(64, 512, 512), storage=Storage(how="zarr", codec=codec, raw=not codec))
        for codec in ("gzip", "")
    )
    assert coded.spills
    assert bare.spills
    run = seen(coded)
    lasts = coded.estimate.stages["read"]
    assert what_if._read(run, coded, lasts) == pytest.approx(lasts), "as it was"
    left = bare.estimate.stages["read"] - bare.estimate.coding
    assert what_if._read(run, bare, lasts) == pytest.approx(left / bare.machine.spill + bare.estimate.coding)


def test_a_small_budget_is_named_and_a_larger_one_told() -> None:
    x, out = np.ones((512, 512)), np.empty((512, 512))
    advice = profiled(
        lambda: cf.map(np.sin, x, out=out, budget="400kB", dtype="f8", workspace=0, chunks=(1, -1), **CPU)
    )
    assert [each for each in advice.what_ifs if "a budget of" in each.change] == [], "the blocks are the user's"
    x, out = np.ones((4096, 2048)), np.empty((4096, 2048))
    with cf.Profile() as profile:
        cf.map(np.sin, x, out=out, budget="600kB", **CPU)
    run = as_predicted(profile.report)
    lasted = run.seconds + 200e-6 * len(run.plan.grid)
    (better, *_) = advised(replace(run, seconds=lasted)).what_ifs
    assert better.change.startswith("a budget of")
    assert better.seconds < lasted / 2


def test_a_larger_budget_is_advised_where_it_would_be_quicker_alone() -> None:
    small = plan(staged=True, budget=1 << 16)
    quicker, alike = plan(staged=True), replace(small, budget=16 << 20)
    for then, said in ((quicker, True), (alike, False)):
        run = seen(small, spent=small.estimate.stages, replan=lambda budget, then=then, **_: then)
        assert ("a small budget" in causes(run)) == said
    cut = plan(lanes=1, budget=50 << 20, chunks=(256, 512, 512), storage=Storage(how="zarr", raw=True, copies=0))
    for then, said in ((plan(lanes=1, budget=2 * cut.whole), True), (cut, False)):
        run = seen(cut, READS, spent=READS, replan=lambda budget, then=then, **_: then)
        (cause,) = [each for each in advised(run).causes if each.name == "chunks lie across the blocks"]
        assert ("raise the budget" in cause.remedy) == said


def test_new_memory_of_a_result_is_told_of() -> None:
    x = np.ones((64, 1024, 128))
    made = profiled(lambda: cf.map(np.negative, x, **CPU))
    out = np.empty_like(x)
    given = profiled(lambda: cf.map(np.negative, x, out=out, **CPU))
    assert "the result's memory is new" not in [cause.name for cause in given.causes]
    assert made.seconds > 0


def test_there_is_no_advice_before_a_run() -> None:
    with cf.Profile() as profile:
        pass
    with pytest.raises(cf.ChunkflowError, match="no run has finished"):
        profile.report.advice()


def test_there_is_no_advice_on_a_run_that_was_refused_or_failed() -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError

    for error, call in (
        (cf.BudgetError, lambda: cf.map(np.sqrt, np.ones((400, 100)), budget=100, **CPU)),
        (ZeroDivisionError, lambda: cf.map(fail, np.ones(10), dtype="f8", workspace=0, **CPU)),
    ):
        with cf.Profile() as profile, pytest.raises(error):
            call()
        with pytest.raises(cf.ChunkflowError, match=r"no run has finished.*: mend what refused .* run it again"):
            profile.report.advice()


def test_the_longest_run_is_advised_on() -> None:
    with cf.Profile() as profile:
        cf.sum(np.ones(10), **CPU)
        cf.sum(np.ones((2000, 2000)), **CPU)
    advice = profile.report.advice()
    assert advice.seconds == max(run.seconds for run in profile.report.seen)
    assert str(advice).startswith(f"the longest of {len(profile.report.seen)} runs: ")


def test_an_analysis_ends_with_advice() -> None:
    analysis = cf.explain(cf.open(np.ones((100, 100))).mean(), analyze=True, **CPU)
    assert str(analysis.advice()) in str(analysis)


def test_chunks_that_cost_nothing_to_decode_are_thought_of(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 50, (128, 256, 256)).astype("f4")
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(64, 256, 256), compressors=zarr.codecs.GzipCodec())
    with cf.Profile() as profile:
        cf.sum(tmp_path / "x.zarr", **CPU)
    advice = advised(as_predicted(profile.report))
    (better,) = [each for each in advice.what_ifs if "that are stored unencoded" in each.change]
    assert better.change == f"chunks of {tmp_path}/x.zarr that are stored unencoded"
    assert better.seconds < 0.9 * advice.seconds


def test_threads_of_a_ring_begin_and_end_one_by_one() -> None:
    coded = {"chunks": (64, 64, 64), "storage": Storage(codec="gzip", separate=True, copies=0.0)}
    slow, quick = plan(staged=True, **coded), plan(staged=True)
    assert quick.ring_in is not None
    run = seen(slow, {"read": 4.0, "upload": 0.1, "compute": 0.1, "write": 0.1, "download": 0.1})
    overlapping = what_if._by_overlapping_stages(run, quick)
    threads = what_if.THREAD * (quick.ring_in.threads - 1)
    assert what_if._seconds(run, quick) == pytest.approx(what_if._around(run) + overlapping + threads)


def test_chunks_of_hdf5_that_are_unencoded_are_not_to_be_stored_so(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("plain", data=np.ones((64, 128, 128), "f4"), chunks=(16, 128, 128))
        file.create_dataset("packed", data=np.ones((64, 128, 128), "f4"), chunks=(16, 128, 128), compression="gzip")
    for name, raw in (("plain", True), ("packed", False)):
        assert cf.explain(cf.sum, f"{tmp_path}/x.h5:/{name}", **CPU).operands[0].storage.raw == raw
        with cf.Profile() as profile:
            cf.sum(f"{tmp_path}/x.h5:/{name}", budget="4MB", **CPU)
        (run,) = profile.report.seen
        assert run.replan is not None
        tried = [change for change, _, _ in what_if._changes(run, run.replan)]
        assert any("unencoded" in change for change in tried) != raw


def test_chunks_are_advised_that_are_large_enough(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=np.ones((64, 128, 128)), chunks=(8, 8, 8), compressors=None)
    for how, expected in (({}, 1 << 20), ({"chunks": (8, -1, -1)}, 8 * 128 * 128 * 8)):
        with cf.Profile() as profile:
            cf.sum(tmp_path / "x.zarr", budget="4MB", **how, **CPU)
        (run,) = profile.report.seen
        assert run.replan is not None
        (chunks,) = [keywords["chunks"] for _, keywords, _ in what_if._changes(run, run.replan) if "chunks" in keywords]
        assert math.prod(chunks) * 8 >= expected


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_what_blocks_take_beside_their_bytes_is_seen_by_the_quickest(rate: float) -> None:
    """Blocks took two microseconds beside their bytes, and these as long as predicted or half of it."""
    small, large, each = plan(lanes=2, budget=100 << 10), plan(lanes=2, budget=4 << 20), 2e-6
    times = len(large.grid) / len(small.grid)
    assert times < 0.5
    own = {stage: rate * seconds for stage, seconds in small.estimate.stages.items()}
    spent = own | {"compute": own["compute"] + each * len(small.grid)}
    lasts = sum(spent.values()) / 2
    run = replace(seen(small, spent=spent, replan=lambda budget, **_: large), seconds=lasts)
    told = [what_if._by_stages(replace(run, quickest=quickest), large) for quickest in (own, {})]
    expected = (sum(own.values()) + each * len(large.grid)) / 2
    assert told[0] == pytest.approx(expected, rel=1e-3)
    assert (told[1] > 1.02 * expected) == (rate < 1)


def test_the_budget_that_holds_whole_chunks_is_tried() -> None:
    cut = plan(lanes=1, budget=50 << 20, chunks=(256, 512, 512), storage=Storage(how="zarr", raw=True, copies=0))
    assert cut.whole is not None
    whole = replace(plan(lanes=1, budget=2 * cut.whole), budget=cut.budget)
    run = seen(cut, READS, spent=READS, replan=lambda budget, **_: whole if budget >= cut.whole else cut)
    (better,) = [each for each in advised(run).what_ifs if "budget" in each.keywords]
    assert cut.whole <= better.keywords["budget"] <= 1.1 * cut.whole < 16 * cut.budget
    (cause,) = [each for each in advised(run).causes if each.name == "chunks lie across the blocks"]
    assert f"whole chunks fit one of about {format_bytes(cut.whole)}" in cause.remedy


def test_a_function_that_takes_most_of_the_time_comes_first_with_its_rate() -> None:
    of = plan(lanes=1, budget=1 << 20)
    run = seen(of, {"read": 0.1, "compute": 0.9, "write": 0.1}, spent={"read": 0.1, "compute": 0.8, "write": 0.1})
    run = replace(run, moved={"compute": 80_000_000})
    advice = advised(run)
    assert advice.causes[0].name == "the function is slow"
    assert f"80% of the time of all stages, {0.8 / len(of.grid):.2g} s a block, and computes 100.00 MB/s" in str(advice)
    assert "of the rate that plans count with" not in str(advice)
    quick = replace(run, moved={"compute": 320_000_000})
    assert "the function is slow" not in causes(quick)
    assert "of the rate that plans count with" in str(advised(quick))


def test_another_device_is_thought_of() -> None:
    with cf.Profile() as profile:
        cf.map(np.sin, np.ones((1024, 1024)), out=np.empty((1024, 1024)), **CPU)
    (run,) = profile.report.seen
    run = replace(run, others=0.0, processor=sum(run.spent.values()))
    faster = replace(run.plan.machine, read=1e15, compute=1e15, write=1e15, overhead=0.0)
    (better,) = [
        each
        for each in advised(replace(run, elsewhere=lambda: ("cuda", faster))).what_ifs
        if each.change == "device='cuda'"
    ]
    assert better.seconds < run.seconds / 2
    amid = replace(run, elsewhere=lambda: ("cuda", faster), others=run.cores * run.seconds)
    assert not [each for each in advised(amid).what_ifs if "device" in each.change], "that others hold up either"
    none = advised(replace(run, elsewhere=lambda: None)).what_ifs
    assert not [each for each in none if "device" in each.change]


def test_of_the_cpu_it_is_thought_only_where_its_rates_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, cpu = numpy_device("threaded", staged=True), resolve("cpu")
    monkeypatch.setenv(measured_rates.VARIABLE, str(tmp_path))
    assert watched_run._other_than(gpu) is None
    measured_rates.keep(cpu.machine, cpu.model)
    assert watched_run._other_than(gpu) == ("cpu", cpu.machine)
    monkeypatch.setenv(measured_rates.VARIABLE, "0")
    assert watched_run._other_than(gpu) is None


def test_small_chunks_are_slow_one_by_one_however_many_lanes_there_are() -> None:
    small, large = plan(**SMALL), plan(chunks=(64, 512, 512), storage=Storage(how="zarr", raw=True))
    known = small.estimate.stages
    run = seen(small, READS, spent=known, processor=0.1, replan=lambda budget, specs=(): large if specs else small)
    run = replace(run, seconds=small.estimate.seconds)
    assert causes(run) == ["small chunks"]
    (better,) = [each for each in advised(run).what_ifs if each.change.startswith("chunks of (")]
    assert large.spills  # what is read goes to memory, which no looking for chunks hides any more
    again = large.estimate.stages["read"] * (1 / large.machine.spill - 1) / large.lanes
    assert better.seconds == pytest.approx(large.estimate.seconds + again, rel=0.25)


def test_of_two_budgets_that_bring_as_much_the_smaller_one_is_told() -> None:
    small, large = plan(budget=1 << 18), plan(budget=8 << 30)
    run = seen(small, spent=small.estimate.stages, replan=lambda budget: large)
    told = advised(replace(run, seconds=small.estimate.seconds + 200e-6 * len(small.grid))).what_ifs
    assert [each.keywords for each in told] == [{"budget": 1 << 20}]


@pytest.mark.parametrize("each", [0.0, 2e-3])
def test_what_threads_wait_in_a_stage_is_seen_by_the_copies_of_results(each: float) -> None:
    """Fewer blocks wait less by as much, in the function too, whose own seconds stay."""
    small = plan(budget=1 << 20)
    spec = replace(small.outputs[0], storage=Storage(in_memory=True))
    small = replace(small, outputs=(spec,))
    large = replace(small, block=(32, 512, 512))
    blocks, known = len(small.grid), small.estimate.stages
    spent = {stage: seconds + each * blocks for stage, seconds in known.items() if stage != "read"}
    total = sum(spent.values()) / small.lanes
    run = seen(small, spent=spent, replan=lambda budget, **_: large)
    predicted = what_if._by_stages(replace(run, seconds=total), large)
    own = sum(large.estimate.stages[stage] for stage in spent)
    assert predicted == pytest.approx((own + 2 * each * len(large.grid)) / large.lanes, rel=0.25)


def test_what_the_disk_takes_is_in_each_prediction() -> None:
    coded = plan(chunks=(64, 512, 512), storage=Storage(how="zarr", codec="gzip"))
    large = plan(chunks=(64, 512, 512), storage=Storage(how="zarr", raw=True))
    run = seen(coded, READS, cold=4 << 30, replan=lambda budget, specs=(): large)
    assert not advised(run).what_ifs, "all was read from the disk, in 0.9 of a second"


def test_what_is_slower_than_predicted_is_so_after_a_change_too() -> None:
    coded = plan(chunks=(64, 512, 512), storage=Storage(how="zarr", codec="gzip"))
    bare = plan(chunks=(64, 512, 512), storage=Storage(how="zarr", raw=True))
    known, then = coded.estimate.stages, bare.estimate.stages
    spent = known | {"compute": 5 * known["compute"], "read": 9 * known["read"]}
    run = seen(coded, spent=spent, replan=lambda budget, specs=coded.operands: bare if specs[0].storage.raw else coded)
    run = replace(run, seconds=sum(spent.values()) / coded.lanes + 0.1, around=0.1)
    (better,) = [each for each in advised(run).what_ifs if "unencoded" in each.change]
    lasts = (then["read"] + 3 * then["compute"] + then["write"]) / bare.lanes
    assert better.seconds == pytest.approx(lasts + 0.1, rel=0.1), "reading was slow for decoding, which is not done"


@pytest.mark.parametrize(("lanes", "stays"), [(1, 4.0), (4, 2.0)])
def test_half_of_what_a_function_took_too_long_is_due_to_cores_that_decoded_beside_it(lanes: int, stays: float) -> None:
    """A function took five times as long as predicted, in one lane and in several; then nothing is decoded."""
    coded = plan(lanes=lanes, chunks=(64, 512, 512), storage=Storage(how="zarr", codec="gzip"))
    bare = plan(lanes=lanes, chunks=(64, 512, 512), storage=Storage(how="zarr", raw=True))
    known = coded.estimate.stages
    runs = [seen(coded, spent=known | {"compute": times * known["compute"]}) for times in (5, 1)]
    slow, usual = (replace(run, seconds=sum(run.spent.values()) / lanes, quickest=run.spent) for run in runs)
    more = what_if._by_stages(slow, bare) - what_if._by_stages(usual, bare)
    each = (bare.estimate.seconds - bare.estimate.handed) / sum(bare.estimate.stages.values())
    assert more == pytest.approx(stays * known["compute"] * each)


def test_what_is_beyond_the_model_is_not_multiplied_by_lanes() -> None:
    alone, both = plan(lanes=1), plan(lanes=2)
    known = alone.estimate.stages
    both = replace(both, estimate=replace(both.estimate, stages=known | {"write": 2 * known["write"]}))
    slow = seen(alone, known | {"write": 4 * known["write"]})
    slow = replace(slow, seconds=sum(slow.spent.values()))
    usual = seen(alone, known)
    usual = replace(usual, seconds=sum(usual.spent.values()))
    more = what_if._by_stages(slow, both) - what_if._by_stages(usual, both)
    each = (both.estimate.seconds - both.estimate.handed) / sum(both.estimate.stages.values())
    assert more == pytest.approx(3 * known["write"] * each)


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_blocks_with_halos_are_read_in_turns_and_decoded_at_once(compressors: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((64, 64, 64))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(8, 64, 64), compressors=compressors)
    device = numpy_device("threaded", staged=False)
    of = cf.explain(cf.map_overlap, np.negative, tmp_path / "x.zarr", depth=8, chunks=(16, 64, 64), device=device)
    assert of.op.has_halo
    assert of.lanes > 1
    assert len(of.grid) == 4
    seconds = what_if._in_lanes(of, {"read": 1.0, "compute": 0.1, "write": 0.1})
    idle = 1 + (of.lanes - 1) / 4
    if compressors is None:
        assert seconds >= 1.0
    else:
        assert 1.2 / of.lanes * idle <= seconds < 1.0


def test_what_a_device_waits_for_is_not_slower_for_decoding_that_is_not_done() -> None:
    coded = plan(staged=True, chunks=(64, 512, 512), storage=Storage(how="zarr", codec="gzip"))
    bare = plan(staged=True, chunks=(64, 512, 512), storage=Storage(how="zarr", raw=True))
    assert coded.estimate.bound_by == "read"
    known = coded.estimate.stages
    busy = known | {"read": 9 * known["read"]}
    run = seen(
        coded,
        busy,
        spent=busy,
        replan=lambda budget, specs=coded.operands: bare if specs[0].storage.raw else coded,
    )
    run = replace(run, seconds=coded.estimate.seconds + 8 * known["read"], around=STARTING)
    (better,) = [each for each in advised(run).what_ifs if "unencoded" in each.change]
    assert better.seconds == pytest.approx(bare.estimate.seconds + STARTING, rel=0.1)
    around = replace(run, seconds=run.seconds + 0.2, around=0.2)
    (once_more,) = [each for each in advised(around).what_ifs if "unencoded" in each.change]
    assert once_more.seconds == pytest.approx(better.seconds + 0.2 - STARTING), "what no stage takes stays"
    quick = replace(run, seconds=run.seconds - STARTING + 0.001, around=0.001)
    (sooner,) = [each for each in advised(quick).what_ifs if "unencoded" in each.change]
    assert sooner.seconds == pytest.approx(better.seconds + 0.001 - STARTING), "a machine that starts sooner does so"
    assert coded.ring_out is not None
    spent = {**busy, "write": 9 * known["write"] * coded.ring_out.threads}
    (slower,) = [each for each in advised(replace(run, spent=spent)).what_ifs if "unencoded" in each.change]
    assert slower.seconds > 9 * bare.estimate.stages["write"] > better.seconds, "results are written as slowly"


def test_a_function_that_waits_is_named_and_its_calls_are_counted() -> None:
    """As long for a large block as for a small one: counted by bytes, a larger budget would have brought nothing."""
    raw = Storage(how="zarr", raw=True, copies=0)
    small, large = (plan(lanes=1, chunks=(n, 64, 64), storage=raw) for n in (8, 64))
    each = 0.01
    spent = {"read": 0.001, "compute": each * len(small.grid), "write": 0.001}
    seconds = sum(spent.values())
    run = replace(seen(small, spent, spent=spent, replan=lambda budget, **_: large), seconds=seconds)
    waiting = replace(run, processor=0.05 * seconds, moved={"compute": 1 << 20})
    advice = advised(waiting)
    assert advice.causes[0].name == "the function waits"
    (larger,) = [one for one in advice.what_ifs if "budget" in one.keywords]
    assert len(large.grid) < len(small.grid) / 2
    assert each * len(large.grid) <= larger.seconds <= each * len(large.grid) + 0.1 * seconds
    working = replace(waiting, processor=seconds)
    assert advised(working).causes[0].name == "the function is slow"

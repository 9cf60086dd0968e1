"""A whole run, as small as it can be: its figures, its target, and what it leaves behind."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from tests.bench.conftest import SMALL, quietly
from zcompile.bench.effort import QUICK, WHOLE, Effort
from zcompile.bench.figure import Figure, Measured, Unit
from zcompile.bench.files import BESIDE, FILES, LOOP, READS, WRITES, rigged, ways_here
from zcompile.bench.measure import measure
from zcompile.bench.record import Record
from zcompile.bench.sampling import Spread
from zcompile.bench.target import Place, hardware_of
from zcompile.ir import Channel, Hardware, Kind, Tier
from zcompile.machines import parse_machine, render_machine
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.native import Native, load


def test_every_figure_is_a_number_above_zero_with_its_spread(record: Record) -> None:
    for each in record.measured.figures:
        spread = each.spread
        assert 0 < spread.low <= spread.median <= spread.high < float("inf"), each
        assert spread.num_runs >= SMALL.least_rounds, each
        assert (each.limit is None) == (each.of_limit is None), each


def test_no_figure_is_there_twice(record: Record) -> None:
    keys = [(each.group, each.name, each.threads) for each in record.measured.figures]
    assert len(set(keys)) == len(keys)


def test_everything_that_planning_asks_for_is_measured(record: Record) -> None:
    units: dict[str, dict[str, Unit]] = {}
    for each in record.measured.figures:
        units.setdefault(each.group, {})[each.name] = each.unit
    assert units["memory"] == dict.fromkeys(("read", "write", "triad"), Unit.BYTES_PER_S)
    for kind in ("matmul", "attention", "convolution"):
        assert units[kind] == dict.fromkeys(("float32", "bfloat16", "float16"), Unit.FLOPS_PER_S)
    assert set(units["updates"].values()) == {Unit.SECONDS_PER_PARAMETER}
    assert ("native" in units["updates"]) == isinstance(load(), Native)
    for group in (READS, WRITES):
        assert units[group].keys() - {LOOP} == {io.value for io in ways_here()}
        assert set(units[group].values()) == {Unit.BYTES_PER_S}


def test_updates_and_files_stand_beside_their_limits(record: Record) -> None:
    limited = {each.group for each in record.measured.figures if each.limit is not None}
    assert {"updates"} <= limited <= {"updates", READS, WRITES}
    names = {(each.group, each.name) for each in record.measured.figures}
    for each in record.measured.figures:
        assert each.limit is None or (each.group, each.limit) in names


def test_the_target_is_a_machine_that_survives_its_file(record: Record) -> None:
    hardware = record.hardware
    assert hardware.name == "here"
    assert hardware.capacities.keys() == {Tier.DEVICE, Tier.NVME}
    assert hardware.links.keys() == set(Channel)
    assert parse_machine(render_machine(hardware), "here") == hardware


def test_the_record_is_json_with_the_target_inside(record: Record) -> None:
    told = json.loads(json.dumps(record.as_json()))
    assert told["quick"] is True
    assert len(told["figures"]) == len(record.measured.figures)
    assert {"group", "name", "threads", "unit", "spread"} <= told["figures"][0].keys()
    assert parse_machine(json.dumps(told["hardware"]), "here") == record.hardware


def test_nothing_is_left_in_the_folder(record: Record, folder: Path) -> None:
    del record
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("stop_at", [1, 3])
def test_an_interrupted_run_takes_its_file_with_it(tmp_path: Path, stop_at: int) -> None:
    stages: list[str] = []

    def interrupting(title: str, num_stages: int) -> None:
        assert any(tmp_path.iterdir()), "the file is there while it is measured"
        stages.append(title)
        assert len(stages) < num_stages
        if len(stages) == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure([tmp_path], SMALL, interrupting)
    assert len(stages) == stop_at
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_refused_before_anything(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"nvme_dir=.* is not a folder"):
        measure([tmp_path / "file"], SMALL, quietly)


@pytest.mark.parametrize("effort", [QUICK, WHOLE])
def test_sizes_stay_far_below_a_gibibyte(effort: Effort) -> None:
    assert max(3 * effort.array_bytes, 16 * effort.num_parameters, effort.file_bytes) <= 1 << 29


def test_a_file_is_no_larger_than_it_may_be(tmp_path: Path) -> None:
    with rigged([tmp_path], replace(SMALL, file_bytes=4 << 20)) as rig:
        assert rig.nbytes == 4 << 20
        assert rig.memory.nbytes == rig.lease.nbytes == rig.nbytes
        assert rig.file.size_bytes <= 64 << 20


def test_two_folders_are_measured_as_one(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with rigged(folders, replace(SMALL, file_bytes=16 << 20)) as rig:
        assert {piece.file for piece in rig.lease.pieces()} == {0, 1}
        memory = rig.memory.tensor(0, torch.uint8, (rig.nbytes,), (1,))
        ways = [(rig.loop(write=True), rig.loop(write=False))]
        ways += [(rig.whole(io, write=True), rig.whole(io, write=False)) for io in rig.ways]
        for mark, (write, read) in enumerate(ways, 1):
            memory.fill_(mark)
            assert write() > 0
            memory.zero_()
            assert read() > 0
            assert memory.eq(mark).all()
    place = Place.here(folders)
    one = Place.here(folders[:1])
    assert place.folders == tuple(folders)
    assert abs(place.folder_bytes - one.folder_bytes) < one.folder_bytes / 2, "one device"
    assert [list(each.iterdir()) for each in folders] == [[], []]


PLACE = Place(
    cpus=4,
    threads=2,
    memory_bytes=1 << 34,
    folders=(Path("/swap"),),
    folder_bytes=1 << 40,
    io=FileIO.URING,
)


def hardware_with(record: Record, **others: float) -> Hardware:
    """Return the target where the figures of `FILES` by these names are others."""
    figures = [
        each if each.name not in others else replace(each, spread=Spread.of([others[each.name]]))
        for each in record.measured.figures
    ]
    named = [replace(each, name="uring") if _is_a_way(each) else each for each in figures]
    return hardware_of(Measured(tuple(named)), PLACE, datetime.now(UTC))


def _is_a_way(figure: Figure) -> bool:
    return figure.group in (READS, WRITES) and figure.name != LOOP


@pytest.mark.parametrize(("part", "share"), [(0.5, 1.0), (1.0, 0.5), (0.8, 0.625)])
def test_the_disk_is_shared_as_far_as_it_was_seen_to_be(
    record: Record, part: float, share: float
) -> None:
    hardware = hardware_with(record, **{BESIDE: part})
    for channel in (Channel.NVME_READ, Channel.NVME_WRITE):
        assert dict(hardware.links[channel].uses)["disk"] == pytest.approx(share)


def test_what_runs_at_once_shares_cores_and_memory(record: Record) -> None:
    hardware = hardware_with(record, **{"reading takes": 0.2, "writing takes": 99.0})
    assert hardware.compute_uses == (("cores", 0.5),)
    assert dict(hardware.update_uses).keys() == {"cores", "memory"}
    assert dict(hardware.links[Channel.NVME_READ].uses)["cores"] == pytest.approx(0.05)
    assert dict(hardware.links[Channel.NVME_WRITE].uses)["cores"] == 1.0
    for channel in (Channel.H2D, Channel.D2H):
        assert dict(hardware.links[channel].uses)["cores"] == 0.25
    assert FILES in {each.group for each in record.measured.figures}


def test_rates_are_those_of_the_way_that_is_taken(record: Record) -> None:
    hardware = hardware_with(record)
    assert hardware.capacities == {Tier.DEVICE: 1 << 34, Tier.NVME: 1 << 40}
    for kind in (Kind.MATMUL, Kind.ATTENTION, Kind.CONVOLUTION):
        for dtype, rate in hardware.flops_per_s[kind].items():
            assert rate == record.measured.median(kind.value, dtype)
    assert hardware.memory_bytes_per_s == record.measured.median("memory", "triad")


def test_what_is_read_was_written_before(tmp_path: Path) -> None:
    # What was never written is read without the device, many times too fast.
    with rigged((tmp_path,), SMALL) as rig:
        memory = rig.memory.tensor(0, torch.uint8, (rig.nbytes,), (1,))
        written = memory.clone()
        memory.zero_()
        rig.start(rig.chosen, write=False, nbytes=rig.nbytes).wait()
        assert torch.equal(memory, written)
        assert memory.count_nonzero() > rig.nbytes // 2

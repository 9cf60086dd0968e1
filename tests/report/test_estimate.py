"""What plans that ran here would take elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import zcompile
from tests.report.models import INPUT, compiled, layers, train
from zcompile.ir import Channel, Kind
from zcompile.machines import load_machine, render_machine
from zcompile.machines.here import here_path, write_private
from zcompile.report.schedules import ScheduleReport


@pytest.fixture
def reports(tmp_path: Path) -> tuple[ScheduleReport, ...]:
    model = layers()
    module = compiled(model, tmp_path)
    train(module, list(model.parameters()), steps=1)
    return zcompile.schedules(module)


def test_kernels_and_copies_take_what_the_machine_says(
    reports: tuple[ScheduleReport, ...],
) -> None:
    machine = load_machine("rtx4090")
    for report in reports:
        found = report.simulate("rtx4090")
        moved = sum(each.nbytes for each in found.simulated.moves)
        slowest = min(link.bandwidth_bytes_per_s for link in machine.links.values())
        assert moved > 0
        assert 0 < found.exposed_s < found.seconds < 1
        assert found.seconds <= 1e-3 * len(report.schedule.steps) + moved / slowest
        assert len(found.simulated.steps) == len(report.schedule.steps)
        assert found.simulated == report.simulate(machine).simulated
    forward, backward = (sum(op.flops for c in r.costs.values() for op in c) for r in reports)
    assert forward == 4 * 2 * INPUT.numel() * 256
    # The input needs no gradient, so the first layer makes one product in backward, not two.
    assert backward == 7 * 2 * INPUT.numel() * 256


def test_a_faster_disk_shortens_the_waits(
    reports: tuple[ScheduleReport, ...], tmp_path: Path
) -> None:
    machine = load_machine("rtx4090")
    links = dict(machine.links)
    for channel in (Channel.NVME_READ, Channel.NVME_WRITE):
        links[channel] = replace(links[channel], bandwidth_bytes_per_s=1e12, latency_s=0.0, uses=())
    file = tmp_path / "fast.json"
    file.write_text(render_machine(replace(machine, name="fast", links=links)))
    for report in reports:
        assert report.simulate(file).exposed_s < 0.01 * report.simulate("rtx4090").exposed_s


def test_the_longest_waits_are_shown(reports: tuple[ScheduleReport, ...]) -> None:
    found = reports[0].simulate("a100")
    first, *rest = str(found).splitlines()
    assert re.fullmatch(r"forward\.\d+ on a100: \d+\.\d{3} ms, of it .* ms exposed \(\d+%\)", first)
    assert 1 <= len(rest) <= 10
    shown = [float(line.split()[0]) for line in rest]
    assert shown == sorted(shown, reverse=True)
    at, step = found.waits()[0]
    assert f"step {at}: " in rest[0]
    assert step.exposed_s == max(each.exposed_s for each in found.simulated.steps)
    assert re.fullmatch(r"<Estimate of forward\.\d+ on a100: 0\.\d+ s>", repr(found))


def test_what_the_machine_does_not_tell_is_named(reports: tuple[ScheduleReport, ...]) -> None:
    machine = load_machine("a100")
    rates = {Kind.MATMUL: {"bfloat16": 1e12}}
    with pytest.raises(ValueError, match=r"a100 has no flops_per_s\[matmul\]\[float32\]"):
        reports[0].simulate(replace(machine, flops_per_s=rates))
    with pytest.raises(ValueError, match="machine='abacus' is neither a file nor one of a100"):
        reports[0].simulate("abacus")


def test_the_machine_that_we_are_on_is_one_once_it_has_been_measured(
    reports: tuple[ScheduleReport, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="run zinf bench"):
        reports[0].simulate("here")
    write_private(here_path(), render_machine(replace(load_machine("rtx4090"), name="here")))
    found = reports[0].simulate("here")
    assert found.machine == "here"
    assert found.simulated == reports[0].simulate("rtx4090").simulated

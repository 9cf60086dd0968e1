"""The machines that ship, the files that users write, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zcompile.ir import Channel, Kind, Tier
from zcompile.machines import load_machine, machine_names, parse_machine, render_machine

CPUS = ("cpu-epyc",)
"""Machines whose device is the host's memory: there is no host tier beside it."""

GPUS = tuple(name for name in machine_names() if name not in CPUS)


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_is_whole(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert len(machine.source) > 100, "the source of the numbers"
    without = {Tier.HOST} if name in CPUS else set[Tier]()
    assert machine.capacities.keys() == set(Tier) - without
    through_host = {Channel.H2D, Channel.D2H} if name in CPUS else set[Channel]()
    assert machine.links.keys() == set(Channel) - through_host
    sizes = list(machine.capacities.values())
    assert sizes == sorted(sizes)
    for rates in machine.flops_per_s.values():
        half = rates.get("bfloat16", rates["float16"])  # a V100 has none of the former
        assert rates["float32"] <= rates["float16"] <= half < 1e15


@pytest.mark.parametrize("name", GPUS)
def test_what_goes_through_the_host_takes_its_share_of_the_bus(name: str) -> None:
    links = load_machine(name).links
    for disk, bus in ((Channel.NVME_READ, Channel.H2D), (Channel.NVME_WRITE, Channel.D2H)):
        ((resource, whole),) = links[bus].uses
        ratio = links[disk].bandwidth_bytes_per_s / links[bus].bandwidth_bytes_per_s
        assert whole == 1.0
        assert dict(links[disk].uses)[resource] == pytest.approx(ratio, rel=1e-3)


def test_the_v100_is_the_papers() -> None:
    machine = load_machine("v100-dgx2")
    assert machine.flops_per_s[Kind.MATMUL]["float16"] == 70e12
    assert machine.links[Channel.H2D].bandwidth_bytes_per_s == 12e9
    assert 16 * machine.links[Channel.NVME_READ].bandwidth_bytes_per_s == 25.6e9


def test_a_machine_survives_its_file(tmp_path: Path) -> None:
    machine = load_machine("rtx4090")
    file = tmp_path / "mine.json"
    file.write_text(render_machine(machine))
    assert load_machine(file) == load_machine(str(file)) == machine


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    told = r"machine='h1000' is neither a file nor one of a100, cpu-epyc, h100, .*here"
    with pytest.raises(ValueError, match=told):
        load_machine("h1000")
    with pytest.raises(ValueError, match=r"one of .*, here; did you mean 'rtx4090'\?$"):
        load_machine("RTX4090")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"memory_bytes_per_s": 0}, "memory_bytes_per_s=0.0 must be a number above 0"),
        ({"memory_bytes_per_s": "fast"}, "memory_bytes_per_s: Input should be a valid number"),
        ({"launch_s": -1}, "launch_s=-1.0 must be a number from 0 up"),
        ({"links": {"usb": {"bandwidth_bytes_per_s": 1}}}, "links.usb"),
        ({"links": {"h2d": {"bandwidth_bytes_per_s": -1}}}, "bandwidth_bytes_per_s=-1.0"),
        ({"compute_uses": [["cores", 2.0]]}, "cores=2.0 must be above 0 and at most 1"),
        ({"flops_per_s": {"matmul": {"float32": 0}}}, "flops_per_s"),
        ({"colour": "green"}, "colour"),
    ],
)
def test_a_wrong_number_is_named(change: dict[str, object], complaint: str) -> None:
    fields = json.loads(render_machine(load_machine("a100"))) | change
    with pytest.raises(ValueError, match=r"machine mine\.json: .*") as error:
        parse_machine(json.dumps(fields), "mine.json")
    assert complaint in str(error.value)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match=r"machine mine\.json: the whole file: Invalid JSON"):
        parse_machine("{", "mine.json")

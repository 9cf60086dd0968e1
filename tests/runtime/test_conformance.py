"""What every executor does alike: one suite, parametrised over the executors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, cast

import pytest
import torch
from torch import Tensor

from tests.runtime.conftest import USABLE
from tests.runtime.tensors import DTYPES, LAYOUTS, at_rest, bits, content_of, tier_of
from zcompile.ir import Tier, parse, verify
from zcompile.runtime.binding import Binding, Layout
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.executor import Executor, Kernels, execute
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.fuzz import FuzzExecutor
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.machine import Machine
from zcompile.runtime.recording import RecordingExecutor
from zcompile.runtime.transfers import Transfers

STRIPED = True

EXECUTORS = [
    ("recording", USABLE[0]),
    *(("cpu", io) for io in USABLE),
    *((f"fuzz {seed}", USABLE[seed % len(USABLE)]) for seed in range(4)),
]
"""Executors, and the way that each reads and writes files."""


class UpdatingExecutor(Executor, Protocol):
    """An executor that can also carry out updates."""

    def prepare(self) -> None: ...
    def commit(self) -> object: ...


Make = Callable[[str, Mapping[str, Binding]], UpdatingExecutor]
"""From the text of a schedule and its bindings to the executor under test."""


@pytest.fixture(params=EXECUTORS, ids=lambda pair: "-".join(pair))
def kind(request: pytest.FixtureRequest) -> tuple[str, FileIO]:
    pair: tuple[str, FileIO] = request.param
    return pair


@pytest.fixture
def machine(
    homes: Homes, extent_file: ExtentFile, ledger: Ledger, kind: tuple[str, FileIO]
) -> Generator[Machine, None, None]:
    _, io = kind
    machine = Machine(homes, Transfers(extent_file, ledger, io=io), ledger)
    yield machine
    machine.close()


@pytest.fixture
def make(kind: tuple[str, FileIO], machine: Machine) -> Generator[Make, None, None]:
    name, _ = kind
    made: list[UpdatingExecutor] = []
    with machine.lease_arena(1 << 18) as arena:

        def make(text: str, bindings: Mapping[str, Binding]) -> UpdatingExecutor:
            schedule = parse(text)
            if name == "recording":
                made.append(RecordingExecutor(bindings))
            elif name == "cpu":
                made.append(CpuExecutor(schedule, bindings, arena, machine))
            else:
                seed = int(name.split()[1])
                made.append(FuzzExecutor(schedule, bindings, arena, machine, seed=seed))
            return made[-1]

        yield make
        for executor in made:
            executor.close()


FETCH = """
schedule forward.0
value %w : 8 B parameter @ nvme
fetch %w <- nvme as t0 at 4096
wait %w for t0
release %w
"""


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("shape", LAYOUTS)
def test_a_fetched_copy_has_the_bits_and_strides_of_its_source(
    make: Make, machine: Machine, shape: str, tier: Tier
) -> None:
    for dtype in DTYPES:
        source = at_rest(machine, tier, content_of(Layout(dtype, *LAYOUTS[shape])))
        executor = make(FETCH, {"w": Binding.to(source)})
        executor.fetch(0, "w", tier, 4096)
        copy = executor.wait(0, "w")
        assert bits(copy) == bits(source), dtype
        assert (copy.dtype, copy.stride()) == (dtype, source.stride())
        assert copy.data_ptr() != source.data_ptr() or not copy.numel()
        executor.release("w", None)


OFFLOAD = """
schedule backward.0
value %g : 8 B gradient @ nvme
offload %g -> nvme as t0
release %g after t0
"""


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.NVME])
@pytest.mark.parametrize("shape", LAYOUTS)
def test_a_gradient_gets_a_home_with_its_bits_and_strides(
    make: Make, machine: Machine, shape: str, tier: Tier
) -> None:
    for dtype in DTYPES:
        layout = Layout(dtype, *LAYOUTS[shape])
        gradient = content_of(layout)
        executor = make(OFFLOAD, {"g": Binding(layout)})
        home = executor.offload(0, "g", tier, gradient)
        executor.release("g", 0)
        assert bits(home) == bits(gradient), dtype
        assert (home.dtype, home.stride()) == (dtype, layout.stride)
        if not isinstance(executor, RecordingExecutor) and home.numel():
            assert tier_of(machine, home) is tier


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.NVME])
def test_a_gradient_takes_the_strides_of_its_home(make: Make, tier: Tier) -> None:
    layout = Layout(torch.complex64, (33, 65), (1, 33))
    for gradient in (
        content_of(Layout(torch.complex64, (33, 65), (65, 1))),
        content_of(layout).conj(),
        torch.tensor(2 + 1j).expand(33, 65),
    ):
        executor = make(OFFLOAD, {"g": Binding(layout)})
        home = executor.offload(0, "g", tier, gradient)
        executor.release("g", 0)
        assert home.stride() == layout.stride
        assert bits(home) == bits(gradient)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.NVME])
def test_nobody_holds_the_home_of_a_gradient(make: Make, tier: Tier) -> None:
    layout = Layout(torch.float32, (9, 3), (3, 1))
    executor = make(OFFLOAD, {"g": Binding(layout)})
    home = executor.offload(0, "g", tier, content_of(layout))
    executor.release("g", 0)
    assert sys.getrefcount(home) == 2  # ours and that of the call


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.NVME])
def test_autograd_adopts_the_home_of_a_gradient(make: Make, tier: Tier) -> None:
    homes: list[int] = []
    weight = torch.nn.Parameter(content_of(Layout(torch.float32, (9, 3), (3, 1))))

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Tensor) -> Tensor:
            del ctx
            return weight * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            del ctx
            executor = make(OFFLOAD, {"g": Binding(Layout.of(weight))})
            home = executor.offload(0, "g", tier, gradients[0] * 2)
            executor.release("g", 0)
            homes.append(home.data_ptr())
            return home

    for times in (1, 2):
        result = cast(Tensor, Twice.apply(weight))  # type: ignore[no-untyped-call]  # torch's
        result.sum().backward()
        assert weight.grad is not None
        assert weight.grad.data_ptr() == homes[0], "adopted, then added to in place"
        assert torch.equal(weight.grad, torch.full((9, 3), 2.0 * times))


UPDATE = """
schedule update.0
value %p : 8 B parameter @ nvme
value %g : 8 B gradient @ nvme
fetch %p <- nvme as t0 at 0
fetch %g <- nvme as t1 at 65536
wait %p for t0
wait %g for t1
update sgd(%p, %g) -> (%p) transient 0 B
offload %p -> nvme as t2
release %g
release %p after t2
"""


def subtract(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {"p": tensors["p"].sub_(tensors["g"])}


@pytest.mark.parametrize("tier", list(Tier))
def test_an_update_arrives_with_commit_at_the_same_address(
    make: Make, machine: Machine, tier: Tier
) -> None:
    layout = Layout(torch.float32, (33, 65), (1, 33))
    before, gradient = content_of(layout, 1), content_of(layout, 2)
    parameter = at_rest(machine, tier, before)
    address = parameter.data_ptr()
    bindings = {"p": Binding.to(parameter), "g": Binding.to(gradient)}
    text = UPDATE.replace("nvme", tier)
    executor = make(text, bindings)
    executor.prepare()
    assert execute(parse(text), executor, {"sgd": subtract}, {}) == {}
    if tier is Tier.NVME:
        assert bits(parameter) == bits(before), "nothing has changed before the commit"
    executor.commit()
    assert bits(parameter) == bits(before - gradient)
    assert parameter.data_ptr() == address


def test_an_update_that_is_not_committed_leaves_its_home_alone(
    make: Make, machine: Machine
) -> None:
    layout = Layout(torch.float32, (33, 65), (65, 1))
    before = content_of(layout, 1)
    parameter = at_rest(machine, Tier.NVME, before)
    executor = make(UPDATE, {"p": Binding.to(parameter), "g": Binding.to(before.clone())})
    executor.prepare()
    execute(parse(UPDATE), executor, {"sgd": subtract}, {})
    executor.close()
    assert bits(parameter) == bits(before)


PIECES = """
schedule update.0
value %a : 8 B parameter @ nvme
value %b : 8 B parameter @ nvme
fetch %a <- nvme as t0 at 0
fetch %b <- nvme as t1 at 65536
wait %a for t0
update add(%a) -> (%a) transient 0 B
offload %a -> nvme as t2
wait %b for t1
update add(%b) -> (%b) transient 0 B
offload %b -> nvme as t3
release %a after t2
release %b after t3
fetch %a <- nvme as t4 at 0
wait %a for t4
update add(%a) -> (%a) transient 0 B
offload %a -> nvme as t5
release %a after t5
"""


def add_one(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {name: tensor.add_(1) for name, tensor in tensors.items()}


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("cut", [1, 1024, 1500, 3000])
def test_the_pieces_of_a_home_are_updated_together(
    make: Make, machine: Machine, cut: int, tier: Tier
) -> None:
    before = content_of(Layout(torch.float32, (5000,), (1,)))
    parameter = at_rest(machine, tier, before)
    executor = make(PIECES, {"a": Binding.to(parameter[:cut]), "b": Binding.to(parameter[cut:])})
    executor.prepare()
    execute(parse(PIECES), executor, {"add": add_one}, {})
    executor.commit()
    assert bits(parameter[:cut]) == bits(before[:cut] + 2), "fetched again with its new bytes"
    assert bits(parameter[cut:]) == bits(before[cut:] + 1)


def test_a_piece_of_a_home_leaves_the_rest_alone(make: Make, machine: Machine) -> None:
    before = content_of(Layout(torch.float32, (5000,), (1,)))
    parameter = at_rest(machine, Tier.NVME, before)
    gradient = torch.ones(1500)
    executor = make(UPDATE, {"p": Binding.to(parameter[100:1600]), "g": Binding.to(gradient)})
    executor.prepare()
    execute(parse(UPDATE), executor, {"sgd": subtract}, {})
    executor.commit()
    expected = before.clone()
    expected[100:1600] -= 1
    assert bits(parameter) == bits(expected)


STEP = """
schedule step.0
value %x : 20 B input @ device
value %a : 100 B parameter @ nvme
value %b : 100 B parameter @ host
value %h : 20 B intermediate @ device
value %ga : 100 B gradient @ nvme
value %gb : 100 B gradient @ host
value %sum : 100 B intermediate @ device
fetch %a <- nvme as t0 at 0
fetch %b <- host as t1 at 4096
wait %a for t0
compute layer(%a, %x) -> (%h) transient 0 B
release %a
wait %b for t1
compute grad_b(%b, %h) -> (%gb) transient 0 B
offload %gb -> host as t2
fetch %a <- nvme as t3 at 0
release %b
release %gb after t2
wait %a for t3
compute grad_a(%a, %x) -> (%ga) transient 0 B
offload %ga -> nvme as t4
release %ga after t4
release %a
fetch %gb <- host as t5 at 4096
fetch %ga <- nvme as t6 at 0
wait %gb for t5
wait %ga for t6
compute add(%ga, %gb) -> (%sum) transient 0 B
release %ga
release %gb
output %sum
output %ga
output %h
arena 8192 B
"""


STEP_KERNELS: Kernels = {
    "layer": lambda of: {"h": of["a"] @ of["x"]},
    "grad_b": lambda of: {"gb": torch.outer(of["h"], of["h"]) + of["b"]},
    "grad_a": lambda of: {"ga": torch.outer(of["x"], of["x"]) - of["a"]},
    "add": lambda of: {"sum": of["ga"] * 3 + of["gb"]},
}


def test_a_whole_schedule_gives_the_bits_of_its_kernels(make: Make, machine: Machine) -> None:
    schedule = parse(STEP)
    verify(schedule)
    square = Layout(torch.float32, (5, 5), (5, 1))
    a, b, x = content_of(square, 1), content_of(square, 2), torch.arange(5.0)
    bindings = {
        "a": Binding.to(at_rest(machine, Tier.NVME, a)),
        "b": Binding.to(at_rest(machine, Tier.HOST, b)),
        "ga": Binding(square),
        "gb": Binding(square),
    }
    outputs = execute(schedule, make(STEP, bindings), STEP_KERNELS, {"x": x})
    h = a @ x
    ga, gb = torch.outer(x, x) - a, torch.outer(h, h) + b
    assert {name: bits(tensor) for name, tensor in outputs.items()} == {
        "sum": bits(ga * 3 + gb),
        "ga": bits(ga),
        "h": bits(h),
    }


def weight_binding(machine: Machine) -> Binding:
    return Binding.to(at_rest(machine, Tier.NVME, torch.arange(10.0)))


def test_a_ticket_starts_once(make: Make, machine: Machine) -> None:
    executor = make(FETCH, {"w": weight_binding(machine)})
    executor.fetch(0, "w", Tier.NVME, 4096)
    with pytest.raises(AssertionError, match="t0 was started before"):
        executor.fetch(0, "w", Tier.NVME, 4096)
    with pytest.raises(AssertionError, match="t0 was started before"):
        executor.offload(0, "w", Tier.NVME, torch.arange(10.0))


def test_a_ticket_is_waited_for_once_and_for_its_value(make: Make, machine: Machine) -> None:
    executor = make(FETCH, {"w": weight_binding(machine), "v": weight_binding(machine)})
    with pytest.raises(AssertionError, match="t0 is not in flight"):
        executor.wait(0, "w")
    executor.fetch(0, "w", Tier.NVME, 4096)
    with pytest.raises(AssertionError, match="t0 carries %w, not %v"):
        executor.wait(0, "v")
    executor.wait(0, "w")
    with pytest.raises(AssertionError, match="t0 is not in flight"):
        executor.wait(0, "w")
    with pytest.raises(AssertionError, match="t7 is not in flight"):
        executor.release("w", 7)


def test_close_ends_what_is_in_flight_and_may_be_repeated(make: Make, machine: Machine) -> None:
    executor = make(FETCH, {"w": weight_binding(machine)})
    executor.fetch(0, "w", Tier.NVME, 4096)
    executor.close()
    executor.close()

"""What capture says of a graph: storages, roles, cuts."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn

from tests.fx.graphs import Block, Stack, captured_graphs
from zcompile.bridge.sameness import as_read
from zcompile.bridge.sizes import hint
from zcompile.ir import MANAGED_ROLES, Compute, Role, Schedule

WORDS = torch.arange(10).view(2, 5)


def schedules(model: nn.Module, *inputs: Tensor) -> dict[str, Schedule]:
    graphs = captured_graphs(model, *inputs)
    return {kind: each.schedule(hint) for kind, each in graphs.items()}


def kernels(schedule: Schedule) -> list[Compute]:
    return [step for step in schedule.steps if isinstance(step, Compute)]


def test_parameters_carry_their_qualified_names_in_both_graphs() -> None:
    found = schedules(Block(32), torch.randn(4, 32))
    for kind in ("forward", "backward"):
        names = {each.name for each in found[kind].values if each.role is Role.PARAMETER}
        assert {"up.weight", "down.weight", "norm.weight"} <= names, kind


def test_every_parameter_has_a_gradient_value_of_its_size() -> None:
    model = Block(32)
    (backward,) = [
        each for kind, each in schedules(model, torch.randn(4, 32)).items() if kind == "backward"
    ]
    sizes = {each.name: each.nbytes for each in backward.values if each.role is Role.GRADIENT}
    assert sizes == {f"{name}:grad": p.nbytes for name, p in model.named_parameters()}
    assert set(sizes) <= set(backward.outputs)


def test_a_tied_weight_is_one_value_read_by_two_kernels() -> None:
    forward = schedules(Stack(), WORDS)["forward"]
    readers = [each.kernel for each in kernels(forward) if "embed.weight" in each.reads]
    assert len(readers) == 2
    assert not [each for each in forward.values if each.name == "head.weight"]


def test_views_of_a_storage_are_reads_of_it() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            y = x @ self.weight
            return torch.sin(y[:, :4].t()) @ torch.cos(y.view(-1, 8)[:, 4:])

    forward = schedules(Views(), torch.randn(6, 8))["forward"]
    names = {each.name for each in forward.values}
    assert not names & {"slice_1", "view", "t", "permute"}


def test_each_kernel_starts_at_a_large_parameter_or_gradient() -> None:
    for schedule in schedules(Stack(depth=3), WORDS).values():
        managed = {each.name for each in schedule.values if each.role in MANAGED_ROLES}
        for kernel in kernels(schedule)[1:]:
            assert managed & {*kernel.reads, *kernel.writes} or kernel.writes == (
                "embedding_dense_backward",  # a segment of its own
            )


def test_no_kernel_reads_a_large_weight_and_makes_its_gradient() -> None:
    backward = schedules(Stack(depth=3), WORDS)["backward"]
    for kernel in kernels(backward):
        for name in kernel.reads:
            assert not name.endswith(("up.weight", "down.weight")) or (
                f"{name}:grad" not in kernel.writes
            )


def test_what_leaves_the_graph_is_an_output_and_parameters_are_not() -> None:
    forward = schedules(Block(32), torch.randn(4, 32))["forward"]
    roles = {each.name: each.role for each in forward.values}
    assert all(roles[name] is not Role.PARAMETER for name in forward.outputs)


def test_saved_activations_are_not_held_and_inputs_are() -> None:
    backward = schedules(Block(32), torch.randn(4, 32))["backward"]
    held = {each.role for each in backward.values if each.held}
    assert Role.ACTIVATION not in held
    assert Role.INPUT in held


def test_transients_cover_the_writes_of_a_kernel() -> None:
    for schedule in schedules(Stack(), WORDS).values():
        sizes = {each.name: each.nbytes for each in schedule.values}
        for kernel in kernels(schedule):
            assert kernel.transient_bytes <= sum(sizes.values())
            assert kernel.transient_bytes > 0


def test_a_gradient_that_is_a_view_of_a_larger_storage_is_a_value_beside_it() -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.randn(4, 8))
            self.b = nn.Parameter(torch.randn(4, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.cat([self.a, self.b]).t()

    backward = schedules(Fused(), torch.randn(3, 8))["backward"]
    sizes = {each.name: each.nbytes for each in backward.values if each.role is Role.GRADIENT}
    assert set(sizes) == {"a:grad", "b:grad"}


def test_a_gradient_leaves_the_graph_as_it_lies_at_home() -> None:
    class Layouts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.Parameter(torch.randn(2, 8, 4))
            self.gaps = nn.Parameter(torch.randn(8, 16)[:, ::2])
            self.turned = nn.Parameter(torch.randn(8, 8).t())

        def forward(self, x: Tensor) -> Tensor:
            y = torch.einsum("bd,hdk->bhk", x, self.heads).flatten(1)
            return y @ self.gaps @ self.turned

    captured = captured_graphs(Layouts(), torch.randn(3, 8))["backward"]
    strides = {
        name: node.meta["val"].stride()
        for name, node in captured.gradients.items()  # row by row where a parameter has gaps
    }
    assert strides == {"heads:grad": (32, 4, 1), "gaps:grad": (8, 1), "turned:grad": (1, 8)}
    sizes = {each.name: each.nbytes for each in captured.schedule(hint).values}
    assert [sizes[name] for name in strides] == [256, 256, 256]


def test_a_captured_graph_knows_whether_it_was_changed() -> None:
    captured = captured_graphs(Block(8), torch.ones(2, 8))["forward"]
    module = captured.attributes
    assert isinstance(module, fx.GraphModule)
    assert captured.is_still(module)
    first = next(node for node in module.graph.nodes if node.op == "call_function")
    args = first.args
    first.args = (*args[:-1], args[-1])
    assert not captured.is_still(module)


def test_a_captured_graph_knows_a_copy_of_it() -> None:
    captured = captured_graphs(Block(8), torch.ones(2, 8))["backward"]
    module = captured.attributes
    assert isinstance(module, fx.GraphModule)
    assert captured.is_still(copy.deepcopy(module))


@pytest.mark.parametrize("of", ["the copy", "the original"])
@pytest.mark.parametrize("change", ["arguments", "target", "size"])
def test_a_copy_of_a_changed_graph_is_none(of: str, change: str) -> None:
    captured = captured_graphs(Block(8), torch.ones(2, 8))["backward"]
    module = captured.attributes
    assert isinstance(module, fx.GraphModule)
    other = copy.deepcopy(module)
    changed = other if of == "the copy" else module
    node = next(each for each in changed.graph.nodes if len(each.args) == 2)
    if change == "arguments":
        node.args = (node.args[1], node.args[0])
    elif change == "target":
        node.target = torch.ops.aten.fmod.Tensor
    else:
        node.meta["val"] = node.meta["val"].clone()
    assert not captured.is_still(other)


def test_a_copy_with_attributes_is_captured_again() -> None:
    captured = captured_graphs(Block(8), torch.ones(2, 8))["forward"]
    module = captured.attributes
    assert isinstance(module, fx.GraphModule)
    other = copy.deepcopy(module)
    for each in (module, other):
        each.register_buffer("late", torch.zeros(1))
        with each.graph.inserting_before(next(iter(each.graph.nodes))):
            each.graph.get_attr("late")
    assert not replace(captured, read=as_read(module.graph)).is_still(other)


def test_a_node_more_is_a_change() -> None:
    captured = captured_graphs(Block(8), torch.ones(2, 8))["forward"]
    module = captured.attributes
    assert isinstance(module, fx.GraphModule)
    module.graph.placeholder("late")
    assert not captured.is_still(module)

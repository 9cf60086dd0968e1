"""Each thing we use of torch that it does not promise to keep: a failure here names it.

When a new version of torch breaks the backend, run this file first.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo import config as dynamo_config

from tests.fx.graphs import Block
from zcompile.bridge import torch_private


class Seen:
    """A backend that keeps what it was given."""

    def __init__(self) -> None:
        self.owner: object = None
        self.dynamo: fx.GraphModule | None = None
        self.graphs: dict[str, fx.GraphModule] = {}

    def __call__(self, module: fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.owner = torch_private.compiled_object()
        self.dynamo = module

        def keep(kind: str) -> Any:
            def compile_graph(graph: fx.GraphModule, _: list[Any]) -> Any:
                self.graphs[kind] = graph
                return _boxed(graph)

            return compile_graph

        return torch_private.aot_autograd(
            fw_compiler=keep("forward"),
            bw_compiler=keep("backward"),
            partition_fn=torch_private.min_cut_rematerialization_partition,
        )(module, example_inputs)


def _boxed(graph: fx.GraphModule) -> Any:
    def run(args: list[Any]) -> Any:
        return graph(*args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@pytest.fixture(scope="module")
def seen() -> Seen:
    torch.compiler.reset()
    seen = Seen()
    torch.compile(Block(8), backend=seen)(torch.randn(2, 8)).sum().backward()
    return seen


def placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return list(graph.graph.find_nodes(op="placeholder"))


def test_aotautograd_hands_over_forward_and_backward(seen: Seen) -> None:
    assert set(seen.graphs) == {"forward", "backward"}


def test_forward_placeholders_name_the_inputs_of_the_graph(seen: Seen) -> None:
    indices = [
        torch_private.graph_input_index(each) for each in placeholders(seen.graphs["forward"])
    ]
    assert sorted(index for index in indices if index is not None) == list(range(7))


def test_backward_tells_saved_activations_from_inputs(seen: Seen) -> None:
    saved = [
        torch_private.is_saved_activation(each) for each in placeholders(seen.graphs["backward"])
    ]
    assert any(saved)
    assert not all(saved)


def test_backward_outputs_name_the_input_they_are_the_gradient_of(seen: Seen) -> None:
    (output,) = seen.graphs["backward"].graph.find_nodes(op="output")
    descriptors = torch_private.output_descriptors(output)
    assert len(descriptors) == len(output.args[0])
    assert sum(torch_private.gradient_input_index(each) is not None for each in descriptors) == 6


def test_views_share_the_storage_of_their_fake_tensors(seen: Seen) -> None:
    graph = seen.graphs["forward"].graph
    (view, *_) = graph.find_nodes(op="call_function", target=torch.ops.aten.t.default)
    (base,) = view.all_input_nodes
    key = torch_private.storage_key
    assert key(view.meta["val"]) == key(base.meta["val"])
    others = {key(each.meta["val"]) for each in placeholders(seen.graphs["forward"])}
    assert len(others) == 7


def test_dynamo_says_how_it_reaches_a_parameter(seen: Seen) -> None:
    assert seen.dynamo is not None
    texts = [torch_private.source_text(each) for each in placeholders(seen.dynamo)]
    assert any("['up']" in text and "['weight']" in text for text in texts)


def test_a_compiled_module_is_found(seen: Seen) -> None:
    assert isinstance(seen.owner, Block)


def test_a_module_compiled_in_place_is_found() -> None:
    torch.compiler.reset()
    seen, model = Seen(), Block(8)
    model.compile(backend=seen)
    model(torch.randn(2, 8)).sum().backward()
    assert seen.owner is model


def test_a_compiled_function_is_found() -> None:
    torch.compiler.reset()
    seen = Seen()
    weight = nn.Parameter(torch.randn(8))

    def function(x: Tensor) -> Tensor:
        return x * weight

    torch.compile(function, backend=seen)(torch.randn(8)).sum().backward()
    assert seen.owner is function


def test_a_method_of_a_module_stands_for_the_module() -> None:
    torch.compiler.reset()
    seen, model = Seen(), Block(8)
    forward: Any = torch.compile(model.forward, backend=seen)
    forward(torch.randn(2, 8)).sum().backward()
    assert seen.owner is model
    assert torch_private.original_of(forward) is model


def test_a_function_that_a_module_calls_is_found() -> None:
    torch.compiler.reset()
    seen = Seen()

    def function(x: Tensor) -> Tensor:
        return x * 2

    class Caller(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return call(x)

    call: Any = torch.compile(function, backend=seen)
    Caller()(torch.randn(8, requires_grad=True)).sum().backward()
    assert seen.owner is function
    assert torch_private.original_of(call) is function


def test_nothing_is_found_outside_a_compiled_call() -> None:
    assert torch_private.compiled_object() is None


def test_random_operations_are_left_whole() -> None:
    table = torch_private.default_decompositions()
    assert torch.ops.aten.native_dropout.default not in table
    assert torch.ops.aten.native_layer_norm.default in table


def test_torch_counts_the_flops_of_a_product() -> None:
    formula = torch_private.flop_formula(torch.ops.aten.mm.default)
    assert formula is not None
    assert formula(torch.empty(2, 3), torch.empty(3, 5), out_val=torch.empty(2, 5)) == 2 * 2 * 3 * 5
    assert torch_private.flop_formula(torch.ops.aten.relu.default) is None


def test_backward_can_be_traced_outside_autocast() -> None:
    """The gradient of a bias is summed in the type of its addends, not cast up first."""
    torch.compiler.reset()
    seen = Seen()
    compiled = torch.compile(nn.Linear(4, 4), backend=seen)
    with torch_private.backward_outside_autocast(), torch.autocast("cpu", torch.bfloat16):
        loss = compiled(torch.ones(2, 4)).sum()
    loss.backward()
    sums = seen.graphs["backward"].graph.find_nodes(
        op="call_function", target=torch.ops.aten.sum.dim_IntList
    )
    assert [each.meta["val"].dtype for each in sums] == [torch.bfloat16]


def test_nothing_saved_is_donated() -> None:
    torch.compiler.reset()

    def compile_forward(graph: fx.GraphModule, _: list[Any]) -> Any:
        torch_private.donate_nothing()
        return _boxed(graph)

    def compile_backward(graph: fx.GraphModule, _: list[Any]) -> Any:
        return _boxed(graph)

    def backend(module: fx.GraphModule, example_inputs: list[Any]) -> Any:
        aot = torch_private.aot_autograd(fw_compiler=compile_forward, bw_compiler=compile_backward)
        return aot(module, example_inputs)

    compiled = torch.compile(Block(8), backend=backend)
    compiled(torch.randn(2, 8)).sum().backward()
    loss = compiled(torch.randn(2, 8)).sum()
    loss.backward(retain_graph=True)
    loss.backward()


class _Attempts:
    """What Dynamo says of each frame that it is about to compile."""

    def __init__(self) -> None:
        self.seen: list[torch_private.Attempt] = []
        self.within: list[bool] = []

    def __call__(self) -> None:
        attempt = torch_private.attempt_under_way()
        assert attempt is not None
        self.seen.append(attempt)
        frame = inspect.currentframe()
        assert frame is not None
        self.within.append(torch_private.in_compiled_call(frame))


def test_dynamo_tells_of_each_attempt_and_of_the_last_that_it_refuses() -> None:
    torch.compiler.reset()
    attempts = _Attempts()
    end = torch_private.watch_attempts(attempts)
    compiled: Any = torch.compile(Block(8), backend="eager", dynamic=False)
    with dynamo_config.patch(recompile_limit=2):
        for batch in (1, 2, 3):
            compiled(torch.randn(batch, 8))
        end()
        compiled(torch.randn(4, 8))
    assert [each.num_graphs for each in attempts.seen] == [0, 1, 2]
    assert [each.limit for each in attempts.seen] == [
        None,
        None,
        "torch._dynamo.config.recompile_limit (2)",
    ]
    assert all(each.frame.startswith("forward (") for each in attempts.seen)
    assert "size mismatch" in attempts.seen[-1].reason
    assert not attempts.seen[-1].fatal
    assert attempts.within == [True] * 3


def test_a_frame_of_a_plain_call_is_in_no_compiled_one() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    assert not torch_private.in_compiled_call(frame)


def test_the_stance_that_keeps_compiled_code_from_running() -> None:
    assert torch_private.forced_stance() is None
    with torch.compiler.set_stance("force_eager"):
        assert torch_private.forced_stance() == "force_eager"


# torch's own derivatives of forward mode are scripts.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_dual_numbers_are_seen() -> None:
    forward_ad: Any = torch.autograd.forward_ad
    plain = torch.ones(2)
    assert not torch_private.has_tangent([plain])
    with forward_ad.dual_level():
        assert not torch_private.has_tangent([plain, 3])
        assert torch_private.has_tangent([plain, forward_ad.make_dual(plain, plain)])


def test_what_forward_saves_comes_first_among_the_tensors_of_backward(seen: Seen) -> None:
    (output,) = seen.graphs["forward"].graph.find_nodes(op="output")
    saved = {
        index: output.args[0][at]
        for at, descriptor in enumerate(torch_private.output_descriptors(output))
        if (index := torch_private.saved_index(descriptor)) is not None
    }
    tensors = [
        node
        for node in seen.graphs["backward"].graph.find_nodes(op="placeholder")
        if isinstance(node.meta.get("val"), Tensor)
    ]
    assert len(saved) > 2
    for index, node in saved.items():
        assert isinstance(node, fx.Node)
        assert tensors[index].meta["val"].shape == node.meta["val"].shape
        assert tensors[index].name == node.name

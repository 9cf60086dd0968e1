"""Whatever keeps Dynamo from compiling: the numbers stay right, and it is said once."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config

import zcompile
from tests.e2e.jobs import same_bits
from tests.e2e.sides import copies
from zcompile.bridge import torch_private
from zcompile.leaving import OTHER, THE_MODULE, Leaving
from zcompile.runtime.ledger import Ledger

WIDTH = 256

BUDGET_MIB = 64


@torch.library.custom_op("zinf_tests::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    """Cannot be traced: it has no fake implementation."""
    return x.clone()


def _pass(_context: Any, gradient: Tensor) -> Tensor:
    return gradient


no_fake.register_autograd(_pass)


class Net(nn.Module):
    """Reads its weights itself: no submodule whose frame could be compiled instead.

    Dynamo fails where ``mode`` is not zero.
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(width, width) / 16)
        self.down = nn.Parameter(torch.randn(width, width) / 16)
        self.mode = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.mode:
            x = no_fake(x)
        return torch.tanh(x @ self.up) @ self.down


def made(kind: Callable[[], nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    return kind()


def in_file(model: nn.Module, swap_dir: Path, **more: Any) -> Any:
    options: Any = {
        "compute": "eager",
        "device_budget": BUDGET_MIB << 20,
        "nvme_dir": swap_dir,
        "place": {"parameters": "nvme", "gradients": "nvme", "optimizer": "nvme"},
    }
    return torch.compile(model, backend="zinf", options=options, **more)


def x_of(batch: int, width: int = WIDTH) -> Tensor:
    return torch.randn(batch, width, generator=torch.Generator().manual_seed(batch))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(call: Any, model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> list[Tensor]:
    optimizer.zero_grad()
    loss = call(x_of(batch)).square().mean()
    loss.backward()
    optimizer.step()
    return copies(model, loss)


@contextmanager
def told_once(*words: str) -> Generator[None]:
    """Check that exactly one warning comes, with all of ``words`` and the bytes in it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(each.message) for each in caught]
    assert len(texts) == 1, texts
    for word in (*words, "iB) of homes in files", "zcompile.stats"):
        assert word in texts[0]


def weight_bytes(model: nn.Module) -> int:
    return sum(each.nbytes for each in model.parameters())


def same(got: list[Tensor], want: list[Tensor]) -> bool:
    return all(same_bits(a, b) for a, b in zip(got, want, strict=True))


def trained(call: Callable[[Any], Any], *batches: int) -> list[Tensor]:
    model = made()
    compiled, optimizer = call(model), optimizer_of(model)
    return [each for batch in batches for each in step(compiled, model, optimizer, batch)]


def test_the_recompile_limit(swap_dir: Path) -> None:
    batches = (1, 2, 3, 4, 3, 1)
    want = trained(lambda model: model, *batches)
    models: list[nn.Module] = []

    def compiled(model: nn.Module) -> Any:
        models.append(model)
        return in_file(model, swap_dir, dynamic=False)

    words = ("recompile_limit (2) reached with 2 graphs", "mark_dynamic", "forward (", "size")
    with dynamo_config.patch(recompile_limit=2), told_once(*words):
        got = trained(compiled, *batches)
    assert same(got, want)
    stats = zcompile.stats(models[0])
    (left,) = (nbytes for cause, nbytes in stats.outside_bytes.items() if cause != OTHER)
    assert left >= 3 * weight_bytes(models[0])
    assert "recompile_limit (2)" in " ".join(str(stats).split())
    assert "read outside the graphs" in str(stats)


def test_the_recompile_limit_where_dynamo_raises_an_error_itself(swap_dir: Path) -> None:
    model = made()
    compiled = in_file(model, swap_dir, dynamic=False, fullgraph=True)
    with dynamo_config.patch(recompile_limit=1):
        compiled(x_of(1))
        with pytest.raises(Exception, match="fullgraph=True"):
            compiled(x_of(2))


def test_the_module_itself_is_trained(swap_dir: Path) -> None:
    batches = (1, 2, 3, 4)
    want = trained(lambda model: model, *batches)
    model = made()
    compiled, optimizer = in_file(model, swap_dir), optimizer_of(model)
    got = step(compiled, model, optimizer, 1)
    with told_once("the module itself ran", "model.compile("):
        for batch in batches[1:]:
            got += step(model, model, optimizer, batch)
    assert same(got, want)
    stats = zcompile.stats(compiled)
    assert stats.outside_bytes[THE_MODULE] >= 2 * weight_bytes(model)
    assert stats.iterations[-1].eager_bytes >= weight_bytes(model)


def test_compiled_code_is_switched_off(swap_dir: Path) -> None:
    batches = (1, 1, 1, 1)
    want = trained(lambda model: model, *batches)
    model = made()
    compiled, optimizer = in_file(model, swap_dir), optimizer_of(model)
    got = step(compiled, model, optimizer, 1)
    with (
        torch.compiler.set_stance("force_eager"),
        told_once('set_stance("force_eager")'),
    ):
        for batch in batches[1:]:
            got += step(compiled, model, optimizer, batch)
    assert same(got, want)


def test_errors_of_dynamo_are_suppressed(swap_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = made()
    compiled, optimizer = in_file(model, swap_dir), optimizer_of(model)
    step(compiled, model, optimizer, 1)
    model.mode = 1
    with (
        dynamo_config.patch(suppress_errors=True),
        told_once("Dynamo gave up on forward (", "suppress_errors", "TORCH_LOGS"),
    ):
        for _ in range(3):
            step(compiled, model, optimizer, 1)
    assert "no_fake" in caplog.text


class Waiting(Net):
    """Waits in its forward, once it has read its weights, for what ``until`` says."""

    until: Callable[[], bool] = staticmethod(lambda: True)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if not torch.compiler.is_compiling():
            while not self.until():
                pass
        return y


def test_the_module_itself_is_evaluated(swap_dir: Path) -> None:
    width = 2048  # two weights of 16 MiB: more than may be resident
    model = made(lambda: Waiting(width))
    compiled, x = in_file(model, swap_dir), x_of(1, width)
    with torch.no_grad():
        want = compiled(x)
        model.until = lambda: THE_MODULE in zcompile.stats(model).outside_bytes
        got = model(x)
        assert same_bits(got, want)
        with told_once("the module itself ran"):
            for _ in range(2):
                assert same_bits(compiled(x), want)


class Broken(nn.Module):
    """The graph breaks where the weights are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        y: Tensor = self.down(x * looked_at(self.up.weight))
        return y


def _norm(weight: Tensor) -> Tensor:
    return weight.detach().abs().max()


looked_at: Callable[[Tensor], Tensor] = cast("Any", torch.compiler.disable)(_norm)


class Hooked(nn.Module):
    """Two layers, of which one has a hook that makes Dynamo leave it out."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.tanh(self.up(x)))
        return y


def _watch(_module: nn.Module, _inputs: Any, _outputs: Any) -> None:
    """See the gradients go by."""


def hooked(model: Hooked) -> Hooked:
    model.down.register_full_backward_hook(_watch)
    return model


def test_trained_weights_in_no_graph_are_told_of_once(swap_dir: Path) -> None:
    want = trained_by(lambda model: model, hooked(made(Hooked)))
    model = hooked(made(Hooked))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = trained_by(lambda model: in_file(model, swap_dir), model)
    assert same(got, want)
    (text,) = (str(each.message) for each in caught if "in no graph" in str(each.message))
    assert "(257.0 KiB) of the trained weights" in text
    assert "(down.weight, down.bias)" in text
    assert "register_full_backward_hook" in text
    assert set(zcompile.stats(model).unused) == {"down.weight", "down.bias"}


def test_hooks_that_are_compiled_are_not_told_of(swap_dir: Path) -> None:
    model = made(Hooked)
    model.down.register_forward_hook(_watch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained_by(lambda model: in_file(model, swap_dir), model)


def test_without_a_budget_it_does_not_matter_what_is_in_no_graph(swap_dir: Path) -> None:
    model = hooked(made(Hooked))
    options: Any = {"compute": "eager", "nvme_dir": swap_dir}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained_by(lambda model: torch.compile(model, backend="zinf", options=options), model)
    assert not [each for each in caught if "in no graph" in str(each.message)]
    assert set(zcompile.stats(model).unused) == {"down.weight", "down.bias"}


def trained_by(call: Callable[[Any], Any], model: nn.Module) -> list[Tensor]:
    compiled, optimizer = call(model), optimizer_of(model)
    return [each for batch in (2, 2, 3) for each in step(compiled, model, optimizer, batch)]


# Dynamo looks at the gradient of what crosses the break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_weights_read_between_two_graphs_are_a_line_in_the_statistics(swap_dir: Path) -> None:
    model = made(Broken)
    compiled, optimizer = in_file(model, swap_dir), optimizer_of(model)
    for _ in range(3):
        step(compiled, model, optimizer, 2)
    stats = zcompile.stats(compiled)
    assert stats.outside_bytes[OTHER] >= 3 * model.up.weight.nbytes
    assert list(stats.unused) == ["unused.weight", "unused.bias"]
    assert OTHER.split(":")[0] in str(stats)
    assert "in no graph, in ordinary memory: unused.weight" in str(stats)


def test_reads_of_ones_own_are_counted_and_never_warned_of(swap_dir: Path) -> None:
    model = made()
    compiled, optimizer = in_file(model, swap_dir), optimizer_of(model)
    average = copy.deepcopy(model)
    for batch in (1, 2, 3):
        step(compiled, model, optimizer, batch)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            for _ in range(3):
                compiled(x_of(4))
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        model_state, optimizer_state = torch.load(file)
        model.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
        copy.deepcopy(model)(x_of(1))  # another model, over memory of its own
    for _ in range(3):  # gradients of one's own, no graph in between
        for each in model.parameters():
            each.grad = each.detach() * 0.01
        optimizer.step()
    assert list(zcompile.stats(model).outside_bytes) == [OTHER]


def test_frames_of_other_models_are_none_of_ours(swap_dir: Path) -> None:
    model, other = made(), made()
    compiled, optimizer = in_file(model, swap_dir), optimizer_of(model)
    step(compiled, model, optimizer, 1)
    for _ in range(3):
        step(other, other, optimizer_of(other), 1)
    assert zcompile.stats(model).outside_bytes.keys() <= {OTHER}


def test_nothing_is_under_way_outside_a_compilation() -> None:
    assert torch_private.attempt_under_way() is None
    assert torch_private.forced_stance() is None


def test_looking_for_the_cause_keeps_nothing_of_its_callers() -> None:
    leaving = Leaving(Ledger())

    def caller() -> weakref.ref[Tensor]:
        local = torch.empty(1)
        leaving.read(1)
        return weakref.ref(local)

    gc.collect()
    gc.disable()  # a cycle would go away with the collector, at some time
    try:
        assert caller()() is None
    finally:
        gc.enable()

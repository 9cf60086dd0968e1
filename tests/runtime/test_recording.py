"""The recording executor writes down what it is asked to do, as lines of a schedule."""

from __future__ import annotations

import torch

from zcompile.ir import Compute, parse, render_step
from zcompile.runtime.binding import Binding
from zcompile.runtime.executor import Kernels, execute
from zcompile.runtime.recording import RecordingExecutor

SCHEDULE = parse("""
schedule step.0
value %x : 8 B input @ device
value %w : 8 B parameter @ nvme
value %g : 8 B gradient @ host
fetch %w <- nvme as t0 at 0
wait %w for t0
compute double(%x, %w) -> (%g) transient 0 B
offload %g -> host as t1
release %w
release %g after t1
output %g
arena 4096 B
""")


def test_the_calls_are_the_steps_between_the_kernels() -> None:
    weight, x = torch.ones(2), torch.arange(2.0)
    executor = RecordingExecutor({"w": Binding.to(weight), "g": Binding(Binding.to(weight).layout)})
    double: Kernels = {"double": lambda of: {"g": of["w"] + 2 * of["x"]}}
    outputs = execute(SCHEDULE, executor, double, {"x": x})
    assert outputs["g"].tolist() == [1, 3]
    assert executor.calls == [
        render_step(step) for step in SCHEDULE.steps if not isinstance(step, Compute)
    ]

"""Two threads: worked out by hand, and never faster than their work alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import many, placed
from zcompile.ir import (
    Channel,
    Compute,
    Hardware,
    Kind,
    Link,
    Schedule,
    Target,
    Update,
    kernel_name,
    parse,
)
from zcompile.passes.beside import Beside, simulate_beside
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.simulate import simulate

FREE = Hardware(
    name="nothing shared",
    source="made up",
    capacities={},
    links={channel: Link(bandwidth_bytes_per_s=1e6) for channel in Channel},
    flops_per_s={Kind.MATMUL: {"float32": 1.0}},
    memory_bytes_per_s=1.0,
)

BACKWARD = parse(
    """\
schedule backward
value %x : 8 B input @ device held
value %a:grad : 1000000 B gradient @ nvme
value %b:grad : 1000000 B gradient @ nvme
compute k0(%x) -> (%b:grad) transient 0 B
offload %b:grad -> nvme as t0
release %b:grad after t0
compute k1(%x) -> (%a:grad) transient 0 B
offload %a:grad -> nvme as t1
release %a:grad after t1
"""
)

EARLY = parse(
    """\
schedule early
value %b : 2000000 B parameter @ nvme
value %b:grad : 1000000 B gradient @ nvme
fetch %b <- nvme as t0
fetch %b:grad <- nvme as t1
wait %b for t0
wait %b:grad for t1
update u(%b, %b:grad) -> (%b) transient 0 B
offload %b -> nvme as t2
release %b after t2
release %b:grad
"""
)
SECONDS = {"backward": {"k0": 2.0, "k1": 5.0}, "early": {"u": 1.0}}


def test_an_update_begins_when_its_gradient_has_landed() -> None:
    # The gradient of %b has landed at 3 s, and k1 runs from there.  The update reads for 3 s;
    # from 6 s on its kernel and k1 share one processor, 2 s for the one and the rest of k1 later.
    # So k1 ends at 9 s, and its gradient lands at 11 s, behind the 2 s of %b.
    ran = simulate_beside([BACKWARD], [Beside(EARLY, 0, 2)], SECONDS, FREE)
    assert ran.seconds == pytest.approx(11.0)
    assert ran.joined_s == pytest.approx(0.0)
    assert ran.busy_s == pytest.approx({Channel.NVME_WRITE: 4.0, Channel.NVME_READ: 3.0})


def test_the_first_thread_waits_for_the_second_at_last() -> None:
    # Begun only when all of backward is over, at 9 s: read, update, write.
    ran = simulate_beside([BACKWARD], [Beside(EARLY, 0, 5)], SECONDS, FREE)
    assert (ran.seconds, ran.joined_s) == pytest.approx((15.0, 6.0))


def test_one_after_the_other_on_the_second_thread() -> None:
    again = replace(EARLY, name="again")
    seconds = {**SECONDS, "again": SECONDS["early"]}
    both = [Beside(EARLY, 0, 5), Beside(again, 0, 2)]
    assert simulate_beside([BACKWARD], both, seconds, FREE).seconds == pytest.approx(21.0)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"early: no time is known for the kernel 'u'"):
        simulate_beside([BACKWARD], [Beside(EARLY, 0, 2)], {"backward": SECONDS["backward"]}, FREE)


@many
@given(placed, st.data())
def test_alone_it_is_as_simulated_and_beside_others_no_faster(
    captured: Schedule, data: st.DataObject
) -> None:
    target = Target(has_nvme=True, homes={v.name: v.home for v in captured.values})
    plan = run_within_budget(PIPELINE, captured, target).schedule
    kernels = [step for step in plan.steps if isinstance(step, Compute | Update)]
    seconds = {
        plan.name: {kernel_name(step): 0.5 for step in kernels},
        "other": {kernel_name(step): 0.5 for step in kernels},
    }
    alone = simulate([plan], seconds, FREE)
    assert simulate_beside([plan], [], seconds, FREE).seconds == pytest.approx(alone.seconds)
    if not plan.steps:
        return
    at = data.draw(st.integers(0, len(plan.steps) - 1))
    other = Beside(replace(plan, name="other"), 0, at)
    both = simulate_beside([plan], [other], seconds, FREE)
    assert both.seconds >= 2 * 0.5 * len(kernels) * (1 - 1e-9)
    for channel, busy_s in alone.busy_s.items():
        assert both.busy_s[channel] >= 2 * busy_s * (1 - 1e-9)
        assert both.seconds >= 2 * busy_s * (1 - 1e-9)

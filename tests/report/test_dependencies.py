"""The graph of a plan: the same times as the simulator's, by another way."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import many, placed
from zcompile.ir import (
    Channel,
    Compute,
    Hardware,
    Link,
    Schedule,
    Target,
    Update,
    kernel_name,
    parse,
)
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.simulate import simulate
from zcompile.report.dependencies import critical_path, dot, happens_before

MACHINE = Hardware(
    name="nothing shared",
    source="made up",
    capacities={},
    links={c: Link(bandwidth_bytes_per_s=1e6, latency_s=1e-3) for c in Channel},
    flops_per_s={},
    memory_bytes_per_s=1.0,
)
TINY = parse(
    """\
schedule s
value %a : 1000000 B parameter @ nvme
value %g : 2000000 B gradient @ host
fetch %a <- nvme as t0
wait %a for t0
compute k(%a) -> (%g) transient 0 B
offload %g -> host as t1
release %g after t1
release %a
"""
)


def test_who_waits_for_whom() -> None:
    graph = happens_before(TINY, {"k": 0.5}, MACHINE)
    steps = {(("step", at), ("step", at + 1)) for at in range(5)}
    copies = {
        (("step", 0), ("latency", 0)),
        (("latency", 0), ("copy", 0)),
        (("copy", 0), ("step", 1)),
        (("step", 3), ("latency", 1)),
        (("latency", 1), ("copy", 1)),
        (("copy", 1), ("step", 4)),
    }
    assert set(graph.edges) == steps | copies
    assert graph.nodes["copy", 1]["label"] == "d2h %g"
    path, seconds = critical_path(graph)
    assert path == (("latency", 0), ("copy", 0), ("step", 2), ("latency", 1), ("copy", 1))
    assert seconds == pytest.approx(1.001 + 0.5 + 2.001)


def test_graphviz_reads_it() -> None:
    text = dot(happens_before(TINY, {"k": 0.5}, MACHINE))
    assert text.startswith('digraph "s" {\n  step_0 [shape=box, label="fetch %a <- nvme as t0\\n')
    assert '  copy_1 [shape=ellipse, label="d2h %g\\n2000.000 ms"];' in text
    assert "  copy_0 -> step_1;\n" in text
    assert text.endswith("\n}")


def test_nothing_takes_no_time() -> None:
    graph = happens_before(Schedule("empty", (), ()), {}, MACHINE)
    assert critical_path(graph) == ((), 0.0)


@many
@given(placed, st.data())
def test_the_critical_path_is_the_simulated_time(captured: Schedule, data: st.DataObject) -> None:
    target = Target(has_nvme=True, homes={v.name: v.home for v in captured.values})
    planned = run_within_budget(PIPELINE, captured, target).schedule
    kernels = [kernel_name(s) for s in planned.steps if isinstance(s, Compute | Update)]
    seconds = {name: data.draw(st.sampled_from([0.0, 1e-3, 0.3])) for name in kernels}
    graph = happens_before(planned, seconds, MACHINE)
    assert nx.is_directed_acyclic_graph(graph)
    # A copy that nobody waits for may end after the last step: leave it out.
    graph.remove_nodes_from([n for n in list(graph) if n[0] == "copy" and not _awaited(graph, n)])
    alone = simulate([planned], {planned.name: seconds}, MACHINE).seconds
    assert critical_path(graph)[1] == pytest.approx(alone)
    links = {c: replace(link, uses=(("bus", 1.0),)) for c, link in MACHINE.links.items()}
    shared = replace(MACHINE, links=links)
    assert simulate([planned], {planned.name: seconds}, shared).seconds >= alone - 1e-9


def _awaited(graph: nx.DiGraph[tuple[str, int]], copy: tuple[str, int]) -> bool:
    return any(after[0] == "step" for after in nx.descendants(graph, copy))

"""Captured schedules to plan: random ones for properties, and large regular ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st

from zcompile.ir import Compute, Role, Schedule, Step, Tier, Update, Value

many = settings(max_examples=60, deadline=None)
"""For properties of single passes; no deadline, since other work may share the machine."""

AWAY = st.sampled_from([Tier.HOST, Tier.NVME])
SIZES = st.sampled_from([0, 1, 100, 4096, 5000, 8192, 20_000, 70_000])


@st.composite
def graphs(draw: st.DrawFn, *, away: bool = False) -> Schedule:
    """A graph of up to ten kernels over parameters, gradients and intermediates.

    With ``away`` the managed values have homes off the device, otherwise on it.
    """
    home = AWAY if away else st.just(Tier.DEVICE)
    values = [Value("x", draw(SIZES), Role.INPUT, held=draw(st.booleans()))]
    parameters = [
        Value(f"w{i}", draw(SIZES), Role.PARAMETER, draw(home))
        for i in range(draw(st.integers(0, 5)))
    ]
    made = ["x"]
    steps: list[Step] = []
    for i in range(draw(st.integers(1, 10))):
        reads = draw(_some(made, 1, 3)) + draw(_some([w.name for w in parameters], 0, 3))
        written = [Value(f"h{i}", draw(SIZES), Role.INTERMEDIATE)]
        if draw(st.booleans()):
            written[0] = replace(written[0], role=Role.SAVED, home=draw(home))
        if draw(st.booleans()):
            written.append(Value(f"w{i}:grad", draw(SIZES), Role.GRADIENT, draw(home)))
        values += written
        names = tuple(value.name for value in written)
        steps.append(Compute(f"k{i}", tuple(reads), names, draw(st.integers(0, 90_000))))
        made += names
    outputs = [value.name for value in values if value.role is Role.GRADIENT]
    outputs += draw(_some(made[1:], 0, 2))
    return Schedule("g", (*values, *parameters), tuple(steps), tuple(dict.fromkeys(outputs)))


def _some(names: Sequence[str], least: int, most: int) -> st.SearchStrategy[list[str]]:
    if not names:
        return st.just([])
    return st.lists(st.sampled_from(names), min_size=least, max_size=most, unique=True)


@st.composite
def updates(draw: st.DrawFn, *, away: bool = False) -> Schedule:
    """An update of up to six buckets, each of one to three parameters under Adam."""
    home = AWAY if away else st.just(Tier.DEVICE)
    values: list[Value] = []
    steps: list[Step] = []
    for bucket in range(draw(st.integers(1, 6))):
        parts = range(draw(st.integers(1, 3)))
        names = [f"p{bucket}.{part}" for part in parts]
        for name in names:
            nbytes = draw(SIZES)
            values += [
                Value(name, nbytes, Role.PARAMETER, draw(home)),
                Value(f"{name}:grad", nbytes, Role.GRADIENT, draw(home)),
                Value(f"{name}:m", nbytes, Role.STATE, draw(home)),
                Value(f"{name}:v", nbytes, Role.STATE, draw(home)),
            ]
        writes = tuple(f"{name}{kind}" for name in names for kind in ("", ":m", ":v"))
        reads = (*writes, *(f"{name}:grad" for name in names))
        steps.append(Update(f"b{bucket}", reads, writes, draw(st.integers(0, 9_000))))
    return Schedule("update", tuple(values), tuple(steps))


captured = st.one_of(graphs(), updates())
placed = st.one_of(graphs(away=True), updates(away=True))


@st.composite
def models(draw: st.DrawFn) -> tuple[tuple[Schedule, Schedule], tuple[Value, ...]]:
    """The forward and backward graphs of one model, and the states of its optimizer.

    Some of what forward saves for backward may be moved.
    """
    sizes = draw(st.lists(SIZES, min_size=1, max_size=6))
    parameters = [Value(f"l{i}.w", nbytes, Role.PARAMETER) for i, nbytes in enumerate(sizes)]
    hidden = [
        Value(f"h{i}", draw(SIZES), draw(st.sampled_from([Role.INTERMEDIATE, Role.SAVED])))
        for i in range(len(sizes) + 1)
    ]
    hidden[0] = replace(hidden[0], role=Role.INPUT)
    forward = Schedule(
        "forward",
        (*parameters, replace(hidden[0], held=True), *hidden[1:]),
        tuple(
            Compute(
                f"f{i}", (hidden[i].name, w.name), (hidden[i + 1].name,), draw(st.integers(0, 9000))
            )
            for i, w in enumerate(parameters)
        ),
        tuple(value.name for value in hidden[1:]),
    )
    saved = [
        value if value.role is Role.SAVED else replace(value, role=Role.ACTIVATION)
        for value in hidden
    ]
    flowing = [Value(f"d{i}", draw(SIZES), Role.INTERMEDIATE) for i in range(len(sizes))]
    gradients = [Value(f"{w.name}:grad", w.nbytes, Role.GRADIENT) for w in parameters]
    steps: list[Step] = []
    for i in reversed(range(len(sizes))):
        above = (flowing[i + 1].name,) if i + 1 < len(sizes) else ()
        reads = (*above, saved[i].name, parameters[i].name)
        writes = (flowing[i].name, gradients[i].name)
        steps.append(Compute(f"b{i}", reads, writes, draw(st.integers(0, 9000))))
    backward = Schedule(
        "backward",
        (*parameters, *saved, *flowing, *gradients),
        tuple(steps),
        tuple(value.name for value in gradients),
    )
    states = tuple(
        Value(f"{w.name}:{kind}", w.nbytes, Role.STATE) for w in parameters for kind in ("m", "v")
    )
    return (forward, backward), states


def layers(num_kernels: int, *, home: Tier = Tier.NVME) -> Schedule:
    """A backward graph of ``num_kernels`` kernels, each with a parameter and its gradient.

    The first and the last kernel share one large parameter, as tied embeddings do.
    """
    megabyte = 1 << 20
    values = [
        Value("x", megabyte, Role.INPUT, held=True),
        Value("embedding", 100 * megabyte, Role.PARAMETER, home),
    ]
    steps: list[Step] = []
    for i in range(num_kernels):
        nbytes = (1 + i % 3) * megabyte
        values += [
            Value(f"w{i}", nbytes, Role.PARAMETER, home),
            Value(f"b{i}", 4096, Role.PARAMETER, home),
            Value(f"w{i}:grad", nbytes, Role.GRADIENT, home),
            Value(f"h{i}", megabyte, Role.INTERMEDIATE),
        ]
        before = f"h{i - 1}" if i else "x"
        shared = ("embedding",) if i in (0, num_kernels - 1) else ()
        reads = (before, f"w{i}", f"b{i}", f"b{max(0, i - 4)}", *shared)
        reads = tuple(dict.fromkeys(reads))
        steps.append(Compute(f"k{i}", reads, (f"h{i}", f"w{i}:grad"), 5 * megabyte))
    gradients = tuple(value.name for value in values if value.role is Role.GRADIENT)
    return Schedule("layers", tuple(values), tuple(steps), gradients)

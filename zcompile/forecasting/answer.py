"""What a forecast says: data that prints itself and goes into JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from io import StringIO

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from zcompile.errors import size_text
from zcompile.ir import Channel, Role, Tier
from zcompile.report.units import mebibytes

TABLE_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Holding:
    """What one role holds on one tier: how many values, and their bytes.

    They rest there, but for what is saved for backward: that is there between the two only.
    """

    role: Role
    tier: Tier
    num_values: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Timing:
    """One iteration as simulated, and what stands in its way.

    ``exposed_s`` of ``seconds`` goes to waiting for copies and to sharing resources.
    ``busy_s`` is how long each channel moves something, ``kernel_s`` how long kernels run
    where nothing else does.  ``bound_s`` is what no plan can beat, ``binding`` the resource
    that decides it, in words, and ``gap`` by which share of it the plan is slower.
    ``moved_bytes`` is what goes over each channel.
    """

    seconds: float
    exposed_s: float
    kernel_s: float
    busy_s: Mapping[Channel, float]
    bound_s: float
    binding: str
    gap: float
    tokens_per_s: float | None = None
    moved_bytes: Mapping[Channel, int] = field(default_factory=dict[Channel, int])

    def bandwidth_for(self, share: float) -> dict[Channel, float]:
        """Return the bytes a second that each channel needs for ``share`` of the time in kernels.

        That is solved for copies that hide behind kernels, each channel with resources of its
        own: an iteration then takes as long as the longest of them.

        Raises ``ValueError`` unless the share lies between 0 and 1.
        """
        if not 0 < share < 1:
            raise ValueError(f"share={share} must be between 0 and 1")
        if not self.kernel_s:
            return {}
        return {each: share * moved / self.kernel_s for each, moved in self.moved_bytes.items()}


@dataclass(frozen=True, slots=True)
class Batch:
    """The largest batch for which there is a plan, and ``how`` it was found.

    ``size`` is ``None`` if no batch fits, or if the question makes no sense: ``how`` says.
    """

    size: int | None
    how: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """What training a model under some options on some machine comes to.

    ``fits`` says whether there is a plan within the budgets and the machine, ``why_not`` what
    stands in the way.  ``budgets`` are the bytes that each tier may hold (``None``: no limit)
    and ``peak_bytes`` the most that each holds at any moment of an iteration; what lies where is
    in ``holdings``.  ``placement`` names the tier of every parameter, gradient and
    state.  ``smallest_budget_bytes`` is the least ``device_budget`` under which there is a plan.

    ``timing`` is ``None`` if there is no plan, or an operation has no time on the machine;
    ``untimed`` then names such operations.  ``captured`` says which layers were traced.
    ``made_again_bytes`` is what backward makes again of what forward saves.
    """

    model: str
    machine: str
    num_parameters: int
    captured: str
    budgets: Mapping[Tier, int | None]
    fits: bool
    why_not: str
    smallest_budget_bytes: int
    largest_batch: Batch
    holdings: tuple[Holding, ...] = ()
    peak_bytes: Mapping[Tier, int] = field(default_factory=dict[Tier, int])
    timing: Timing | None = None
    untimed: tuple[str, ...] = ()
    placement: Mapping[str, Tier] = field(default_factory=dict[str, Tier])
    made_again_bytes: int = 0

    def bytes_at_rest(self, tier: Tier | str) -> int:
        """Return what is at home on ``tier``, such as ``"nvme"``, between iterations."""
        lasting = (each for each in self.holdings if each.role is not Role.SAVED)
        return sum(each.nbytes for each in lasting if each.tier == tier)

    def as_dict(self) -> dict[str, object]:
        """Return the forecast as JSON has it: mappings, lists, text and numbers."""
        found: dict[str, object] = json.loads(json.dumps(asdict(self)))
        return found

    def __str__(self) -> str:
        text = StringIO()
        Console(file=text, width=TABLE_WIDTH, no_color=True).print(self)
        return text.getvalue().rstrip()

    def __rich__(self) -> Group:
        lines = [f"{self.model} on {self.machine}, {self.captured}"]
        if not self.fits:
            lines.append(f"does not fit: {self.why_not}")
        return Group(*map(Text, lines), self._bytes(), self._facts())

    def _bytes(self) -> Table:
        """Return the bytes of each role by tier, and what each tier holds at most."""
        table = Table(expand=False)
        table.add_column("")
        for tier in Tier:
            table.add_column(str(tier), justify="right")
        for role in dict.fromkeys(each.role for each in self.holdings):
            cells = (self._held(role, tier) for tier in Tier)
            name = "saved for backward" if role is Role.SAVED else f"{role}s at rest"
            table.add_row(name, *(_amount(each) if each else "" for each in cells))
        if self.peak_bytes:
            table.add_row("peak", *(_amount(self.peak_bytes[tier]) for tier in Tier))
        limits = (self.budgets[tier] for tier in Tier)
        table.add_row("may hold", *("" if each is None else _amount(each) for each in limits))
        return table

    def _held(self, role: Role, tier: Tier) -> int:
        return sum(e.nbytes for e in self.holdings if (e.role, e.tier) == (role, tier))

    def _facts(self) -> Table:
        table = Table(show_header=False, expand=False)
        table.add_column("what")
        table.add_column("value", overflow="fold")
        for what, value in self._rows():
            table.add_row(what, value)
        return table

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "fits", "yes" if self.fits else "no"
        yield "parameters", f"{self.num_parameters:,}"
        yield "smallest device_budget", size_text(self.smallest_budget_bytes)
        if self.made_again_bytes:
            yield "made again by backward", _amount(self.made_again_bytes)
        size = self.largest_batch.size
        yield "largest batch", f"{'-' if size is None else size} ({self.largest_batch.how})"
        if self.timing is not None:
            yield from _timing_rows(self.timing)
        elif self.fits:
            yield "iteration", f"no time is known for {', '.join(self.untimed)}"


def _timing_rows(timing: Timing) -> Iterator[tuple[str, str]]:
    yield "iteration", f"{timing.seconds:.3f} s, of it {timing.exposed_s:.3f} s exposed"
    if timing.tokens_per_s is not None:
        yield "tokens/s", f"{timing.tokens_per_s:,.1f}"
    yield "kernels", f"{timing.kernel_s:.3f} s"
    for channel, seconds in timing.busy_s.items():
        yield f"{channel} busy", f"{seconds:.3f} s"
    needed = ", ".join(
        f"{channel} {rate / 1e9:.3g} GB/s" for channel, rate in timing.bandwidth_for(0.9).items()
    )
    if needed:
        yield "for 90 % in kernels", needed
    yield "no plan is faster than", f"{timing.bound_s:.3f} s (this one is {timing.gap:.1%} above)"
    yield "bottleneck", timing.binding


def _amount(nbytes: int) -> str:
    """Return ``nbytes`` in the unit that people would use.

    >>> _amount(0), _amount(5 << 20), _amount(3 << 39)
    ('0 B', '5.0 MiB', '1,536.0 GiB')
    """
    if nbytes < 1 << 30:
        return mebibytes(nbytes)
    return f"{nbytes / (1 << 30):,.1f} GiB"

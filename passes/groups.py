"""Groups: many values as few, for a linear program that looks at some kernels only.

Note [Sampling].  A program that holds the budget at some kernels, not at all, allows more, so
its optimum is still a lower bound.  Values whose pauses begin and end between the same sampled
kernels differ in nothing that such a program sees, so they are one group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from zcompile.ir import MANAGED_ROLES, Role
from zcompile.passes.cycle import Cycle, CycleKernel, Pause

MANY_KERNELS = 2_000
"""Up to so many kernels values of different size are told apart: small copies are the slow ones."""


class Window(NamedTuple):
    """A pause as the sampled kernels see it.

    It begins before sample ``start`` and ends before sample ``end``, ``num_samples`` later:
    the bytes leave in the interval that leads to ``start``, and are due in the one that leads
    to ``end``.  ``first`` says that it is the first live pause of its version.  Where the
    kernel before or after it is sampled and goes in pieces, the bytes leave, or are due, while
    that one runs: ``leaves_during`` and ``due_during`` are the samples, -1 if there is none.
    """

    start: int
    end: int
    num_samples: int
    version: int
    written: bool
    needed: bool
    crosses: bool
    live: bool
    first: bool
    leaves_during: int = -1
    due_during: int = -1


@dataclass(frozen=True, slots=True)
class Group:
    """Values that look the same: their numbers in the cycle, and ``nbytes`` of all together.

    ``lasting`` values keep their home on the device, if it is there, in dead pauses too.
    ``largest_bytes`` is the size of the largest.  ``remake_s_per_byte`` is the least time that
    making one of their bytes again takes; ``None`` if it cannot be.
    """

    windows: tuple[Window, ...]
    members: tuple[int, ...]
    lasting: bool
    nbytes: int
    largest_bytes: int
    remake_s_per_byte: float | None


def sampled(cycle: Cycle, count: int) -> tuple[int, ...]:
    """Return ``count`` kernels, or fewer, in order: half spaced evenly by number, half by time.

    Each is the one of its stretch that holds the most.
    """
    kernels = cycle.kernels
    if len(kernels) <= count:
        return tuple(range(len(kernels)))
    half = count // 2
    by_number = [len(kernels) * at // (count - half) for at in range(count - half + 1)]
    passed = list(accumulate(kernel.seconds for kernel in kernels))
    by_time = [bisect_left(passed, passed[-1] * at / half) for at in range(half)]
    chosen = {
        *_fullest(kernels, by_number),
        *_fullest(kernels, (*by_time, len(kernels))),
    }
    return tuple(sorted(chosen))


def at_edges(cycle: Cycle) -> tuple[int, ...]:
    """Return the kernels with which graphs begin and end."""
    last = len(cycle.kernels) - 1
    return tuple(
        at
        for at, kernel in enumerate(cycle.kernels)
        if at in (0, last)
        or cycle.kernels[at - 1].run != kernel.run
        or cycle.kernels[at + 1].run != kernel.run
    )


def _fullest(kernels: Sequence[CycleKernel], edges: Sequence[int]) -> Iterable[int]:
    for first, end in pairwise(edges):
        if first < end:
            yield max(range(first, end), key=lambda at: (kernels[at].held_bytes, -at))


def grouped(cycle: Cycle, samples: Sequence[int], *, homes: bool = False) -> tuple[Group, ...]:
    """Return the values of ``cycle`` in groups, in the order of their first members.

    Values of no bytes, and such as no sampled kernel could do without, are left out.  With
    ``homes`` a gradient that is made anew has a further window, behind those of its pauses: up
    to the end of its graph the one of before may still lie at home.
    """
    rates = _remake_rates(cycle)
    ends = _run_ends(cycle) if homes else ()
    is_small = len(cycle.kernels) <= MANY_KERNELS
    pieces = {kernel: at for at, kernel in enumerate(samples) if cycle.kernels[kernel].in_pieces}
    found: dict[tuple[object, ...], list[int]] = {}
    windows_of: dict[tuple[object, ...], tuple[Window, ...]] = {}
    for number, value in enumerate(cycle.values):
        windows = _windows(value.pauses, samples, pieces)
        if ends and value.role is Role.GRADIENT:
            windows += _doubled(cycle, value.pauses, samples, ends)
        if not value.nbytes or not any(each.num_samples or each.crosses for each in windows):
            continue
        size = value.nbytes.bit_length() if is_small else 0
        key = (windows, value.maker is None, value.role in MANAGED_ROLES, size)
        windows_of[key] = windows
        found.setdefault(key, []).append(number)
    return tuple(
        _group(cycle, windows_of[key], tuple(members), rates) for key, members in found.items()
    )


def _group(
    cycle: Cycle, windows: tuple[Window, ...], members: tuple[int, ...], rates: dict[int, float]
) -> Group:
    values = [cycle.values[number] for number in members]
    makers = [each.maker for each in values if each.maker is not None]
    return Group(
        windows,
        members,
        all(each.role in MANAGED_ROLES for each in values),
        sum(each.nbytes for each in values),
        max(each.nbytes for each in values),
        min(rates[maker] for maker in makers) if makers else None,
    )


def _remake_rates(cycle: Cycle) -> dict[int, float]:
    """Return by kernel the seconds for each byte that it could make again."""
    nbytes: dict[int, int] = {}
    for value in cycle.values:
        if value.maker is not None and value.nbytes:
            nbytes[value.maker] = nbytes.get(value.maker, 0) + value.nbytes
    return {maker: cycle.kernels[maker].seconds / total for maker, total in nbytes.items()}


def _run_ends(cycle: Cycle) -> tuple[int, ...]:
    """Return by run the number of the kernel after its last one."""
    found: list[int] = []
    for at, kernel in enumerate(cycle.kernels):
        del found[kernel.run :]
        found.append(at + 1)
    return tuple(found)


def _doubled(
    cycle: Cycle, pauses: Sequence[Pause], samples: Sequence[int], ends: Sequence[int]
) -> tuple[Window, ...]:
    found: list[Window] = []
    for pause in pauses:
        if pause.needed:
            continue
        made = pause.until
        start = bisect_left(samples, made)
        end = bisect_left(samples, ends[cycle.kernels[made].run])
        at = (start % len(samples), end % len(samples), max(0, end - start))
        found.append(Window(*at, -1, False, False, False, False, False))
    return tuple(found)


def _windows(
    pauses: Sequence[Pause], samples: Sequence[int], pieces: Mapping[int, int]
) -> tuple[Window, ...]:
    """Return ``pauses`` as ``samples`` see them; ``pieces`` has those kernels that go in pieces."""
    num = len(samples)
    found: list[Window] = []
    for pause in pauses:
        start, end = bisect_right(samples, pause.after), bisect_left(samples, pause.until)
        covered = end - start if pause.after < pause.until else num - start + end
        window = Window(
            start % num,
            end % num,
            max(0, covered),
            pause.version,
            pause.written,
            pause.needed,
            pause.crosses,
            pause.live,
            pause.fresh and pause.live,
            pieces.get(pause.after, -1),
            pieces.get(pause.until, -1),
        )
        found.append(window)
    return tuple(found)

"""A schedule is one flat, immutable list of steps over named values.

It holds names and numbers, never tensors, FX nodes, streams or callables, so it can be
printed, compared, stored and reasoned about without a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

PAGE_BYTES = 4096
"""Direct I/O moves whole pages, so every arena slot and every extent is a multiple of this."""


def page_aligned(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to whole pages.

    >>> page_aligned(1), page_aligned(4096), page_aligned(0)
    (4096, 4096, 0)
    """
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


class Tier(StrEnum):
    """A level of memory, fastest first."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


class Role(StrEnum):
    """What a value is to the training iteration.

    An activation that backward needs is ``saved`` if it may leave the device until then.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    ACTIVATION = "activation"
    SAVED = "saved"
    GRADIENT = "gradient"
    STATE = "state"
    INTERMEDIATE = "intermediate"


MANAGED_ROLES = frozenset({Role.PARAMETER, Role.GRADIENT, Role.STATE})
"""Roles whose values last: they have a home, and may have it away from the device."""

MOVABLE_ROLES = MANAGED_ROLES | {Role.SAVED}
"""Roles whose values may be away from the device while no kernel needs them."""


@dataclass(frozen=True, slots=True)
class Value:
    """One storage known by name; views of it are reads of it.

    ``home`` is the tier where the value rests when no step needs it: an input has its
    home before step 0, a gradient reaches its home through an ``Offload``.  A value whose
    home is the device lies in ordinary device memory from the step that makes it (or from
    the start, for an input) until its last read, or to the end if it is an output or
    ``held``: somebody outside the schedule keeps it, so its bytes never become free.
    """

    name: str
    nbytes: int
    role: Role
    home: Tier = Tier.DEVICE
    held: bool = False


@dataclass(frozen=True, slots=True)
class Compute:
    """Run one kernel (a segment of the captured graph).

    ``transient_bytes`` is what the kernel holds at its worst moment beyond its reads and
    what was live before it; its writes are counted in it while it runs.

    A kernel ``repeats`` if it gives the same bits whenever it runs on the same reads.  One of
    forward that runs ``again`` in backward stands there as a further step, called
    ``forward.0/seg_5``: it makes anew what was saved, instead of keeping it.
    """

    kernel: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    transient_bytes: int = 0
    repeats: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """Run the optimizer on one bucket: ``writes`` are changed in place on the device."""

    bucket: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    transient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """Start copying ``value`` from its home into the arena; returns at once.

    ``offset`` is the place in the arena, in bytes; ``None`` until space is assigned.
    """

    ticket: int
    value: str
    src: Tier
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Block until the fetch that carries ``ticket`` has landed; ``value`` is then resident."""

    ticket: int
    value: str


@dataclass(frozen=True, slots=True)
class Offload:
    """Start copying ``value`` out of the device to ``dst``; frees nothing."""

    ticket: int
    value: str
    dst: Tier


@dataclass(frozen=True, slots=True)
class Release:
    """Free the device copy of ``value``.

    ``after`` is the ticket of the offload that must have landed first: required when the
    device copy is newer than every other copy, ``None`` when a clean copy rests at home.
    """

    value: str
    after: int | None = None


Step = Compute | Update | Fetch | Wait | Offload | Release
Kernel = Compute | Update
KERNELS = (Compute, Update)
"""The types of `Kernel`: asking for one of a tuple is faster than making their union each time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The whole program of one graph; passes map one ``Schedule`` to another.

    ``outputs`` are the values that leave the graph.  ``arena_bytes`` is the size of the
    arena that the offsets of fetches assume; 0 until space is assigned or if nothing is
    fetched.

    An arena is *static* unless the schedule ``vacates``: all its bytes are held from the
    first step to the last.  Where it vacates, a release gives the slot of its copy back to
    the system, and a slot is held from the ``Fetch`` of its copy to the ``Release``.
    """

    name: str
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...] = ()
    arena_bytes: int = 0
    vacates: bool = False

    def with_steps(self, steps: tuple[Step, ...]) -> Schedule:
        return replace(self, steps=steps)

    def value(self, name: str) -> Value:
        """Return the value called ``name``; a ``KeyError`` names it when there is none."""
        for each in self.values:
            if each.name == name:
                return each
        raise KeyError(name)

"""Where the bytes of a tensor rest, and whether anybody but a schedule has had them since.

Note [Writes that torch does not count].  ``GradScaler.unscale_`` and writes through ``.data``
leave the count of changes as it was.  They go through the mapping, though, and so bring pages
of the file into the page cache, which schedules move their bytes past.  A rest holds only if the
kernel says that no page of the extent has been there since it was written; where it cannot say,
none does.  Extents of rests are watched, since the kernel forgets: see ``extents``.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from zcompile.runtime.extents import Lease
from zcompile.runtime.homes import Homes
from zcompile.runtime.mapping import HomeMapping


def untouched(lease: Lease) -> bool:
    """Say whether nobody has read or written the extent through the page cache, for certain."""
    try:
        return lease.untouched()
    except OSError:  # an older kernel, or a filter of system calls
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """A tensor as it was at one moment: alone in a home in the file, and of some version.

    It keeps neither the tensor nor its memory, nor the extent.
    """

    mapping: HomeMapping
    lease: weakref.ref[Lease]
    version: int

    @classmethod
    def of(cls, homes: Homes, tensor: Tensor) -> Self | None:
        """Return how ``tensor`` rests; ``None`` if it does not fill a home in the file alone."""
        if tensor.is_inference():
            return None
        place = homes.find(tensor)
        if place is None or place.byte_offset or place.home.nbytes != tensor.nbytes:
            return None
        lease = place.home.lease
        if lease is None:
            return None
        lease.watch()
        return cls(place.home.mapping, weakref.ref(lease), tensor._version)

    def holds(self, homes: Homes, tensor: Tensor) -> bool:
        """Say whether ``tensor`` is the same one, with the same bytes, for certain."""
        now, lease = Rest.of(homes, tensor), self.lease()
        return (
            now is not None
            and lease is not None
            and now.mapping is self.mapping
            and now.lease() is lease
            and now.version == self.version
            and untouched(lease)
        )

"""Where updated values are written, so that an update happens whole or not at all."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from torch import Tensor

from zcompile.runtime.binding import Layout
from zcompile.runtime.extents import Lease
from zcompile.runtime.home import Home
from zcompile.runtime.homes import Homes
from zcompile.runtime.spot import InExtent, Spot, spot_of

ROW_BYTES = 64 << 20
"""Shadows are leased in rows of about this size: a parameter and its states come side by side,
and so do small parameters that are updated together, so that one request moves them all."""


class Shadows:
    """For each home in the file that an update replaces: the extent with its next bytes.

    ``sources`` are the tensors whose bytes are replaced, by value name.  Several may be
    pieces of one home.  A home has a shadow if they cover it and the kernel has room for its
    mapping; other homes, and memory that is no home in the file, are written in place.
    """

    def __init__(self, homes: Homes, sources: Mapping[str, Tensor]) -> None:
        self._homes = homes
        self._sources = sources
        self._leases: dict[Home, Lease] = {}
        self._prepared = not sources

    def prepare(self) -> None:
        """Lease all the space that the update needs; ``StorageError`` if there is too little."""
        covered_bytes = Counter[Home]()
        for source in self._sources.values():
            if place := self._homes.find(source):
                covered_bytes[place.home] += Layout.of(source).nbytes
        covered = [
            home
            for home, nbytes in covered_bytes.items()
            if home.lease is not None and nbytes == home.nbytes
        ]
        for row in _rows(self._homes.may_be_swapped(covered)):
            self._leases.update(zip(row, self._homes.lease_row(row), strict=True))
        if len(self._leases) < len(covered):
            warnings.warn(
                "some tensors in files are updated in place, and a failed update may leave them "
                "changed: the process has too many mappings to replace them whole; raise the "
                "system setting vm.max_map_count, or keep fewer tensors in files",
                stacklevel=2,
            )
        self._prepared = True

    def spot(self, value: str) -> Spot:
        """Return where the next bytes of ``value`` go."""
        assert self._prepared, "an update is prepared before its first step"
        source = self._sources[value]
        place = self._homes.find(source)
        if place is not None and place.home in self._leases:
            return InExtent(self._leases[place.home], place.byte_offset)
        return spot_of(self._homes, source)

    def commit(self, written: Collection[str]) -> tuple[Lease, ...]:
        """Let every home rest in its shadow; return the extents that they rested in before.

        ``written`` are the values that have landed in their spots.
        """
        missing = self._sources.keys() - written
        assert not missing, f"no new bytes of {sorted(missing)} have been offloaded"
        replaced: list[Lease] = []
        for home, lease in self._leases.items():
            assert home.lease is not None
            replaced.append(home.lease)
            self._homes.swap(home, lease)
        self.drop()
        return tuple(replaced)

    def drop(self) -> None:
        """Let go of the shadows."""
        self._leases.clear()


def _rows(homes: Sequence[Home]) -> Iterator[list[Home]]:
    """Cut ``homes`` into rows of about ``ROW_BYTES``, in order."""
    row: list[Home] = []
    row_bytes = 0
    for home in homes:
        if row and row_bytes + home.nbytes > ROW_BYTES:
            yield row
            row, row_bytes = [], 0
        row.append(home)
        row_bytes += home.nbytes
    if row:
        yield row

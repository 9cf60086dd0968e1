"""Makes homes, and finds the home that a tensor lies in."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from zcompile.ir import Tier
from zcompile.runtime import procfs
from zcompile.runtime.adoption import LeftAlone, adopt
from zcompile.runtime.buffer import Buffer, span, tensor_over
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.home import Home, HomeTable, Place
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.mapping import FileMapper, HomeMapping, map_host
from zcompile.runtime.procfs import FilePages
from zcompile.runtime.transfers import Copies
from zcompile.runtime.trimmer import WINDOW_BYTES, Trimmer

APART_FRACTION = 4
"""Homes that were swapped may take half of the kernel's table of mappings, at two entries each."""

__all__ = ["Home", "Homes", "LeftAlone", "Place"]


class Homes:
    """The homes of one machine.

    ``file`` is where homes on nvme go; without one there are none.  Homes on the device
    tier are ordinary memory and have no record here.  ``max_mappings`` is how many mappings a
    process may have, by default what the kernel says.

    Schedules move bytes past the mappings, so pages that are resident were touched by other
    code.  ``on_eager`` is called with their bytes, in whole pages, by whichever thread
    drops them.
    """

    def __init__(
        self,
        file: ExtentFile | None,
        ledger: Ledger,
        window_bytes: int = WINDOW_BYTES,
        on_eager: Callable[[int], None] | None = None,
        *,
        max_mappings: int | None = None,
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._on_eager = on_eager or ledger.eager
        self._pages: FilePages | None = None
        self._measuring = Lock()
        self._mapper = FileMapper()
        self._table = HomeTable()
        self._dead: deque[HomeMapping] = deque()
        self._lock = Lock()
        self._num_apart = 0
        self._max_apart = (max_mappings or procfs.max_mappings()) // APART_FRACTION
        self._pid = os.getpid()
        self._trimmer = Trimmer(self.trim, window_bytes)

    def find(self, tensor: Tensor) -> Place | None:
        """Return where ``tensor``, or the storage it is a view of, rests; ``None`` elsewhere.

        Looks at the address alone: its storage stays unseen by Python, and a tensor
        without elements, or without one dense memory, is nowhere.  Takes no lock.
        """
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return None
        return self._table.find(tensor.data_ptr())

    def fresh(
        self,
        label: str,
        tier: Tier,
        dtype: torch.dtype,
        shape: Sequence[int],
        stride: Sequence[int],
    ) -> Tensor:
        """Return a new tensor with a home of its own on ``tier``; what it holds is undefined.

        Nobody else holds it, nor has seen its storage: autograd adopts it as a gradient.
        """
        nbytes = span(shape, stride) * dtype.itemsize
        if tier is Tier.DEVICE or nbytes == 0:
            return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
        home, buffer = self.make(label, tier, nbytes)
        self.register([home])
        return tensor_over(buffer, 0, dtype, shape, stride)

    def adopt(
        self, tensors: Sequence[tuple[str, Tensor]], tier: Tier, copies: Copies
    ) -> tuple[LeftAlone, ...]:
        """Move the storages of labelled tensors to ``tier``: see ``adoption.adopt``."""
        self.look()
        return adopt(self, tensors, tier, copies)

    def swap(self, home: Home, lease: Lease) -> None:
        """Let ``home`` rest in the extent of ``lease`` from now on, at the same address.

        The caller holds a tensor over it, and bumps its version.  The extent before is free
        again when nobody else holds its lease, such as a read in flight.
        """
        with self._lock:
            self._num_apart += not home.mapping.apart
            home.mapping.remap(lease)

    def may_be_swapped(self, homes: Sequence[Home]) -> Sequence[Home]:
        """Return the first of ``homes`` on nvme, as many as the kernel has room for.

        A home that was swapped needs one or two entries in the kernel's table of mappings,
        whose size, ``vm.max_map_count``, is the limit of all memory of the process.
        """
        room = self._max_apart - self._num_apart
        found: list[Home] = []
        for home in homes:
            room -= not home.mapping.apart
            if home.mapping.apart or room >= 0:
                found.append(home)
        return found

    def lease(self, nbytes: int, label: str) -> Lease:
        """Lease an extent of the file; see ``ExtentFile.lease``."""
        assert self._file is not None, f"{label} has no file to go to"
        return self._file.lease(nbytes, label)

    def lease_row(self, homes: Sequence[Home]) -> list[Lease]:
        """Lease an extent for each of ``homes``, side by side where that can be."""
        assert self._file is not None, f"{homes[0].label} has no file to go to"
        return self._file.lease_row([(home.nbytes, home.label) for home in homes])

    def make(
        self, label: str, tier: Tier, nbytes: int, lease: Lease | None = None
    ) -> tuple[Home, Buffer]:
        """Return a new home and the buffer that keeps it; ``find`` knows it once registered.

        On nvme it rests in ``lease``, by default a new one.
        """
        self._check_process(label)
        if tier is Tier.NVME:
            mapping = self._mapper.map(lease or self.lease(nbytes, label))
        else:
            assert tier is Tier.HOST, f"a home on {tier} is ordinary memory"
            mapping = map_host(nbytes)
        self._ledger.hold(tier, mapping.nbytes)
        buffer = mapping.open(partial(_bury, self._dead, self._ledger, tier))
        return Home(label, tier, nbytes, mapping), buffer

    def register(self, homes: Sequence[Home]) -> None:
        """Let ``find`` know ``homes``."""
        with self._lock:
            if self._dead:
                dead = [self._dead.popleft() for _ in range(len(self._dead))]
                self._num_apart -= sum(mapping.apart for mapping in dead)
                self._table = self._table.without(dead)
            self._table = self._table.with_homes(homes)
        if any(home.tier is Tier.NVME for home in homes):
            with self._lock:
                self._pages = self._pages or FilePages()
            self._trimmer.start()

    def look(self) -> None:
        """Let sums be unknown of what code beside the schedules may have written."""
        if self._file is not None:
            self._file.look()

    def trim(self) -> None:
        """Drop all resident pages of homes on nvme, and count them; no byte is lost."""
        dropped = self._measured_trim()
        if dropped > 0:
            self._on_eager(dropped)

    def _measured_trim(self) -> int:
        # Whoever comes while another thread measures trims, too, and leaves the counting to
        # it.  Nobody waits: a child may have been forked in the middle of a measurement.
        if not self._measuring.acquire(blocking=False):
            self._mapper.trim()
            return 0
        try:
            pages = self._pages
            before = pages.resident_bytes() if pages is not None else 0
            self._mapper.trim()
            return before - pages.resident_bytes() if pages is not None else 0
        finally:
            self._measuring.release()

    def close(self) -> None:
        """End the trimming thread.  Tensors over homes stay valid."""
        self._trimmer.stop()
        self._pages = None

    def _check_process(self, label: str) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"process {os.getpid()} was forked from process {self._pid} and cannot make a "
                f"home for {label}: compile the model in the process that trains it"
            )


def _bury(dead: deque[HomeMapping], ledger: Ledger, tier: Tier, mapping: HomeMapping) -> None:
    """Take note that a home has gone; a finalizer, so it takes no lock."""
    dead.append(mapping)
    ledger.drop(tier, mapping.nbytes)

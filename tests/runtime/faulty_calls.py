"""System calls that fail when a test wants them to."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from zcompile.runtime.syscalls import SystemCalls

Fault = Callable[[int, int], int]
"""From the number of the call and the bytes asked for to the bytes to ask for instead."""


class FaultyCalls(SystemCalls):
    """Real calls that a fault may cut short or replace by an ``OSError``."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.fds: list[int] = []

    def read(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        return super().read(fd, address, self._after_fault(fd, nbytes), offset)

    def write(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        return super().write(fd, address, self._after_fault(fd, nbytes), offset)

    def _after_fault(self, fd: int, nbytes: int) -> int:
        self.fds.append(fd)
        return self.fault(len(self.fds), nbytes) if self.fault else nbytes

    @contextmanager
    def suffering(self, fault: Fault) -> Generator[None, None, None]:
        self.fds.clear()
        self.fault = fault
        yield
        self.fault = None


def raising(code: int, at_call: int | None = None) -> Fault:
    def fault(call: int, nbytes: int) -> int:
        if at_call in (None, call):
            raise OSError(code, os.strerror(code))
        return nbytes

    return fault

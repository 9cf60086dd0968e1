"""System calls that fail when a test wants them to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.native_io import IOCall, NativeIO
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


class NativeFaults:
    """The same for the native engine: the faults go in at its own seam."""

    def __init__(self, io: NativeIO, file: ExtentFile) -> None:
        self._io = io
        self._file = file
        self.fds: list[int | None] = []

    @contextmanager
    def suffering(self, fault: Fault) -> Generator[None, None, None]:
        self.fds.clear()

        def inject(after: bool, call: IOCall) -> None:
            if after:
                return
            file = self._file.files[0]
            self.fds.append(file.direct_fd if call.direct else file.fd)
            try:
                call.nbytes = fault(len(self.fds), call.nbytes)
            except OSError as error:
                call.result = -(error.errno or errno.EIO)

        self._io.inject(inject)
        yield
        self._io.inject(None)


def raising(code: int, at_call: int | None = None) -> Fault:
    def fault(call: int, nbytes: int) -> int:
        if at_call in (None, call):
            raise OSError(code, os.strerror(code))
        return nbytes

    return fault

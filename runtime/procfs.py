"""What the kernel says about this process: its memory and its disk traffic."""

from __future__ import annotations

import os
import re
import weakref
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(?P<path>.*)")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Resident bytes of this process; ``resident_bytes`` (VmRSS) is the sum of the others.

    ``file_bytes`` are pages of mapped files: libraries, and homes until they are trimmed.
    """

    resident_bytes: int
    anonymous_bytes: int
    file_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """The memory of the machine, and how much of it could be had without swapping."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class DiskTraffic:
    """Bytes that this process made the block layer move, the page cache left out."""

    read_bytes: int
    write_bytes: int

    def since(self, earlier: DiskTraffic) -> DiskTraffic:
        """Return the traffic after ``earlier``."""
        return DiskTraffic(
            self.read_bytes - earlier.read_bytes, self.write_bytes - earlier.write_bytes
        )


def memory_use() -> MemoryUse:
    """Read ``/proc/self/status``."""
    kib = _fields(Path("/proc/self/status"))
    return MemoryUse(
        resident_bytes=kib["VmRSS"] << 10,
        anonymous_bytes=kib["RssAnon"] << 10,
        file_bytes=kib["RssFile"] << 10,
        shared_bytes=kib["RssShmem"] << 10,
    )


def system_memory() -> SystemMemory:
    """Read ``/proc/meminfo``."""
    kib = _fields(Path("/proc/meminfo"))
    return SystemMemory(kib["MemTotal"] << 10, kib["MemAvailable"] << 10)


def busy_seconds() -> float:
    """Return how long the processors of the machine have worked, for whomever (``/proc/stat``)."""
    _, user, nice, system, _idle, _iowait, irq, softirq, *_ = _first_line(Path("/proc/stat"))
    ticks = sum(map(int, (user, nice, system, irq, softirq)))
    return ticks / os.sysconf("SC_CLK_TCK")


def disk_traffic() -> DiskTraffic:
    """Read ``/proc/self/io``.  A write counts when its page is dirtied or written directly."""
    count = _fields(Path("/proc/self/io"))
    return DiskTraffic(count["read_bytes"], count["write_bytes"])


def resident_bytes_of(file: Path) -> int:
    """Return how much of ``file`` is resident in mappings of this process (``smaps``)."""
    total = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := _MAPPING.fullmatch(line):
            inside = mapping["path"] == str(file)
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def max_mappings() -> int:
    """Return how many mappings a process may have (``vm.max_map_count``)."""
    return int(Path("/proc/sys/vm/max_map_count").read_text())


class FilePages:
    """A cheap reading of the resident bytes of mapped files, made to be polled.

    Its descriptor is closed with it, or before by ``close``.
    """

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/statm", os.O_RDONLY)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._closing = weakref.finalize(self, os.close, self._fd)
        self._closing.atexit = False

    def resident_bytes(self) -> int:
        """Return the resident bytes of all mapped files and shared memory."""
        return int(os.pread(self._fd, 128, 0).split()[2]) * self._page_bytes

    def close(self) -> None:
        self._closing()


class ProcessPages:
    """A cheap reading of the anonymous resident bytes of this process."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/statm", os.O_RDONLY)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def anonymous_bytes(self) -> int:
        """Return the resident bytes that belong to no file."""
        _, resident, shared, *_ = os.pread(self._fd, 128, 0).split()
        return (int(resident) - int(shared)) * self._page_bytes

    def close(self) -> None:
        os.close(self._fd)


def _first_line(file: Path) -> list[str]:
    with file.open() as lines:
        return lines.readline().split()


def _fields(file: Path) -> dict[str, int]:
    """Return the numbers of a file of lines like ``VmRSS:   12 kB``, by name."""
    lines = (line.partition(":") for line in file.read_text().splitlines())
    numbers = ((name, rest.split()) for name, _, rest in lines)
    return {name: int(words[0]) for name, words in numbers if words and words[0].isdecimal()}

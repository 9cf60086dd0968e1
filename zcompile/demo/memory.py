"""How much memory the process takes for a model, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"


class ProcessMemory:
    """Resident bytes of this process above those at the moment of construction.

    The peak is the kernel's own (VmHWM), which no moment escapes, as it would a sampler.
    """

    def __init__(self) -> None:
        self._before_bytes = _resident("VmRSS")

    def now_bytes(self) -> int:
        return _resident("VmRSS") - self._before_bytes

    def restart_peak(self) -> None:
        """Forget the peak so far."""
        _CLEAR_REFS.write_text(_RESET_PEAK)

    def peak_bytes(self) -> int:
        """Return the most there was since the peak was last restarted."""
        return _resident("VmHWM") - self._before_bytes


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10

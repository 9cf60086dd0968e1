"""Quantities as people read them."""

from __future__ import annotations

from zcompile.runtime.ledger import Channel

CHANNEL_LABELS = {
    Channel.NVME_READ: "NVMe read",
    Channel.NVME_WRITE: "NVMe write",
    Channel.H2D: "host to device",
    Channel.D2H: "device to host",
}


def mebibytes(nbytes: int) -> str:
    """Return ``nbytes`` in MiB, the unit in which budgets are thought of; little ones in KiB or B.

    >>> mebibytes(512 << 20), mebibytes(3 << 13), mebibytes(100), mebibytes(0)
    ('512.0 MiB', '24.0 KiB', '100 B', '0 B')
    """
    if abs(nbytes) >= 1 << 20:
        return f"{nbytes / (1 << 20):,.1f} MiB"
    if abs(nbytes) >= 1 << 10:
        return f"{nbytes / (1 << 10):.1f} KiB"
    return f"{nbytes} B"


def clipped(text: str, width: int) -> str:
    """Return ``text`` cut to ``width`` characters, an ellipsis showing that it was.

    >>> clipped("compute seg_1(%x)", 12), clipped("short", 12)
    ('compute s...', 'short')
    """
    return text if len(text) <= width else text[: width - 3] + "..."

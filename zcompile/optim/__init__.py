"""Takeover of stock optimizers: their update, streamed through a bounded window.

``Adam``, ``AdamW`` and ``SGD`` are torch's own classes, the ones that are taken over, by a
second name: a script may say ``zcompile.optim.AdamW``, and does the same as with torch's.
"""

from torch.optim import SGD, Adam, AdamW

from zcompile.optim.host import Host
from zcompile.optim.takeover import Takeover

__all__ = ["SGD", "Adam", "AdamW", "Host", "Takeover"]

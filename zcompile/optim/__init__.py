"""Takeover of stock optimizers: their update, streamed through a bounded window."""

from zcompile.optim.host import Host
from zcompile.optim.takeover import Takeover

__all__ = ["Host", "Takeover"]

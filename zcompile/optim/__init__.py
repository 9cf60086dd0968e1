"""Takeover of stock optimizers: their update, streamed through a bounded window.

``Adagrad``, ``Adam``, ``AdamW``, ``RMSprop`` and ``SGD`` are torch's own classes, the ones that are
taken over, by a second name: a script may say ``zcompile.optim.AdamW``, and does the same as with
torch's.  ``Lion`` is ours.
"""

from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from zcompile.optim.host import Host
from zcompile.optim.lion import Lion
from zcompile.optim.takeover import Takeover

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Host", "Lion", "RMSprop", "Takeover"]

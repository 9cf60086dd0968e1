"""Who else holds the memory of a tensor: what has to move with it.

Note [Memory that was shown to numpy].  The array that ``tensor.numpy()`` gives keeps alive a
tensor over the same storage, not the storage itself, and nothing tells that tensor from
others.  torch marks the storage as one that cannot be resized, but so it does with every
tensor it loads.  So where such a storage moves, it is kept for as long as the tensors that
were found over it: the array goes on showing what was there before the move, and is safe.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from torch import Tensor, UntypedStorage, nn

from zcompile.runtime.objects import all_objects

_PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)
"""By exact type: what subclasses show of their memory may be anything."""


def tensors_within(stretches: Mapping[int, int]) -> dict[int, list[Tensor]]:
    """Return all tensors of this process that begin in stretches of memory, by its address.

    ``stretches`` gives the bytes at each address.  Looks through everything that Python
    keeps track of, some ten milliseconds for each 100,000 objects; it does not see arrays
    of numpy, nor what only C++ holds.
    """
    addresses = sorted(stretches)
    found: dict[int, list[Tensor]] = {address: [] for address in stretches}
    for each in all_objects():
        if type(each) not in _PLAIN_TYPES:
            continue
        tensor = cast("Tensor", each)
        with suppress(RuntimeError):  # some have no memory that could be asked for
            if tensor.device.type != "cpu":
                continue
            begin = tensor.data_ptr()
            at = bisect_right(addresses, begin) - 1
            if at >= 0 and begin < addresses[at] + stretches[addresses[at]]:
                found[addresses[at]].append(tensor)
    return found


def outlive(tensor: Tensor) -> None:
    """Keep the storage of ``tensor``, if an array of numpy may need it, until it dies.

    See Note [Memory that was shown to numpy].
    """
    storage = tensor.untyped_storage()
    if not storage.resizable():
        weakref.finalize(tensor, _let_go, storage).atexit = False


def _let_go(storage: UntypedStorage) -> None:
    """Do nothing: what holds this call has held ``storage``."""

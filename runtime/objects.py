"""Everything that Python keeps track of: where tensors and optimizers are looked for."""

from __future__ import annotations

import gc
from typing import cast


def all_objects() -> list[object]:
    """Return all objects that Python's collector knows.

    What a script has set aside with ``gc.freeze()``, as is done before workers are forked, the
    collector hides.  It is let back in: an optimizer or a view of a weight that is not seen would
    be left behind where memory moves.  The collector is a little slower afterwards, no more.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    return cast("list[object]", gc.get_objects())

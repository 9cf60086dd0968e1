"""From what a user holds to the session behind it."""

from __future__ import annotations

from zcompile.backend import zinf_backend
from zcompile.bridge.torch_private import original_of
from zcompile.session import Session


def session_of(model: object) -> Session:
    """Return the latest session of ``model``, a compiled or to be compiled thing.

    Raises ``ValueError`` if there is none, which is so until the first call.
    """
    sessions = zinf_backend.sessions(original_of(model)) if callable(model) else ()
    if not sessions:
        raise ValueError(
            f"{_called(model)} has not run under this backend; compile it with "
            'torch.compile(model, backend="zinf"), call it once, and pass what was compiled '
            "(if you did, torch.compile fell back to plain PyTorch, and its log says why)"
        )
    return sessions[-1]


def _called(model: object) -> str:
    name = getattr(model, "__qualname__", None)
    return f"the function {name}" if isinstance(name, str) else f"this {type(model).__name__}"

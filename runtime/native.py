"""Loads the native library, or says why there is none."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from zcompile.runtime.build import LIBRARY, SOURCES, expected_build_id

NATIVE_VARIABLE = "ZINF_NATIVE"
"""The environment variable that, set to 0, does without the native library."""

ABI_VERSION = 5
"""The version of ``zinf.h`` that the declarations in this package are for."""

_REBUILD = "run python -m zcompile.runtime.build"


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no native library to use, for this reason; Python does its work."""

    reason: str


class NativeError(OSError):
    """A call into the native library failed: ``errno`` is the error's number."""


class Native:
    """The loaded library.  Calls into it let other Python threads run."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._strerror = self.function("zinf_strerror", [ctypes.c_int32], ctypes.c_char_p)
        self.build_id: str = self.function("zinf_build_id", [], ctypes.c_char_p)().decode()
        """A digest of the sources and flags that it was built from."""
        self.compiler: str = self.function("zinf_compiler", [], ctypes.c_char_p)().decode()
        """The compiler that built it, with its version."""
        name_of = self.function("zinf_isa_name", [ctypes.c_int32], ctypes.c_char_p)
        best: int = self.function("zinf_isa_best", [], ctypes.c_int32)()
        names: list[str] = [name_of(isa).decode() for isa in range(best + 1)]
        self.isas: Mapping[str, int] = {name: isa for isa, name in enumerate(names)}
        """The instruction sets of this machine that it has kernels for, the best one last."""

    def function(self, name: str, arguments: Sequence[Any], result: Any = ctypes.c_int32) -> Any:
        """Return the function ``name`` with its ctypes signature set.

        Each call gives an object of its own, so that two callers may declare it differently.
        """
        function = self._library[name]
        function.argtypes = list(arguments)
        function.restype = result
        return function

    def locked(self, name: str, arguments: Sequence[Any], result: Any = ctypes.c_int32) -> Any:
        """Return the function ``name`` for calls that keep other Python threads waiting.

        For those that work on Python's objects.  An error of Python's that is left behind by what
        they call is raised.
        """
        return ctypes.PYFUNCTYPE(result, *arguments)((name, self._library))

    def check(self, code: int) -> int:
        """Return ``code`` unless it is an error; raise ``NativeError`` if it is."""
        if code < 0:
            raise NativeError(-code, self._strerror(code).decode())
        return code


def load() -> Native | Absent:
    """Return the native library, loaded at the first call, or why there is none."""
    return _load(os.environ.get(NATIVE_VARIABLE, "1"))


@cache
def _load(wanted: str) -> Native | Absent:
    if wanted == "0":
        return Absent(f"{NATIVE_VARIABLE}=0 asks to do without it")
    if wanted != "1":
        raise ValueError(
            f"{NATIVE_VARIABLE}={wanted!r}: write 0 to do without the native library, or 1"
        )
    found = open_library(LIBRARY)
    if isinstance(found, Absent) and LIBRARY.is_file():
        # Whoever has no compiler knows it; that new sources need a new library is a surprise.
        warnings.warn(
            f"the native library is not in use, Python and torch do its work: {found.reason}",
            stacklevel=3,
        )
    return found


def open_library(path: Path) -> Native | Absent:
    """Load the library at ``path`` unless it is missing, broken or not of these sources."""
    if not path.is_file():
        return Absent(f"it has not been built: {_REBUILD}")
    try:
        library = ctypes.CDLL(str(path))
        version = library.zinf_abi_version()
    except (OSError, AttributeError) as error:
        return Absent(f"{path} cannot be loaded ({error}): {_REBUILD}")
    if version != ABI_VERSION:
        return Absent(
            f"{path} has version {version} of the interface, not {ABI_VERSION}: {_REBUILD}"
        )
    native = Native(library)
    if SOURCES.is_dir() and native.build_id != expected_build_id():
        return Absent(f"{path} was built from other sources than are here: {_REBUILD}")
    return native

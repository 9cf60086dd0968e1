"""Finds the square roots that torch computes with.

``Tensor.sqrt`` on the CPU is MKL's ``vmsSqrt`` in torch's builds for x86-64, with an accuracy of
one unit in the last place: one in five results differs from the correctly rounded one.  Which
code MKL runs depends on the machine, so whoever needs those bits has to call that very function.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from zcompile.runtime.native_optim import Roots

MODE = 0x2 | 0x140000 | 0x100
"""How torch calls it: VML_HA, VML_FTZDAZ_OFF and VML_ERRMODE_IGNORE of MKL's ``mkl_vml.h``."""


def mkl_roots() -> Roots | None:
    """Return MKL's function as torch has loaded it, ``None`` where torch has no MKL."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path))
        function, set_threads = library.vmsSqrt, library.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None
    # MKL chooses its code at the first call of a function, and chooses wrongly if several
    # threads make that call at once; so it is made here.
    values = (ctypes.c_float * 64)(*range(64))
    function.argtypes = [ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function.restype = None
    function(64, values, values, MODE)
    address, setter = (ctypes.cast(each, ctypes.c_void_p).value for each in (function, set_threads))
    assert address is not None
    assert setter is not None
    return Roots(address, MODE, setter)

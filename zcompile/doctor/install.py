"""Versions, the compiler and the native library."""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

from zcompile.doctor.finding import Finding, Section
from zcompile.runtime.build import BuildError, native_recipe
from zcompile.runtime.native import NATIVE_VARIABLE, Absent, Native, load
from zcompile.version import __version__

_INSTALL = Section("install")
_ACCELERATOR = Section("accelerator")
_CUPY = ("cupy", *(f"cupy-cuda{major}x" for major in range(11, 15)))
_BUILD = "python -m zcompile.runtime.build"


def install_findings() -> tuple[Finding, ...]:
    """Say what is installed, and which half of it is native."""
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        _INSTALL.ok("python", f"{platform.python_version()}, {platform.platform()}"),
        _INSTALL.ok("torch", f"{torch.__version__}, kernels for {capability}"),
        _INSTALL.ok("zinf", f"{__version__} in {Path(__file__).resolve().parents[1]}"),
        _compiler(),
        _library(load()),
    )


def _compiler() -> Finding:
    try:
        recipe = native_recipe()
    except BuildError:
        return _INSTALL.warning(
            "C++ compiler",
            "there is none: neither Inductor's kernels nor the native library can be built",
            f"install g++ or clang, then run {_BUILD}; compute='eager' works without",
        )
    return _INSTALL.ok("C++ compiler", " ".join(recipe.compiler))


def _library(loaded: Native | Absent) -> Finding:
    subject = "native library"
    if isinstance(loaded, Native):
        *others, best = loaded.isas
        also = f", also built for {', '.join(others)}" if others else ""
        return _INSTALL.ok(subject, f"uses {best}{also}, by {loaded.compiler}")
    says = f"not in use, Python and torch do its work: {loaded.reason}"
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return _INSTALL.note(subject, says, f"unset {NATIVE_VARIABLE} to use it")
    return _INSTALL.warning(subject, says, f"with a C++ compiler, run {_BUILD}")


def accelerator_findings() -> tuple[Finding, ...]:
    """Say whether there are GPUs.  Nothing is started on them, and CuPy is not imported."""
    return _cuda(), _cupy()


def _cuda() -> Finding:
    if not torch.backends.cuda.is_built():
        return _ACCELERATOR.note("CUDA", "torch is built without it: the device is the CPU")
    count = torch.cuda.device_count()
    if count == 0:
        return _ACCELERATOR.note("CUDA", "torch has it and finds no GPU: the device is the CPU")
    return _ACCELERATOR.note(
        "CUDA", f"{count} GPUs for torch; zinf keeps budgets on the CPU only, see docs/limits.md"
    )


def _cupy() -> Finding:
    if importlib.util.find_spec("cupy") is None:
        return _ACCELERATOR.note("CuPy", "not installed; nothing on a CPU needs it")
    return _ACCELERATOR.ok("CuPy", _version_of(_CUPY) or "installed")


def _version_of(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None

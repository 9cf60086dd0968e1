"""Loading the library: what it says of itself, and what is said when it cannot be loaded."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from zcompile.runtime import native as loading
from zcompile.runtime.build import ISA_FLAGS, LIBRARY, SOURCES, expected_build_id
from zcompile.runtime.native import Absent, Native, NativeError, load, open_library


def test_it_was_built_from_the_sources_here(native: Native) -> None:
    assert native.build_id == expected_build_id()
    assert native.compiler.startswith(("g++", "clang"))


def test_the_header_and_the_declarations_are_of_one_version() -> None:
    defined = f"#define ZINF_ABI_VERSION {loading.ABI_VERSION}\n"
    assert defined in (SOURCES / "zinf.h").read_text()


def test_the_instruction_sets_are_those_of_the_machine(native: Native) -> None:
    names = list(native.isas)
    assert names == list(ISA_FLAGS[platform.machine()])[: len(names)]
    if platform.machine() == "x86_64":
        flags = Path("/proc/cpuinfo").read_text().split()
        assert ("avx2" in names) == ({"avx2", "fma", "f16c"} <= set(flags))
        assert ("avx512" in names) == (
            {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2"} <= set(flags)
        )


def test_an_error_has_the_number_and_the_words_of_the_system(native: Native) -> None:
    assert native.check(7) == 7
    with pytest.raises(NativeError, match=os.strerror(errno.ENOSPC)) as raised:
        native.check(-errno.ENOSPC)
    assert raised.value.errno == errno.ENOSPC


def test_it_needs_no_library_but_those_of_the_system(native: Native) -> None:
    assert isinstance(native, Native)
    mapped = Path("/proc/self/maps").read_text()
    assert str(LIBRARY.resolve()) in mapped
    content = LIBRARY.read_bytes()
    for foreign in (b"libtorch", b"libpython", b"libgomp", b"libomp"):
        assert foreign not in content


def test_the_environment_can_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.NATIVE_VARIABLE, "0")
    assert load() == Absent("ZINF_NATIVE=0 asks to do without it")
    monkeypatch.setenv(loading.NATIVE_VARIABLE, "yes")
    with pytest.raises(ValueError, match="ZINF_NATIVE='yes': write 0"):
        load()


def test_a_missing_library_says_how_to_build_it(tmp_path: Path) -> None:
    absent = open_library(tmp_path / "libzinf.so")
    assert isinstance(absent, Absent)
    assert "python -m zcompile.runtime.build" in absent.reason


def test_a_broken_library_is_not_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "libzinf.so"
    broken.write_bytes(b"not a library")
    absent = open_library(broken)
    assert isinstance(absent, Absent)
    assert "cannot be loaded" in absent.reason


def test_a_foreign_library_is_not_loaded(tmp_path: Path) -> None:
    (path,) = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libc.so" in line
    }
    foreign = tmp_path / "libzinf.so"
    shutil.copy(path, foreign)
    assert isinstance(open_library(foreign), Absent)


def test_a_library_of_other_sources_is_not_loaded(tmp_path: Path) -> None:
    other = tmp_path / "libzinf.so"
    content = LIBRARY.read_bytes()
    build_id = expected_build_id().encode()
    assert content.count(build_id) == 1
    other.write_bytes(content.replace(build_id, build_id[::-1]))
    absent = open_library(other)
    assert isinstance(absent, Absent)
    assert "other sources" in absent.reason


def test_a_library_that_is_there_and_of_no_use_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "libzinf.so"
    monkeypatch.setattr(loading, "LIBRARY", broken)
    loads: Any = vars(loading)["_load"]
    loads_anew = cache(loads.__wrapped__)
    monkeypatch.setattr(loading, "_load", loads_anew)
    assert isinstance(load(), Absent)  # without a warning: nobody has built one
    broken.write_bytes(b"not a library")
    loads_anew.cache_clear()
    with pytest.warns(UserWarning, match=r"not in use, .*cannot be loaded.*python -m zcompile"):
        assert isinstance(load(), Absent)
    assert isinstance(load(), Absent)


def test_a_function_that_is_not_there_is_an_error(native: Native) -> None:
    with pytest.raises(AttributeError, match="zinf_nothing"):
        native.function("zinf_nothing", [ctypes.c_int32])

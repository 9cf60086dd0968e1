"""Building: every instruction set apart, other machines, no compiler, no half-written library."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zcompile.runtime import build as building
from zcompile.runtime.build import (
    FLAGS,
    ISA_FLAGS,
    LIBRARY,
    BuildError,
    Recipe,
    build,
    compile_all,
    main,
    native_recipe,
)
from zcompile.runtime.native import Absent, Native, open_library

CROSS_COMPILER = "aarch64-linux-gnu-g++"


def test_an_up_to_date_library_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "libzinf.so"
    shutil.copy(LIBRARY, output)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["--output", str(output)]) == 0
    assert main(["--force", "--output", str(output)]) == 1
    assert isinstance(open_library(output), Native), "what was there has stayed"
    output.write_bytes(b"of other sources")
    assert main(["--output", str(output)]) == 1


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(BuildError, match="CXX='no-such-compiler -m64'"):
        native_recipe()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--output", str(tmp_path / "libzinf.so")]) == 1
    assert "install g++ or clang" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_does_not_compile_leaves_nothing(tmp_path: Path) -> None:
    sources, output = tmp_path / "csrc", tmp_path / "out" / "libzinf.so"
    sources.mkdir()
    (sources / "bad.cpp").write_text("#error this is the reason\n")
    with pytest.raises(BuildError, match="this is the reason"):
        build(native_recipe(), output, sources)
    assert list(output.parent.iterdir()) == []
    assert isinstance(open_library(output), Absent)


def test_a_kernel_is_compiled_once_for_each_instruction_set(tmp_path: Path) -> None:
    (tmp_path / "kernel.isa.cpp").write_text(
        "namespace zinf::ZINF_ISA { float twice(float x) { return x + x; } }\n"
    )
    names = [name for name, _ in native_recipe().units(tmp_path)]
    assert names == [f"kernel.isa.cpp.{isa}.o" for isa in ISA_FLAGS[platform.machine()]]


def test_it_compiles_without_a_warning_and_kernels_share_no_code(tmp_path: Path) -> None:
    """An inline function compiled for AVX-512 would be linked in for every machine."""
    nm = shutil.which("nm")
    assert nm
    native = native_recipe()
    recipe = Recipe(native.compiler, native.machine, (*FLAGS, "-Werror"))
    for name in compile_all(recipe, tmp_path):
        if ".isa.cpp." in name:
            listed = subprocess.run([nm, "-C", name], capture_output=True, text=True, check=True)
            weak = [line for line in listed.stdout.splitlines() if line[17:18] in "VWu"]
            assert weak == [], name


def test_the_build_is_for_any_machine_of_the_kind() -> None:
    flags = {
        *FLAGS,
        *(flag for kind in ISA_FLAGS.values() for isa in kind.values() for flag in isa),
    }
    assert not [flag for flag in flags if "native" in flag or "fast-math" in flag]
    assert "-ffp-contract=off" in FLAGS


@pytest.mark.cross
def test_it_compiles_for_aarch64_without_a_warning(tmp_path: Path) -> None:
    recipe = Recipe((CROSS_COMPILER,), "aarch64", (*FLAGS, "-Werror"))
    build(recipe, tmp_path / "libzinf.so")
    # Bytes 18 and 19 of an ELF file are the machine; 183 is aarch64.
    assert int.from_bytes((tmp_path / "libzinf.so").read_bytes()[18:20], "little") == 183


def test_building_needs_nothing_but_python() -> None:
    """The installer builds it in an environment that holds setuptools alone."""
    root = Path(building.__file__).resolve().parent.parent
    program = "import zcompile.runtime.build, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-S", "-c", program], cwd=root, check=True)

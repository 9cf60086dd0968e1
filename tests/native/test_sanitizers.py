"""The library under sanitizers, driven by a program of its own: ``make sanitize``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from zcompile.runtime.build import SOURCES, Recipe, compile_all, native_recipe

DRIVER = Path(__file__).with_name("sanitize.cpp")
FLAGS = ("-std=c++20", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer", "-ffp-contract=off")


@pytest.mark.sanitize
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    native = native_recipe()
    flags = (*FLAGS, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    recipe = Recipe(native.compiler, native.machine, flags)
    objects = compile_all(recipe, tmp_path)
    program = tmp_path / "sanitize"
    link = [*recipe.compiler, *flags, f"-I{SOURCES}", str(DRIVER), *objects, "-o", str(program)]
    subprocess.run(link, check=True)
    ran = subprocess.run(
        [str(program), str(tmp_path / "file")], capture_output=True, text=True, timeout=250
    )
    assert ran.returncode == 0, ran.stderr

"""The library under sanitizers, driven by a program of its own: ``make sanitize``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from zcompile.runtime.build import SOURCES, Recipe, compile_all, native_recipe

DRIVERS = ("sanitize.cpp", "sanitize_optim.cpp", "sanitize_stream.cpp", "sanitize_tensors.cpp")
FLAGS = ("-std=c++20", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer", "-ffp-contract=off")


@pytest.mark.sanitize
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    native = native_recipe()
    flags = (*FLAGS, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    recipe = Recipe(native.compiler, native.machine, flags)
    objects = compile_all(recipe, tmp_path)
    for name in DRIVERS:
        driver, program = Path(__file__).with_name(name), tmp_path / Path(name).stem
        link = [*recipe.compiler, *flags, f"-I{SOURCES}", str(driver), *objects, "-o", str(program)]
        subprocess.run(link, check=True)
        ran = subprocess.run(
            [str(program), str(tmp_path / "file")], capture_output=True, text=True, timeout=250
        )
        assert ran.returncode == 0, (name, ran.stderr)

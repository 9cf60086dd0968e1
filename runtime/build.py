"""Builds the native library: ``python -m zcompile.runtime.build``.

Standard library only: the installer runs it where nothing else is installed.  Every source
under ``csrc`` is compiled by itself, those named ``*.isa.cpp`` once for each instruction set,
and all are linked into one shared library that needs neither Python nor torch.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "csrc"
"""The folder of the sources."""

LIBRARY = Path(__file__).resolve().parent / "lib" / "libzinf.so"
"""Where the library is built, and loaded from.

In a folder that is no package: beside modules, its name would be that of one.
"""

FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"),
    # A product and a sum become one rounding only where the source says so.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)

ISA_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "baseline": (),
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": (
            *("-mavx2", "-mfma", "-mf16c", "-mprefer-vector-width=512"),
            *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        ),
    },
    "aarch64": {"baseline": ()},
}
"""By machine: the instruction sets that kernels are compiled for, with their flags."""

COMPILERS = ("g++", "clang++", "c++")
"""What is looked for when the environment variable CXX names no compiler."""


class BuildError(RuntimeError):
    """The library cannot be built; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to compile and link: a compiler, the machine it compiles for, and further flags."""

    compiler: tuple[str, ...]
    machine: str
    flags: tuple[str, ...] = FLAGS

    def units(self, sources: Path) -> Iterator[tuple[str, list[str]]]:
        """Yield the object file and the command, without its output, of each compilation."""
        start = [*self.compiler, *self.flags, f"-I{sources}"]
        build_id = f'-DZINF_BUILD_ID="{self.build_id(sources)}"'
        for source in sorted(sources.rglob("*.cpp")):
            name = str(source.relative_to(sources)).replace(os.sep, "-")
            if not source.name.endswith(".isa.cpp"):
                own = [build_id] if source.name == "library.cpp" else []
                yield f"{name}.o", [*start, *own, "-c", str(source)]
                continue
            for isa, flags in ISA_FLAGS.get(self.machine, {"baseline": ()}).items():
                yield f"{name}.{isa}.o", [*start, *flags, f"-DZINF_ISA={isa}", "-c", str(source)]

    def build_id(self, sources: Path = SOURCES) -> str:
        """Return a digest of the sources and flags, whatever the compiler."""
        digest = hashlib.sha256(" ".join([self.machine, *self.flags]).encode())
        for path in sorted(sources.rglob("*")):
            if path.suffix in (".cpp", ".h"):
                digest.update(f"\n{path.relative_to(sources)}\n".encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()[:32]


def native_recipe() -> Recipe:
    """Return the recipe for this machine; raise ``BuildError`` where no compiler is found."""
    return Recipe(_find_compiler(), platform.machine())


def expected_build_id() -> str:
    """Return what a library built from the sources here says of itself."""
    return Recipe((), platform.machine()).build_id()


def build(recipe: Recipe, output: Path = LIBRARY, sources: Path = SOURCES) -> None:
    """Compile and link the library into ``output``, replacing it at once.

    Raises ``BuildError`` with the compiler's words when it refuses.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zinf-build-") as folder:
        objects = compile_all(recipe, Path(folder), sources)
        linked = output.with_name(f".{output.name}.{os.getpid()}")
        try:
            _run([*recipe.compiler, *recipe.flags, "-shared", *objects, "-o", str(linked)])
            # A process that has the old library loaded keeps it: the file is another one.
            linked.replace(output)
        finally:
            linked.unlink(missing_ok=True)


def compile_all(recipe: Recipe, folder: Path, sources: Path = SOURCES) -> list[str]:
    """Compile every source into ``folder``; return the object files."""
    units = [(str(folder / name), command) for name, command in recipe.units(sources)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(_run, [[*command, "-o", name] for name, command in units]))
    return [name for name, _ in units]


def _find_compiler() -> tuple[str, ...]:
    named = shlex.split(os.environ.get("CXX", ""))
    for candidate in [named] if named else [[name] for name in COMPILERS]:
        if shutil.which(candidate[0]):
            return tuple(candidate)
    looked_for = f"CXX={shlex.join(named)!r}" if named else ", ".join(COMPILERS)
    raise BuildError(
        f"no C++ compiler was found ({looked_for}): install g++ or clang, then run "
        "python -m zcompile.runtime.build"
    )


def _run(command: Sequence[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{ended.stderr.strip()}")
    sys.stderr.write(ended.stderr)


def _built_id(library: Path) -> str | None:
    """Return the build id in ``library``, without loading it into this process."""
    wanted = expected_build_id().encode()
    return wanted.decode() if library.is_file() and wanted in library.read_bytes() else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the library in place unless it is up to date."""
    parser = argparse.ArgumentParser(prog="python -m zcompile.runtime.build", description=__doc__)
    parser.add_argument("--force", action="store_true", help="build even if it is up to date")
    parser.add_argument("--output", type=Path, default=LIBRARY, help="the file to write")
    given = parser.parse_args(arguments)
    if not given.force and _built_id(given.output) == expected_build_id():
        return 0
    try:
        build(native_recipe(), given.output)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Adds the native library to what setuptools builds; the rest stands in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent))

from zcompile.runtime.build import LIBRARY, BuildError, build, native_recipe

LIBRARY_MODULE = "zcompile.runtime.lib.libzinf"


class BuildLibrary(build_ext):
    """Build the library with its own recipe; without a compiler, install without it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Name a plain shared library: no Python module, so no version of Python in it."""
        return f"{fullname.replace('.', '/')}{LIBRARY.suffix}"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link; say why if that is not possible, and go on."""
        output = Path(self.get_ext_fullpath(ext.name))
        try:
            build(native_recipe(), output)
        except BuildError as error:
            sys.stderr.write(f"zinf: installing without the native library: {error}\n")

    def copy_extensions_to_source(self) -> None:
        """Copy it beside the sources for an editable install, into a folder that git has not."""
        LIBRARY.parent.mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def get_outputs(self) -> list[str]:
        """Return what was built."""
        return [path for path in super().get_outputs() if Path(path).exists()]


setup(
    ext_modules=[Extension(LIBRARY_MODULE, sources=[], optional=True)],
    cmdclass={"build_ext": BuildLibrary},
)

"""The layers, the links and the size of files, read from the sources."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "zcompile"
FOLDERS = ("zcompile", "passes", "runtime", "tests", "docs", "benchmarks")
MAX_LINES = 400
LINKED = ("passes", "runtime")
STDLIB_ONLY = frozenset[str]()

BELOW_SESSION = {
    *("ir", "errors", "precision", "options", "passes", "runtime", "machines", "timing"),
    *("io_buffers", "choosing", "graph_plan", "refusals", "planner", "moving_in"),
    *("measuring", "registry", "bridge", "graphs", "emitting", "buckets", "collector"),
    *("hooks", "gradients", "opening", "optim", "leaving"),
}
BELOW_BACKEND = {*BELOW_SESSION, "session"}

MAY_IMPORT: dict[str, set[str]] = {
    "ir": set(),
    "version": set(),
    "errors": set(),
    "precision": set(),
    "io_buffers": {"ir"},
    "options": {"ir", "precision", "io_buffers"},
    "passes": {"ir"},
    "runtime": {"ir"},
    "symbolic": set(),
    "machines": {"ir"},
    "timing": {"ir", "options", "passes", "machines"},
    "collector": set(),
    "choosing": {"ir", "passes", "timing", "collector"},
    "graph_plan": {"ir", "passes"},
    "refusals": {"ir", "errors", "options", "passes"},
    "planner": {
        *("ir", "errors", "options", "passes", "timing", "choosing", "io_buffers"),
        *("graph_plan", "refusals"),
    },
    "registry": set(),
    "measuring": {"ir", "runtime"},
    "moving_in": {"ir", "registry", "runtime"},
    "bridge": {"ir", "runtime"},
    "graphs": {"ir", "passes", "bridge", "graph_plan", "runtime"},
    "emitting": {"ir", "passes", "errors", "runtime", "bridge", "graph_plan", "graphs", "planner"},
    "buckets": {"errors", "bridge"},
    "hooks": set(),
    "gradients": {"hooks", "ir", "bridge", "runtime"},
    "opening": {"options", "runtime"},
    "optim": {"hooks", "ir", "passes", "precision", "runtime"},
    "leaving": {"errors", "runtime", "bridge"},
    "session": BELOW_SESSION,
    "backend": BELOW_BACKEND,
    "clipping": {*BELOW_BACKEND, "backend"},
    "report": {*BELOW_BACKEND, "backend", "machines"},
    "demo": {*BELOW_BACKEND, "backend", "report"},
    "bench": {"version", *BELOW_BACKEND, "machines"},
    "forecasting": {*BELOW_BACKEND, "machines", "report"},
    "doctor": {"version", *BELOW_BACKEND, "machines", "report"},
    "cli": {
        *("version", "backend", "report", "demo", "doctor", "bench", "forecasting"),
        *BELOW_BACKEND,
    },
    # The package itself imports when asked for a name; for type checkers it names them all.
    "": {"version", *BELOW_BACKEND, "backend", "clipping", "report", "forecasting"},
}
"""By layer, a module or folder of the package: the layers it may import."""

MAY_USE: dict[str, frozenset[str]] = {
    "": STDLIB_ONLY,
    "ir": STDLIB_ONLY,
    "errors": STDLIB_ONLY,
    "passes": frozenset({"numpy", "scipy"}),
    "options": frozenset({"pydantic", "pydantic_core"}),
    "runtime": frozenset({"torch", "numpy"}),
    "symbolic": frozenset({"sympy"}),
    "machines": frozenset({"pydantic"}),
}
"""By layer: the foreign packages it may import.  What is not listed may use any."""


def sources(*folders: str) -> list[Path]:
    """Return every source below ``folders`` once; links are not followed."""
    return sorted(
        path
        for folder in folders
        for suffix in ("py", "cpp", "h")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
        if not any(parent.is_symlink() for parent in path.parents)
    )


def layer_of(path: Path) -> str:
    inside = path.relative_to(ROOT)
    if inside.parts[0] == "zcompile":
        inside = inside.relative_to("zcompile")
    first = inside.parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full name of every module that ``tree`` imports, wherever it does so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            assert node.module is not None
            # "from zcompile import ir" imports the module zcompile.ir.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def faults(layer: str, code: str) -> list[str]:
    """Return the imports in ``code`` that its ``layer`` must not make."""
    found: list[str] = []
    for name in imported(ast.parse(code)):
        package, _, rest = name.partition(".")
        if package == "zcompile":
            other = rest.partition(".")[0]
            # A public name ("from zcompile import Options") belongs to the package itself.
            other = other if other in MAY_IMPORT else ""
            allowed = other == layer or other in MAY_IMPORT[layer]
        else:
            foreign = package not in sys.stdlib_module_names and package != "__future__"
            allowed = not foreign or layer not in MAY_USE or package in MAY_USE[layer]
        if not allowed:
            found.append(name)
    return found


MODULES = [path for path in sources("zcompile", *LINKED) if path.suffix == ".py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    layer = layer_of(path)
    assert layer in MAY_IMPORT, f"give {layer!r} its place in MAY_IMPORT"
    assert faults(layer, path.read_text()) == []


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        ("passes", "import zcompile.runtime.arena"),
        ("passes", "from zcompile.runtime import arena"),
        ("passes", "from zcompile import runtime"),
        ("passes", "from zcompile import Options"),
        ("passes", "import torch"),
        ("runtime", "def f():\n    from zcompile.passes.base import Pass"),
        ("runtime", "if TYPE_CHECKING:\n    from zcompile.session import Session"),
        ("ir", "import torch"),
        ("ir", "from zcompile.passes import base"),
        ("bridge", "from zcompile.passes import base"),
        ("backend", "from zcompile.report import text"),
        ("options", "import torch"),
    ],
)
def test_an_import_that_points_up_is_seen(layer: str, code: str) -> None:
    assert len(faults(layer, code)) == 1


def test_the_layers_have_an_order() -> None:
    placed: set[str] = set()
    for layer, below in MAY_IMPORT.items():
        assert below <= placed, f"{layer!r} may import what stands above it"
        placed.add(layer)


@pytest.mark.parametrize("folder", LINKED)
def test_the_links_are_links(folder: str) -> None:
    assert os.readlink(PACKAGE / folder) == f"../{folder}"
    assert not (ROOT / folder).is_symlink()


def test_no_file_is_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources(*FOLDERS)}
    assert lengths
    assert {str(path): lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_file_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [str(path) for path in sources(*FOLDERS) if path.stem.strip("_") in vague] == []


MAKES_TENSORS = {
    f"torch.{name}"
    for name in (
        *("arange", "as_tensor", "asarray", "empty", "empty_strided", "full", "linspace", "ones"),
        *("rand", "randint", "randn", "scalar_tensor", "tensor", "zeros"),
    )
}
"""Functions of torch that follow the user's default device where none is named."""


def tensors_without_device(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that make a tensor on whatever device the user has made the default."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in MAKES_TENSORS:
            continue
        if "device" not in {each.arg for each in node.keywords}:
            yield node.lineno


@pytest.mark.parametrize("folder", ["zcompile", "passes", "runtime"])
def test_tensors_are_made_where_we_say(folder: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources(folder)
        if path.suffix == ".py" and "demo" not in path.parts
        for line in tensors_without_device(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()

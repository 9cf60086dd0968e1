"""Importing the package costs next to nothing and starts nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import zcompile
from zcompile import version

ROOT = Path(__file__).parent.parent

REPORT = """
import json, sys, threading
children = open("/proc/thread-self/children").read().split()
threads = len(list(__import__("os").scandir("/proc/self/task")))
print(json.dumps({"modules": sorted(sys.modules), "threads": threads, "children": children}))
"""


def after(code: str, **env: str) -> Any:
    """Run ``code`` in a new interpreter; tell its modules, threads and child processes."""
    command = [sys.executable, "-c", code + REPORT]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def packages(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_importing_the_package_starts_nothing_and_loads_no_one_else() -> None:
    before, now = after(""), after("import zcompile")
    assert now["threads"] == before["threads"] == 1
    assert now["children"] == before["children"] == []
    added = set(now["modules"]) - set(before["modules"])
    assert {name for name in added if name.startswith("zcompile")} == {"zcompile"}
    foreign = packages(sorted(added)) - sys.stdlib_module_names
    assert foreign == {"zcompile"}


def test_it_costs_next_to_nothing_beside_torch() -> None:
    # Modules and threads, not seconds: those vary on a shared machine.
    torch, both = after("import torch"), after("import torch, zcompile")
    assert len(both["modules"]) <= len(torch["modules"]) * 1.02
    assert both["threads"] == torch["threads"]
    assert both["children"] == []


def test_it_starts_no_cuda() -> None:
    after("import torch, zcompile\nassert not torch.cuda.is_initialized()")


@pytest.mark.parametrize("module", ["options", "errors"])
def test_options_and_errors_need_no_torch(module: str) -> None:
    assert not packages(after(f"import zcompile.{module}")["modules"]) & {"torch", "numpy"}


def test_planning_needs_no_torch_and_no_device() -> None:
    code = (
        "import importlib, pkgutil, zcompile.ir, zcompile.passes\n"
        "for package in (zcompile.ir, zcompile.passes):\n"
        "    for found in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
    )
    loaded = packages(after(code)["modules"])
    assert "zcompile" in loaded
    assert not loaded & {"torch", "cupy", "pydantic"}


@pytest.mark.parametrize("folder", ["passes", "runtime"])
def test_the_folders_are_reached_through_the_package_only(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert f"ImportError: import zcompile.{folder}" in done.stderr


def test_every_public_name_is_there() -> None:
    assert set(zcompile.__all__) <= set(dir(zcompile))
    for name in zcompile.__all__:
        assert getattr(zcompile, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'schedulez'"):
        _ = zcompile.schedulez


def test_optimizers_that_are_taken_over_go_by_a_second_name() -> None:
    # In a new interpreter: the submodule is an attribute only once somebody has imported it.
    after(
        "import zcompile; assert zcompile.optim.AdamW\n"
        "import torch.optim as stock; from zcompile.optim.rules import RULES\n"
        "assert {getattr(zcompile.optim, each.__name__) for each in RULES} == set(RULES)\n"
    )


def test_the_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    assert zcompile.__version__ == metadata.version("zinf")

    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    assert version.installed() == "0+uninstalled"


def test_the_entry_points_name_this_package() -> None:
    (backend,) = metadata.entry_points(group="torch_dynamo_backends", name="zinf")
    assert backend.value == "zcompile.backend:zinf_backend"
    (script,) = metadata.entry_points(group="console_scripts", name="zinf")
    assert script.value == "zcompile.cli:main"

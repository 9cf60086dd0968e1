"""The version of the installed distribution."""

from __future__ import annotations

from importlib import metadata


def installed() -> str:
    """Return the version that pip knows of, or ``"0+uninstalled"``."""
    try:
        return metadata.version("zinf")
    except metadata.PackageNotFoundError:
        # A checkout that runs from PYTHONPATH, as on machines that reach no package index.
        return "0+uninstalled"


__version__ = installed()

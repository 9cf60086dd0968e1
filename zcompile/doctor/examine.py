"""Everything that is looked at, in one go."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from zcompile.doctor.files import folder_findings, io_findings
from zcompile.doctor.finding import Finding, Section
from zcompile.doctor.install import accelerator_findings, install_findings
from zcompile.doctor.kernels import optimizer_findings
from zcompile.doctor.system import system_findings
from zcompile.machines import load_machine
from zcompile.machines.here import NAME as HERE
from zcompile.machines.here import here_path

_PLANNING = Section("planning")
_PEERS = Section("peers")


def examine(env: Mapping[str, str], nvme_dirs: Sequence[Path] = ()) -> tuple[Finding, ...]:
    """Look at install, system, files, optimizers, accelerators and what there is to compare with.

    Each of ``nvme_dirs`` is tried with a file that is removed again.  Raises ``ValueError`` if one
    cannot be used.
    """
    return (
        *install_findings(),
        *system_findings(),
        *io_findings(env),
        *folder_findings(nvme_dirs),
        *optimizer_findings(),
        *accelerator_findings(),
        _target(),
        *_peers(),
    )


def _target() -> Finding:
    path = here_path()
    if not path.is_file():
        says = "this machine has not been measured: estimates are made for others"
        return _PLANNING.note("target", says, "zinf bench")
    try:
        return _PLANNING.ok("target", load_machine(HERE).source)
    except ValueError as error:
        return _PLANNING.warning("target", f"not usable: {error}", "zinf bench")


def _peers() -> tuple[Finding, ...]:
    compares = "only benchmarks/ compares with it"
    fio = shutil.which("fio")
    deepspeed = importlib.util.find_spec("deepspeed")
    return (
        _PEERS.note("fio", f"{fio or 'not installed'}; {compares}"),
        _PEERS.note(
            "DeepSpeed", f"{'installed' if deepspeed else 'not installed here'}; {compares}"
        ),
    )

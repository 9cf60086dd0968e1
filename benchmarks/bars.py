"""Run every comparison of the native engine that has a bar, and print the bars in one table.

    python benchmarks/bars.py --folder swap
    python benchmarks/bars.py --folder swap --short    # small sizes: does everything run?

Takes less than 15 minutes on an idle machine, which it should be; the folder should be on the
drive in question.  fio and DeepSpeed take part where they are installed: see `peers/README.md`.
The status is 1 if a bar is missed or a program fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bar import MARK

from zcompile.machines.here import cpu_model
from zcompile.runtime.cgroups import available_cpus

HERE = Path(__file__).parent


def programs(folder: str, threads: list[str], *, short: bool) -> list[tuple[str, ...]]:
    """Return the programs with their arguments."""
    if short:
        small = ("--large", "1_000_000", "--small", "1_000_000", "--repeats", "3")
        return [
            ("optimizers.py", *small, "--threads", *threads),
            ("io.py", "--folder", folder, "--gib", "0.0625", "--pairs", "3"),
            ("beside.py", "--folder", folder, "--rounds", "3", "--products", "5"),
            ("update.py", "--folder", folder, "--million", "8", "--rounds", "3"),
        ]
    return [
        ("optimizers.py", "--threads", *threads),
        ("io.py", "--folder", folder, "--gib", "1", "--pairs", "20"),
        ("beside.py", "--folder", folder, "--rounds", "20"),
        ("update.py", "--folder", folder, "--million", "100", "--rounds", "7"),
    ]


def run(program: tuple[str, ...]) -> tuple[list[str], int]:
    """Run one program; show what it prints; return its bars and its status."""
    name, *arguments = program
    print(f"\n$ python benchmarks/{name} {' '.join(arguments)}", flush=True)
    command = [sys.executable, str(HERE / name), *arguments]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu"}
    bars: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            if line.startswith(MARK):
                bars.append(line.removeprefix(MARK).strip())
    return bars, running.returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "zinf-bars")
    parser.add_argument("--short", action="store_true", help="small sizes, to see that all runs")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    counts = [str(count) for count in sorted({1, available_cpus()})]
    start = time.monotonic()
    bars: list[str] = []
    failed: list[str] = []
    for program in programs(str(given.folder), counts, short=given.short):
        found, status = run(program)
        bars += found
        if status:
            failed.append(f"{program[0]} ended with status {status}")
    load = os.getloadavg()[0]
    print(
        f"\n{cpu_model()}, {available_cpus()} processors, Linux {platform.release()}, load {load}"
    )
    print(f"{time.monotonic() - start:.0f} s in all\n")
    print("\n".join(bars + failed))
    return 1 if failed or any(bar.endswith("MISSED") for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command ``zinf``."""

from __future__ import annotations

import json
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from zcompile.demo.errors import DemoError
from zcompile.demo.job import Job
from zcompile.demo.packages import find_weights, stay_offline
from zcompile.demo.setup import Setup
from zcompile.errors import BudgetError
from zcompile.options import Options
from zcompile.runtime.cgroups import available_cpus
from zcompile.runtime.errors import StorageError
from zcompile.version import __version__

DEFAULT_BUDGET = "512MiB"
"""A quarter of what SmolLM2-135M's fp32 parameters, gradients and Adam states take."""

DEFAULT = Job()

NUM_THREADS = max(1, available_cpus() - 1)
"""Threads that compute, unless told otherwise: copies need a core too.  Where there is none,
OpenMP's threads wait for one another in a busy loop: on two cores that others used as well, an
iteration took 9 s with one thread and 34 s with two."""

main = typer.Typer(
    name="zinf",
    help="Train models inside a memory budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Compute(StrEnum):
    """Who runs the kernels."""

    INDUCTOR = "inductor"
    EAGER = "eager"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"zinf {__version__}")
        raise typer.Exit


@main.callback()
def of_every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train models inside a memory budget."""
    del version  # its callback has done everything


@main.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = DEFAULT.steps,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a step.")] = DEFAULT.batch,
    sequence: Annotated[int, typer.Option(min=2, help="Tokens in one.")] = DEFAULT.sequence,
    device_budget: Annotated[
        str, typer.Option(help="Memory for everything, such as 512MiB.")
    ] = DEFAULT_BUDGET,
    compute: Annotated[Compute, typer.Option(help="Who runs the kernels.")] = Compute.EAGER,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads that compute; by default one core is left free.")
    ] = NUM_THREADS,
    check: Annotated[
        bool, typer.Option("--check", help="Run plain PyTorch too and compare the losses.")
    ] = False,
    swap_dir: Annotated[
        Path | None,
        typer.Option(
            "--nvme-dir",
            "--swap-dir",
            help="Folder for what does not fit; by default a temporary one here.",
        ),
    ] = None,
) -> None:
    """Fine-tune SmolLM2-135M, a real pretrained model, inside a memory budget.

    Nothing is downloaded: weights, tokenizer and text come from installed packages.
    """
    try:
        options = Options.parse({"device_budget": device_budget, "nvme_dir": swap_dir})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    assert options.device_budget is not None
    try:
        setup = Setup(
            job=Job(steps=steps, batch=batch, sequence=sequence, threads=threads),
            weights=find_weights(),
            device_budget=options.device_budget,
            compute=compute.value,
            swap_dir=next(iter(options.nvme_dirs), None),
            check=check,
        )
        if not _run(setup):
            _fail("the losses are not those of plain PyTorch")
    except (BudgetError, DemoError, StorageError) as error:
        _fail(str(error))


@main.command()
def doctor(
    nvme_dir: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder for what does not fit; it is tried, and left as it was. May be given "
            "for each of several devices, which are striped as one."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON instead of a table.")
    ] = False,
) -> None:
    """Say what this machine and this install can do, and what would make it better.

    Ends with status 0 also where there is something to warn of.
    """
    folders = _folders(nvme_dir)
    # Here and not above: they need torch, which ``zinf --help`` does not.
    from zcompile.doctor.examine import examine
    from zcompile.doctor.finding import as_json as findings_as_json
    from zcompile.doctor.show import shown

    try:
        findings = examine(os.environ, folders)
    except ValueError as error:
        _fail(str(error))
    if as_json:
        typer.echo(json.dumps(findings_as_json(findings), indent=2))
    else:
        Console().print(shown(findings))


@main.command()
def bench(
    nvme_dir: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder to read and write; by default the current one. May be given for each of "
            "several devices, which are striped as one."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look in some 20 seconds, instead of two minutes.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON instead of a table.")
    ] = False,
) -> None:
    """Measure this machine: memory, kernels, updates and files, each beside its limit.

    The figures are kept for planning, which knows this machine as "here".
    """
    folders = _folders(nvme_dir) or (Path.cwd(),)
    # So that a terminated run, like an interrupted one, takes its file with it.
    signal.signal(signal.SIGTERM, _exit_by_signal)
    # Here and not above: it needs torch, which ``zinf --help`` does not.
    from zcompile.bench.run import run_bench

    try:
        run_bench(folders, os.environ, quick=quick, as_json=as_json)
    except (StorageError, ValueError) as error:
        _fail(str(error))


def _exit_by_signal(number: int, frame: object) -> NoReturn:
    del frame
    sys.exit(128 + number)


@main.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(help="A Hugging Face config.json, a folder with one, or module:function."),
    ],
    target: Annotated[
        str, typer.Option(help="The machine: a name, 'here', or a file as zinf bench writes it.")
    ] = "h100",
    device_budget: Annotated[
        str | None, typer.Option(help="Such as 40GB; by default all that the machine has.")
    ] = None,
    host_budget: Annotated[str | None, typer.Option(help="The same for the host.")] = None,
    host: Annotated[bool, typer.Option(help="Whether to use the host.")] = True,
    nvme: Annotated[bool, typer.Option(help="Whether to use the disk.")] = True,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences; 1 by default.")] = None,
    sequence: Annotated[
        int | None, typer.Option(min=2, help="Tokens in one; 1024 by default.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the weights; bfloat16 by default.")] = None,
    optimizer: Annotated[
        str, typer.Option(help="adamw, adam, sgd, sgd-momentum, adagrad, rmsprop or lion.")
    ] = "adamw",
    compute: Annotated[Compute, typer.Option(help="Who runs the kernels.")] = Compute.EAGER,
    whole: Annotated[
        bool, typer.Option("--whole", help="Trace all layers, also where they are alike.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell what training a model would hold, move and take, before anything is allocated.

    Ends with status 0 if it fits, 1 if it does not, and 2 if the question is wrong.
    """
    # Here and not above: they need torch, which ``zinf --help`` does not.
    from zcompile.forecasting.command import Question, answer
    from zcompile.forecasting.command import as_json as forecast_as_json
    from zcompile.forecasting.loading import Wanted

    question = Question(
        model=model,
        target=target,
        device_budget=device_budget,
        host_budget=host_budget,
        host=host,
        nvme=nvme,
        compute=compute.value,
        optimizer=optimizer,
        wanted=Wanted(batch, sequence, dtype),
        whole=whole,
    )
    try:
        with Console(stderr=True).status(f"planning {model} for {target}"):
            found = answer(question)
    except ValueError as error:
        typer.echo(f"zinf: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(forecast_as_json(found) if as_json else str(found))
    if not found.fits:
        raise typer.Exit(1)


def _folders(given: list[Path] | None) -> tuple[Path, ...]:
    """Return the folders if files can be made in them; raise ``BadParameter`` if not."""
    try:
        return Options.parse({"nvme_dir": given or None}).nvme_dirs
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _run(setup: Setup) -> bool:
    # So that a terminated demo, like an interrupted one, takes its temporary folder with it.
    signal.signal(signal.SIGTERM, _exit_by_signal)
    console = Console()
    with console.status("importing torch and transformers"):
        # Here and not above: transformers reads its environment when it is imported, and
        # ``zinf --help`` needs neither.
        stay_offline()
        from zcompile.demo.run import run_demo
    return run_demo(setup, console)


def _fail(message: str) -> NoReturn:
    typer.echo(f"zinf: {message}", err=True)
    raise typer.Exit(1)

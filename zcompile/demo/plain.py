"""The same steps in plain PyTorch, in a process of their own: memory is not shared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from zcompile.demo.errors import PlainRunFailed
from zcompile.demo.job import Job
from zcompile.demo.loop import Iteration, fine_tune
from zcompile.demo.pretrained import load_model, read_batches


def run_plain(weights: Path, job: Job) -> Iterator[Iteration]:
    """Yield the iterations of the same job without this backend, as they are done."""
    command = [sys.executable, "-m", "zcompile.demo.plain", str(weights), job.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield Iteration(**json.loads(line))
    if process.returncode != 0:
        raise PlainRunFailed(process.returncode)


def main(weights: str, job: str) -> None:
    """Run the job and write one line of JSON for each iteration."""
    asked = Job.from_json(job)
    torch.set_num_threads(asked.threads)
    batches = read_batches(Path(weights), asked)
    model = load_model(Path(weights))
    for iteration in fine_tune(model, list(model.parameters()), batches, asked):
        sys.stdout.write(json.dumps(asdict(iteration)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

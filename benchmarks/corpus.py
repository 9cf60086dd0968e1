"""The corpus of planning: captured graphs of four model families, as files.

A schedule is in the text form of the IR; beside it lie the operations of each kernel, from which
a roofline gives its time on any machine.  `python benchmarks/corpus.py` captures them anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zcompile.ir import Cost, Kind, Operation, Schedule, parse, render

FOLDER = Path(__file__).parent / "corpus"
FAMILIES = ("llama", "gpt2", "bert", "vit")


@dataclass(frozen=True)
class Graphs:
    """The schedules of one model by name, and what each of their kernels costs."""

    schedules: Mapping[str, Schedule]
    costs: Mapping[str, Mapping[str, Cost]]


def load(family: str) -> Graphs:
    """Return the graphs of ``family`` from its files."""
    schedules = [parse(path.read_text()) for path in sorted(FOLDER.glob(f"{family}.*.sched"))]
    texts: dict[str, dict[str, list[list[Any]]]] = json.loads(
        (FOLDER / f"{family}.costs.json").read_text()
    )
    costs = {
        graph: {kernel: tuple(map(_operation, rows)) for kernel, rows in kernels.items()}
        for graph, kernels in texts.items()
    }
    return Graphs({each.name: each for each in schedules}, costs)


def _operation(row: list[Any]) -> Operation:
    name, kind, dtype, flops, nbytes, count = row
    return Operation(name, None if kind is None else Kind(kind), dtype, flops, nbytes, count)


def save(family: str, graphs: Graphs) -> None:
    """Write the files of ``family``."""
    FOLDER.mkdir(exist_ok=True)
    for name, schedule in graphs.schedules.items():
        (FOLDER / f"{family}.{name}.sched").write_text(render(schedule))
    texts = {
        graph: {
            kernel: [[o.name, o.kind, o.dtype, o.flops, o.nbytes, o.count] for o in cost]
            for kernel, cost in kernels.items()
        }
        for graph, kernels in graphs.costs.items()
    }
    lines = json.dumps(texts).replace("]], ", "]],\n")
    (FOLDER / f"{family}.costs.json").write_text(lines + "\n")


@dataclass(frozen=True)
class Case:
    """A model, and the shapes it is trained with."""

    name: str
    make: Callable[[], Any]
    batch: int
    length: int
    pixels: int = 0


def llama() -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=12,
        num_attention_heads=8,
    )
    return AutoModelForCausalLM.from_config(config)


def gpt2() -> Any:
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=8192)
    return AutoModelForCausalLM.from_config(config)


def bert() -> Any:
    from transformers import AutoModelForMaskedLM, BertConfig

    return AutoModelForMaskedLM.from_config(BertConfig(num_hidden_layers=6))


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_hidden_layers=8))


CASES = (
    Case("llama", llama, 2, 128),
    Case("gpt2", gpt2, 2, 128),
    Case("bert", bert, 2, 128),
    Case("vit", vit, 2, 0, 224),
)


def captured(case: Case) -> Graphs:
    """Run ``case`` once; return its graphs."""
    import torch

    import zcompile

    model = case.make()
    if case.pixels:
        inputs = {
            "pixel_values": torch.zeros(case.batch, 3, case.pixels, case.pixels),
            "labels": torch.zeros(case.batch, dtype=torch.long),
        }
    else:
        tokens = torch.zeros(case.batch, case.length, dtype=torch.long)
        inputs = {"input_ids": tokens, "labels": tokens}
    compiled = torch.compile(model, backend="zinf", options={"compute": "eager"})
    compiled(**inputs).loss.backward()
    reports = zcompile.schedules(compiled)
    schedules = {each.name: each.stages[0].before for each in reports}
    return Graphs(schedules, {each.name: each.costs for each in reports})


if __name__ == "__main__":
    import sys

    for each in CASES:
        if each.name in (sys.argv[1:] or FAMILIES):
            save(each.name, captured(each))

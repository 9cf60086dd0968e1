"""Compile DeepSpeed's operators: `python -m benchmarks.peers.build`."""

from __future__ import annotations

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder

if __name__ == "__main__":
    for builder in (CPUAdamBuilder(), AsyncIOBuilder()):
        print(builder.load(verbose=False))

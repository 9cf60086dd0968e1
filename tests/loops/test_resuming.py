"""Training that is saved, and goes on in fresh objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from tests.loops.nets import Layers, adamw, step
from tests.loops.playing import Run, check_loop


@pytest.mark.parametrize("assign", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_saved_run_goes_on(assign: bool, swap_dir: Path, tmp_path: Path) -> None:
    """The file is written while everything is at home, and read into a new model."""

    def begun(run: Run) -> tuple[nn.Module, Any, Any, Any]:
        model = Layers()
        optimizer = adamw(model.parameters(), weight_decay=0.1)
        return model, run.compile(model), optimizer, CosineAnnealingLR(optimizer, T_max=4)

    def loop(run: Run) -> None:
        model, call, optimizer, schedule = begun(run)
        for seed in range(2):
            step(run, call, model, optimizer, seed)
            schedule.step()
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        torch.save({name: each.state_dict() for name, each in parts.items()}, tmp_path / "saved")
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed)
            schedule.step()
        again, call, optimizer, schedule = begun(run)
        saved = torch.load(tmp_path / "saved", mmap=True)
        again.load_state_dict(saved["model"], assign=assign)
        if assign:  # its parameters are those of the file now
            optimizer = adamw(again.parameters(), weight_decay=0.1)
            schedule = CosineAnnealingLR(optimizer, T_max=4)
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        for seed in range(2, 4):
            step(run, call, again, optimizer, seed)
            schedule.step()
        for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(ours, theirs), "the resumed run is another one"
        # The first one is loaded back in place.
        model.load_state_dict(again.state_dict())

    check_loop(loop, swap_dir)

"""Any number of forecasts in one process: what Dynamo compiles for them is their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config

import zcompile
from zcompile.bridge.torch_private import isolated
from zcompile.forecasting.answer import Forecast

OPTIONS = {"device_budget": "1GiB", "nvme_dir": "/nvme", "compute": "eager"}


def nothing() -> None:
    pass


pause: Any = torch.compiler.disable(nothing)


class Broken(nn.Module):
    """Two graphs: what follows the break is code of the model, which Dynamo compiles apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        pause()
        z: Tensor = self.second(y)
        return z


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo, behind a graph break
@pytest.mark.skipif(not isolated(), reason="this torch counts all compilations of a code together")
def test_forecasts_leave_the_recompile_limit_alone() -> None:
    torch.compiler.reset()
    with dynamo_config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        found: list[Forecast] = []
        for _ in range(4):
            with torch.device("meta"):
                model, x = Broken(), torch.zeros(4, 32)
            found.append(zcompile.forecast(model, x, OPTIONS, "rtx4090"))
        assert {each.num_parameters for each in found} == {2 * (32 * 32 + 32)}
        assert all(each.fits for each in found)
        here = Broken()
        torch.compile(here, backend="zinf", options={"compute": "eager"})(torch.ones(4, 32))
        assert len(zcompile.schedules(here)) > 1

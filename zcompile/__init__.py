"""zinf: train models larger than memory through ``torch.compile(model, backend="zinf")``.

The backend needs no import of this package; the names here are for looking at what it does.
They are imported when first used, so that ``import zcompile`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zcompile import machines, optim
    from zcompile.clipping import clip_grad_norm_
    from zcompile.errors import BudgetError
    from zcompile.forecasting.forecast import forecast
    from zcompile.options import Options
    from zcompile.report.schedules import schedules
    from zcompile.report.stats import stats
    from zcompile.version import __version__

__all__ = [
    "BudgetError",
    "Options",
    "__version__",
    "clip_grad_norm_",
    "forecast",
    "machines",
    "optim",
    "schedules",
    "stats",
]

_MODULES = {
    "BudgetError": "zcompile.errors",
    "__version__": "zcompile.version",
    "Options": "zcompile.options",
    "clip_grad_norm_": "zcompile.clipping",
    "forecast": "zcompile.forecasting.forecast",
    "schedules": "zcompile.report.schedules",
    "stats": "zcompile.report.stats",
}


def __getattr__(name: str) -> object:
    if name in {"machines", "optim"}:
        return import_module(f"zcompile.{name}")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

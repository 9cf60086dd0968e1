"""What a budget error tells."""

from __future__ import annotations

import pickle
from dataclasses import replace

from zcompile.errors import BudgetError

VALUES = tuple((f"layers.{i}.weight", (i + 1) << 20) for i in range(7))
ERROR = BudgetError(
    "device_budget",
    1 << 20,
    smallest_bytes=30 << 20,
    step="compute seg_3(%x, %w) -> (%h)",
    values=VALUES,
)


def test_it_is_a_value_error_that_says_what_would_work() -> None:
    assert isinstance(ERROR, ValueError)
    assert str(ERROR).split("\n") == [
        "device_budget=1048576 B (1.0 MiB) is too small: "
        "31457280 B (30.0 MiB) is the smallest that works",
        "needed at step: compute seg_3(%x, %w) -> (%h)",
        "held there:",
        "  layers.6.weight: 7340032 B (7.0 MiB)",
        "  layers.5.weight: 6291456 B (6.0 MiB)",
        "  layers.4.weight: 5242880 B (5.0 MiB)",
        "  layers.3.weight: 4194304 B (4.0 MiB)",
        "  layers.2.weight: 3145728 B (3.0 MiB)",
        "  2 more: 3145728 B (3.0 MiB)",
        "set device_budget to at least 31457280, or make the step smaller: "
        "a smaller batch, shorter sequences, fewer pins to the device",
    ]


def test_it_names_the_other_tiers_where_there_are_none() -> None:
    error = replace(ERROR, only_tier=True)
    assert str(error).endswith(
        "\neverything has to stay on the device: give nvme_dir or host_budget"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_host_has_its_own_remedy() -> None:
    error = BudgetError("host_budget", 100, 200, step="release %g", values=())
    assert "held there" not in str(error)
    assert str(error).endswith(
        "set host_budget to at least 200, or give nvme_dir, or pin fewer values to the host"
    )


def test_it_crosses_processes() -> None:
    again = pickle.loads(pickle.dumps(ERROR))
    assert type(again) is BudgetError
    assert str(again) == str(ERROR)
    assert again.smallest_bytes == ERROR.smallest_bytes

"""The roofline: which of flops and bytes decides, and what is said where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zcompile.ir import Hardware, Kind, Operation, Priced, Unknown, price

MACHINE = Hardware(
    name="slow",
    source="made up",
    capacities={},
    links={},
    flops_per_s={Kind.MATMUL: {"float32": 100.0}},
    memory_bytes_per_s=10.0,
    launch_s=0.5,
)
PRODUCT = Operation("mm", Kind.MATMUL, "float32", 400, 20)


@pytest.mark.parametrize(
    ("operation", "seconds"),
    [
        (PRODUCT, 0.5 + 4.0),
        (replace(PRODUCT, nbytes=50), 0.5 + 5.0),
        (replace(PRODUCT, count=3), 1.5 + 4.0),
        (Operation("stream", Kind.STREAM, "int64", 0, 30, 2), 1.0 + 3.0),
    ],
)
def test_the_slower_of_the_two_decides(operation: Operation, seconds: float) -> None:
    assert price({"k": (operation,)}, MACHINE) == Priced({"k": seconds}, ())


def test_a_kernel_is_the_sum_of_its_operations() -> None:
    found = price({"k": (PRODUCT, PRODUCT), "nothing": ()}, MACHINE)
    assert found.seconds == {"k": 9.0, "nothing": 0.0}


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (replace(PRODUCT, kind=None), "nothing is known of what it does"),
        (replace(PRODUCT, dtype="bfloat16"), "slow has no flops_per_s[matmul][bfloat16]"),
        (replace(PRODUCT, kind=Kind.ATTENTION), "slow has no flops_per_s[attention][float32]"),
    ],
)
def test_what_is_not_known_is_no_number(operation: Operation, reason: str) -> None:
    found = price({"known": (PRODUCT,), "k": (PRODUCT, operation)}, MACHINE)
    assert found == Priced({"known": 4.5}, (Unknown("k", "mm", reason),))

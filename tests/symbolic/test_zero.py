"""The tables of the ZeRO and ZeRO-Offload papers, from the formulas."""

from __future__ import annotations

from fractions import Fraction

import pytest

from zcompile.symbolic.zero import (
    DEVICES,
    PARAMETERS,
    Stage,
    communicated_elements,
    model_state_bytes,
    offloaded_device_bytes,
    offloaded_traffic_bytes,
)

PARTITIONED = (Stage.OPTIMIZER, Stage.GRADIENTS, Stage.PARAMETERS)
BILLION = 10**9

# By parameters and devices: GB on each device with optimizer states, gradients too, and
# parameters too partitioned; as printed in Table 1.
TABLE_1 = {
    (Fraction(15, 2), 1): ("120", "120", "120"),
    (Fraction(15, 2), 4): ("52.5", "41.3", "30"),
    (Fraction(15, 2), 16): ("35.6", "21.6", "7.5"),
    (Fraction(15, 2), 64): ("31.4", "16.6", "1.88"),
    (Fraction(15, 2), 256): ("30.4", "15.4", "0.47"),
    (Fraction(15, 2), 1024): ("30.1", "15.1", "0.12"),
    (Fraction(128), 1): ("2048", "2048", "2048"),
    (Fraction(128), 4): ("896", "704", "512"),
    (Fraction(128), 16): ("608", "368", "128"),
    (Fraction(128), 64): ("536", "284", "32"),
    (Fraction(128), 256): ("518", "263", "8"),
    (Fraction(128), 1024): ("513", "257", "2"),
    (Fraction(1000), 1): ("16000", "16000", "16000"),
    (Fraction(1000), 4): ("7000", "5500", "4000"),
    (Fraction(1000), 16): ("4750", "2875", "1000"),
    (Fraction(1000), 64): ("4187", "2218", "250"),
    (Fraction(1000), 256): ("4046", "2054", "62.5"),
    (Fraction(1000), 1024): ("4011", "2013", "15.6"),
}


def gigabytes(stage: Stage, billions: Fraction, devices: int) -> Fraction:
    nbytes = model_state_bytes(stage).subs({PARAMETERS: billions * BILLION, DEVICES: devices})
    return Fraction(str(nbytes)) / BILLION


@pytest.mark.parametrize(("billions", "devices"), TABLE_1)
def test_table_1(billions: Fraction, devices: int) -> None:
    for stage, cell in zip(PARTITIONED, TABLE_1[billions, devices], strict=True):
        exact = gigabytes(stage, billions, devices)
        last_digit = Fraction(1, 10 ** len(cell.partition(".")[2]))
        # The paper cuts some cells off (4187.5 is printed 4187) and rounds others.
        assert abs(exact - Fraction(cell)) < last_digit


def test_without_partitions_every_device_holds_all() -> None:
    assert model_state_bytes(Stage.NONE) == 16 * PARAMETERS


@pytest.mark.parametrize(
    ("stage", "passes"),
    [(Stage.NONE, 2), (Stage.OPTIMIZER, 2), (Stage.GRADIENTS, 2), (Stage.PARAMETERS, 3)],
)
def test_communication(stage: Stage, passes: int) -> None:
    assert communicated_elements(stage) == passes * PARAMETERS


@pytest.mark.parametrize(
    ("gradients", "update", "nbytes"),
    [(False, False, 16), (True, False, 14), (False, True, 4), (True, True, 2)],
)
def test_zero_offload_keeps_2_bytes_a_parameter(gradients: bool, update: bool, nbytes: int) -> None:
    assert offloaded_device_bytes(gradients=gradients, update=update) == nbytes * PARAMETERS


def test_zero_offload_moves_4_bytes_a_parameter() -> None:
    assert offloaded_traffic_bytes() == 4 * PARAMETERS

"""`zcompile.schedules` on models that ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zcompile
from tests.report.models import BUDGET_BYTES, INPUT, compiled, layers, train
from zcompile.ir import Fetch, Update, parse
from zcompile.passes.pipeline import parse_pipeline
from zcompile.report.schedules import ScheduleReport


@pytest.fixture
def ran(tmp_path: Path) -> tuple[nn.Module, Any]:
    model = layers()
    module = compiled(model, tmp_path)
    train(module, list(model.parameters()), steps=1)
    return model, module


def test_there_is_one_for_each_graph(ran: tuple[nn.Module, Any]) -> None:
    reports = zcompile.schedules(ran[1])
    (forward, number), (backward, same) = (report.name.split(".") for report in reports)
    assert (forward, backward) == ("forward", "backward")
    assert number == same
    assert [repr(report) for report in reports] == [
        f"<ScheduleReport {report.name}: {len(report.schedule.steps)} steps>" for report in reports
    ]


def test_the_original_module_leads_to_the_same(ran: tuple[nn.Module, Any]) -> None:
    model, module = ran
    assert zcompile.schedules(model) == zcompile.schedules(module)


def test_the_text_parses_back_and_the_excerpt_agrees(ran: tuple[nn.Module, Any]) -> None:
    for report in zcompile.schedules(ran[1]):
        assert parse(report.text()) == report.schedule
        head = report.text().partition("\nschedule ")[0]
        assert str(report).startswith(head)
        assert report.steps() in str(report)


def test_the_code_carries_out_the_steps(ran: tuple[nn.Module, Any]) -> None:
    for report in zcompile.schedules(ran[1]):
        fetches = [step for step in report.schedule.steps if isinstance(step, Fetch)]
        assert fetches
        assert report.code.count("ops_fetch(") == len(fetches)


def test_stages_chain_from_what_was_captured_to_the_plan(ran: tuple[nn.Module, Any]) -> None:
    for report in zcompile.schedules(ran[1]):
        for earlier, later in zip(report.stages, report.stages[1:], strict=False):
            assert later.before == earlier.after
        assert report.stages[-1].after == report.schedule
        passes = parse_pipeline(report.pipeline)
        assert [stage.name for stage in report.stages] == [each.name for each in passes]


def test_a_diff_shows_one_pass_or_all(ran: tuple[nn.Module, Any]) -> None:
    report = zcompile.schedules(ran[1])[0]
    everything = report.diff()
    assert everything.startswith("--- captured\n+++ planned\n")
    assert "\n+fetch %" in everything
    assert report.diff("stream").startswith("--- before stream\n+++ after stream\n")
    with pytest.raises(ValueError, match=r"forward\.\d+: no pass 'paint' ran; these did: place, "):
        report.diff("paint")


def test_a_notebook_shows_the_excerpt(ran: tuple[nn.Module, Any]) -> None:
    report = zcompile.schedules(ran[1])[0]
    shown = report._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert shown.startswith("<pre>#")
    assert "&lt;- nvme" in shown
    assert "<-" not in shown


def test_a_report_is_frozen(ran: tuple[nn.Module, Any]) -> None:
    report = zcompile.schedules(ran[1])[0]
    assert isinstance(report, ScheduleReport)
    assert report.target.device_budget == BUDGET_BYTES
    with pytest.raises(AttributeError):
        report.code = ""  # type: ignore[misc]


def test_functions_have_schedules_too(tmp_path: Path) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    fast = compiled(double, tmp_path)
    fast(INPUT)
    (report,) = zcompile.schedules(fast)
    assert zcompile.schedules(double) == (report,)
    assert report.name.startswith("inference.")


def test_what_has_not_run_yet_is_told_apart_by_name(tmp_path: Path) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    waiting = compiled(layers(), tmp_path)
    with pytest.raises(ValueError, match=r"this OptimizedModule has not run .* call it once"):
        zcompile.schedules(waiting)
    with pytest.raises(ValueError, match=r"the function .*double has not run"):
        zcompile.schedules(double)
    with pytest.raises(ValueError, match="this int has not run"):
        zcompile.schedules(3)


def test_another_backend_leaves_no_schedules() -> None:
    model = nn.Linear(2, 2)
    torch.compile(model, backend="eager")(torch.zeros(1, 2))
    with pytest.raises(ValueError, match='backend="zinf"'):
        zcompile.schedules(model)


def test_the_plans_of_updates_follow_if_asked_for(ran: tuple[nn.Module, Any]) -> None:
    graphs = zcompile.schedules(ran[1])
    *same, update = zcompile.schedules(ran[1], updates=True)
    assert tuple(same) == graphs
    assert update.name == "update"
    assert parse(update.text()) == update.schedule
    assert any(isinstance(step, Update) for step in update.schedule.steps)
    name = next(each.name for each in update.schedule.values)
    assert update.explain(name).events
    assert update.code == ""


def test_a_stage_prints_what_it_changed(ran: tuple[nn.Module, Any]) -> None:
    for stage in zcompile.schedules(ran[1])[0].stages:
        assert str(stage) == (stage.diff() or f"{stage.name} changed nothing")
        assert len(repr(stage)) < 100

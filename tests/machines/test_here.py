"""The machine that we are on: where its file lies, who may read it, and what if it is not there."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from zcompile.machines import load_machine, render_machine
from zcompile.machines.here import here_path, results_path, write_private


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "zinf"


def test_it_is_refused_with_the_remedy_until_it_has_been_measured() -> None:
    with pytest.raises(ValueError, match=r"machine='here': this machine has not .* run zinf bench"):
        load_machine("here")


def test_it_is_what_was_written() -> None:
    machine = replace(load_machine("a100"), name="here")
    write_private(here_path(), render_machine(machine))
    assert load_machine("here") == machine


def test_a_file_of_another_form_is_refused_with_the_remedy() -> None:
    write_private(here_path(), "{}")
    with pytest.raises(ValueError, match=r"here-.*\.json: .*; run zinf bench to measure anew"):
        load_machine("here")


def test_only_the_owner_may_read_it(cache: Path) -> None:
    write_private(here_path(), "{}")
    assert stat.S_IMODE(here_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert list(cache.iterdir()) == [here_path()]


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path) -> None:
    assert here_path({"HOME": "/h", "XDG_CACHE_HOME": "/c"}).parent == Path("/c/zinf")
    # A path that is not absolute is none, by the specification of that variable.
    for given in ("", "relative"):
        assert here_path({"XDG_CACHE_HOME": given}).parent == Path.home() / ".cache" / "zinf"
    assert results_path().parent == here_path().parent == tmp_path / "cache" / "zinf"
    assert results_path() != here_path()


def test_runs_on_other_processors_have_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fewer(pid: int) -> set[int]:
        del pid
        return {4095}

    whole = here_path()
    monkeypatch.setattr(os, "sched_getaffinity", fewer)
    assert here_path() != whole


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/version")
    with pytest.raises(ValueError, match=r"cannot be written .*: set XDG_CACHE_HOME to a folder"):
        write_private(here_path(), "{}")

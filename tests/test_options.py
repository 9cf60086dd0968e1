"""What users write as options, and what they are told when it cannot work."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zcompile.ir import Tier
from zcompile.options import Options

SIZE_OPTIONS = ("device_budget", "host_budget")


def refusal(options: object) -> str:
    with pytest.raises(ValueError, match="=") as caught:
        Options.parse(options)  # type: ignore[arg-type]  # users pass anything
    return str(caught.value)


def test_the_list_of_options_is_a_decision() -> None:
    assert [field.name for field in dataclasses.fields(Options)] == [
        "device_budget",
        "host_budget",
        "nvme_dir",
        "compute",
        "pipeline",
        "skip",
        "place",
        "io",
        "target",
        "replan_after",
        "master_weights",
        "state_dtype",
        "rounding",
        "rounding_seed",
        "early_update",
        "checksums",
        "recompute",
    ]


@pytest.mark.parametrize("nothing", [None, {}], ids=["none", "empty"])
def test_no_options_at_all_work(nothing: dict[str, object] | None) -> None:
    assert Options.parse(nothing) == Options()
    assert Options().device_budget is None
    assert Options().compute == "inductor"
    assert dict(Options().place) == {}


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("512MiB", 512 << 20),
        ("2GB", 2_000_000_000),
        ("64 KiB", 64 << 10),
        (" 1.5 gib ", 3 << 29),
        ("4096", 4096),
        (4096, 4096),
        (1 << 40, 1 << 40),
    ],
    ids=repr,
)
@pytest.mark.parametrize("option", SIZE_OPTIONS)
def test_sizes(option: str, text: object, nbytes: int) -> None:
    assert getattr(Options.parse({option: text}), option) == nbytes


@pytest.mark.parametrize(
    "size",
    [
        "12 parsecs",
        "-1GiB",
        "1,5GiB",
        "512MiB/s",
        "512MiB of it",
        "lots",
        "nan",
        "",
        "0",
        "0.2",
        0,
        -4096,
        1.5,
        float("inf"),
        True,
        b"512MiB",
        ["512MiB"],
    ],
    ids=repr,
)
@pytest.mark.parametrize("option", SIZE_OPTIONS)
def test_a_size_that_is_none(option: str, size: object) -> None:
    text = refusal({option: size})
    assert text.startswith(f"{option}={size!r}: ")
    assert "write a whole number of bytes" in text or "leave it out" in text


@given(st.integers(1, 1 << 50), st.sampled_from(["", "B", "KiB", "MiB", "GiB", "KB", "MB", "GB"]))
def test_whole_numbers_of_any_unit_are_exact(count: int, unit: str) -> None:
    prefixes = ["", "K", "M", "G"]
    base = 1024 if "i" in unit else 1000
    scale = base ** prefixes.index(unit.removesuffix("B").removesuffix("i"))
    count = max(1, count // scale)  # beyond 2**53 bytes a size is read as a float
    assert Options.parse({"device_budget": f"{count}{unit}"}).device_budget == count * scale


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_refusal_that_names_the_option(text: str) -> None:
    told: int | str | None
    try:
        told = Options.parse({"device_budget": text}).device_budget
    except ValueError as error:
        told = str(error)
    if isinstance(told, str):
        assert told.startswith(f"device_budget={text!r}: ")
    else:
        assert told is not None
        assert told > 0


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("device_bugdet", "'device_budget'"),
        ("nvme", "'nvme_dir'"),
        ("Compute", "'compute'"),
        ("budget", "'host_budget' or 'device_budget'"),
    ],
)
def test_an_unknown_option_suggests_known_ones(option: str, meant: str) -> None:
    assert refusal({option: "1GiB"}) == f"{option}='1GiB': unknown option; did you mean {meant}?"


def test_an_unknown_option_far_from_any_lists_them() -> None:
    names = [field.name for field in dataclasses.fields(Options)]
    assert refusal({"zzz": 1}).endswith(f"the options are {', '.join(names)}")
    assert refusal({1: 2}).startswith("1=2: unknown option; ")


def test_early_updates_are_chosen_by_time_only_where_times_are_known() -> None:
    assert Options.parse({"early_update": True}).early_update is True
    assert Options.parse({"early_update": "auto", "target": "a100"}).early_update == "auto"
    assert refusal({"early_update": "auto"}) == (
        "early_update='auto': compares times, which needs target; give target, or write True or "
        "False"
    )
    for wrong in (1, "yes", None):
        told = refusal({"early_update": wrong})
        assert told == f"early_update={wrong!r}: is no choice; write True, False or 'auto'"


def test_every_wrong_option_is_told_at_once() -> None:
    wrong = {"device_budget": "x", "host_budget": -1, "compute": "fast", "zzz": 0}
    told = refusal(wrong).split("\n")
    assert [line.partition("=")[0] for line in told] == list(wrong)


def test_options_that_are_no_mapping() -> None:
    assert refusal(["512MiB"]).startswith("options=['512MiB']: ")


def test_compute() -> None:
    assert Options.parse({"compute": "eager"}).compute == "eager"
    assert refusal({"compute": "fast"}).startswith("compute='fast': ")
    assert "'inductor' or 'eager'" in refusal({"compute": "fast"})


def test_pipeline_is_text() -> None:
    text = "place,stream,prefetch{distance=2},pack"
    assert Options.parse({"pipeline": text}).pipeline == text
    assert refusal({"pipeline": 3}).startswith("pipeline=3: ")


@pytest.mark.parametrize("passes", ["keep, prefetch,", ["keep", "prefetch"], ("keep", "prefetch")])
def test_skip(passes: object) -> None:
    assert Options.parse({"skip": passes}).skip == ("keep", "prefetch")


@pytest.mark.parametrize("passes", [3, {"keep"}, ["keep", 3]], ids=repr)
def test_skip_that_is_no_list_of_names(passes: object) -> None:
    assert refusal({"skip": passes}).startswith(f"skip={passes!r}: ")


def test_the_environment_gives_what_the_options_leave_open() -> None:
    env = {"ZINF_SKIP": "prefetch", "ZINF_DEVICE_BUDGET": "1GiB"}
    assert Options.from_env(env) == Options(skip=("prefetch",))
    assert Options.from_env(env, {"compute": "eager"}).skip == ("prefetch",)
    assert Options.from_env(env, {"skip": "keep"}).skip == ("keep",)
    assert Options.from_env({}) == Options()
    assert Options.from_env({"ZINF_SKIP": ""}) == Options()
    assert Options.from_env({"ZINF_IO": "threads"}) == Options(io="threads")
    assert Options.from_env({"ZINF_IO": "threads"}, {"io": "python"}).io == "python"
    with pytest.raises(ValueError, match=r"^ZINF_IO='fast': must be 'auto', .*; or unset ZINF_IO$"):
        Options.from_env({"ZINF_IO": "fast"})


def test_parse_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZINF_SKIP", "prefetch")
    assert Options.parse({}) == Options()


def test_place_keeps_its_order(tmp_path: Path) -> None:
    pins = {"*.embed_tokens.*": "device", "parameters": Tier.NVME, "optimizer": "host"}
    options = Options.parse({"place": pins, "nvme_dir": tmp_path, "host_budget": "1GiB"})
    assert options.place == (
        ("*.embed_tokens.*", Tier.DEVICE),
        ("parameters", Tier.NVME),
        ("optimizer", Tier.HOST),
    )


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ({"optimizer": "disk"}, "pins 'optimizer' to 'disk'; the tiers are device, host, nvme"),
        ({"optimizer": None}, "pins 'optimizer' to None; the tiers are device, host, nvme"),
        ({"optimizer": ["nvme"]}, "pins 'optimizer' to ['nvme']; the tiers are"),
        (
            {3: "device"},
            "pins 3; write one of parameters, gradients, optimizer, activations, or a pattern",
        ),
        ({" ": "device"}, "pins ' '; write one of"),
        ({"optimizer": "nvme"}, "needs nvme_dir; give nvme_dir, or pin it to another tier"),
        ({"optimizer": "host"}, "needs host_budget; give host_budget, or pin it to another tier"),
        ("optimizer", "is no mapping"),
        (["optimizer"], "is no mapping"),
        (None, "is no mapping"),
    ],
    ids=repr,
)
def test_a_place_that_cannot_be(place: object, reason: str) -> None:
    text = refusal({"place": place})
    assert text.startswith(f"place={place!r}: ")
    assert reason in text


def test_a_wrong_budget_is_not_also_reported_as_missing() -> None:
    text = refusal({"host_budget": "x", "place": {"optimizer": "host"}})
    assert "host_budget='x'" in text
    assert "place" not in text


def test_options_are_frozen_values() -> None:
    pins = {"optimizer": "device"}
    options = Options.parse({"device_budget": "1MiB", "place": pins})
    pins["gradients"] = "device"
    assert dict(options.place) == {"optimizer": Tier.DEVICE}
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.device_budget = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert copy.deepcopy(options) == pickle.loads(pickle.dumps(options)) == options
    assert hash(copy.deepcopy(options)) == hash(options)


def test_pins_keep_their_order_because_the_last_that_matches_decides() -> None:
    pins = {"parameters": "nvme", "head.*": "device", "gradients": "device"}
    options = Options.parse({"place": pins, "nvme_dir": "swap"})
    assert [pattern for pattern, _ in options.place] == list(pins)


def test_replacing_an_option_checks_it() -> None:
    options = Options.parse({"place": {"optimizer": "device"}})
    assert dataclasses.replace(options, compute="eager").place == options.place
    with pytest.raises(ValueError, match="more than zero bytes"):
        dataclasses.replace(options, device_budget=-1)


def test_a_folder_that_exists_is_tried_and_left_empty(tmp_path: Path) -> None:
    assert Options.parse({"nvme_dir": tmp_path}).nvme_dir == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_needs_a_parent_and_is_not_made_yet(tmp_path: Path) -> None:
    assert Options.parse({"nvme_dir": str(tmp_path / "swap")}).nvme_dir == tmp_path / "swap"
    assert list(tmp_path.iterdir()) == []


def test_a_relative_folder_is_that_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Options.parse({"nvme_dir": "swap"}).nvme_dir == tmp_path / "swap"
    assert Options.parse({"nvme_dir": "~/swap"}).nvme_dir == tmp_path / "swap"


def test_several_folders_in_their_order(tmp_path: Path) -> None:
    names = [str(tmp_path / "b"), tmp_path / "a"]
    options = Options.parse({"nvme_dir": names})
    assert options.nvme_dir == options.nvme_dirs == (tmp_path / "b", tmp_path / "a")
    assert dataclasses.replace(options, compute="eager").nvme_dirs == options.nvme_dirs
    assert list(tmp_path.iterdir()) == []


def test_a_list_of_one_folder_is_that_folder(tmp_path: Path) -> None:
    assert Options.parse({"nvme_dir": [tmp_path]}).nvme_dir == tmp_path
    assert Options.parse({"nvme_dir": tmp_path}).nvme_dirs == (tmp_path,)
    assert Options.parse({}).nvme_dirs == ()


def test_each_of_several_folders_has_to_be_usable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = refusal({"nvme_dir": [tmp_path, tmp_path / "file"]})
    assert text.startswith(f"nvme_dir={str(tmp_path / 'file')!r}: is no folder")


def test_a_folder_is_named_once(tmp_path: Path) -> None:
    assert "twice; name each folder once" in refusal({"nvme_dir": [tmp_path, str(tmp_path)]})
    (tmp_path / "alias").symlink_to(tmp_path)
    text = refusal({"nvme_dir": [tmp_path, tmp_path / "alias"]})
    assert "is the same folder as" in text
    assert "name each folder once" in text


@pytest.mark.parametrize("folders", [[], [3], ["swap", ""], ["swap", None]], ids=repr)
def test_folders_that_are_no_paths(folders: list[object]) -> None:
    assert refusal({"nvme_dir": folders}).startswith(f"nvme_dir={folders!r}: ")


def test_checksums_need_files_that_are_not_read_through_the_page_cache(tmp_path: Path) -> None:
    assert Options.parse({"checksums": True, "nvme_dir": tmp_path}).checksums
    assert "give nvme_dir, or leave it out" in refusal({"checksums": True})
    given = {"checksums": True, "nvme_dir": tmp_path, "io": "buffered"}
    assert refusal(given).startswith("checksums=True: needs direct I/O")


# Not by permission bits: they do not bind root, and tests often run as root.
@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("file", "is no folder"),
        ("file/swap", "Not a directory"),
        ("dangling", "is no folder"),
        ("nowhere/swap", "No such file or directory"),
        ("/proc/zinf_swap", "cannot be used"),
        ("/proc", "cannot be used"),
    ],
)
def test_a_folder_that_cannot_be_used(
    folder: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("dangling").symlink_to("gone")
    text = refusal({"nvme_dir": folder})
    assert text.startswith("nvme_dir='")
    assert folder in text
    assert reason in text
    assert "name a folder" in text
    assert sorted(os.listdir()) == ["dangling", "file"]


@pytest.mark.parametrize("folder", ["", "  ", "a\0b", 3, b"swap", "~nobody_at_all/swap"], ids=repr)
def test_a_folder_that_is_no_path(folder: object) -> None:
    assert refusal({"nvme_dir": folder}).startswith(f"nvme_dir={folder!r}: ")

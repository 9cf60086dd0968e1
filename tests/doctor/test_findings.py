"""Each thing that is looked at, where it is well and where it is not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from zcompile.doctor import files, install, kernels
from zcompile.doctor.files import folder_findings, io_findings
from zcompile.doctor.finding import Finding, Status, as_json, warnings_among
from zcompile.doctor.install import accelerator_findings, install_findings
from zcompile.doctor.kernels import Combination, family_finding, optimizer_findings
from zcompile.doctor.system import huge_pages, system_findings
from zcompile.optim.native import NativeKernels
from zcompile.optim.rules import RULES
from zcompile.runtime.file_io import FileIO, refusal
from zcompile.runtime.mounts import file_system_of
from zcompile.runtime.native import Absent

MOUNTS = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
31 22 0:28 / /mnt/with\\040space rw shared:1 - tmpfs tmpfs rw
32 22 0:29 / /mnt/with rw - nfs4 server:/ rw
33 32 0:30 / /mnt/with rw - xfs /dev/sdb rw
"""


def by_subject(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {each.subject: each for each in findings}


def nothing_there() -> Absent:
    return Absent("it has not been built: run python -m zcompile.runtime.build")


def test_a_library_that_was_not_built_is_a_warning_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(install, "load", nothing_there)
    found = by_subject(install_findings())["native library"]
    assert found.status is Status.WARNING
    assert "it has not been built" in found.says
    assert found.remedy is not None
    assert "python -m zcompile.runtime.build" in found.remedy


def test_doing_without_the_library_on_purpose_is_no_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZINF_NATIVE", "0")
    found = by_subject(install_findings())["native library"]
    assert (found.status, found.remedy) == (Status.NOTE, "unset ZINF_NATIVE to use it")
    (updates,) = optimizer_findings()
    assert "torch's own kernels make every update" in updates.says


def test_a_missing_compiler_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = by_subject(install_findings())["C++ compiler"]
    assert found.status is Status.WARNING
    assert found.remedy is not None
    assert found.remedy.startswith("install g++ or clang")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("always madvise [never]\n", Status.WARNING),
        ("always [madvise] never\n", Status.OK),
        ("[always] madvise never\n", Status.OK),
        (None, Status.WARNING),
    ],
)
def test_huge_pages_by_the_setting_of_the_kernel(
    tmp_path: Path, text: str | None, status: Status
) -> None:
    setting = tmp_path / "enabled"
    if text is not None:
        setting.write_text(text)
    assert huge_pages(setting).status is status


def test_more_threads_than_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 4096)
    cores = by_subject(system_findings())["cores"]
    assert cores.status is Status.WARNING
    assert cores.remedy is not None
    assert "OMP_NUM_THREADS=" in cores.remedy


def test_the_way_to_files_is_the_one_that_is_taken() -> None:
    found = by_subject(io_findings({}))
    ways = (FileIO.URING, FileIO.THREADS, FileIO.PYTHON)
    best = next(io for io in ways if refusal(io) is None)
    assert found["I/O"].says == f"{best.value}, the best way that works here"


def test_a_way_that_was_asked_for_is_told() -> None:
    found = by_subject(io_findings({"ZINF_IO": "python"}))["I/O"]
    assert found.says == "python, since ZINF_IO=python asks for it"


def test_a_way_that_there_is_not_is_a_warning() -> None:
    (found,) = io_findings({"ZINF_IO": "pigeons"})
    assert found.status is Status.WARNING
    assert "ZINF_IO='pigeons': must be 'auto', " in found.says
    assert found.remedy == "unset ZINF_IO"


def test_a_forbidden_ring_is_a_warning_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(io: FileIO) -> str | None:
        return "io_uring_setup: Operation not permitted" if io is FileIO.URING else None

    monkeypatch.setattr(files, "refusal", forbidden)
    found = by_subject(io_findings({}))["io_uring"]
    assert found.status is Status.WARNING
    assert "Operation not permitted" in found.says
    assert found.remedy is not None
    assert "seccomp" in found.remedy


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    found = by_subject(folder_findings([tmp_path]))
    assert {"file system", "room", "direct I/O"} <= found.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_was_not_there_is_not_there_afterwards(tmp_path: Path) -> None:
    folder_findings([tmp_path / "new"])
    assert list(tmp_path.iterdir()) == []


def test_folders_on_one_device_are_a_warning(tmp_path: Path) -> None:
    found = folder_findings([tmp_path / "one", tmp_path / "two"])
    assert [each.subject for each in found].count("room") == 2
    told = by_subject(found)["devices"]
    assert told.status is Status.WARNING
    assert "share a device" in told.says
    assert all(name in told.says for name in ("one", "two"))
    assert list(tmp_path.iterdir()) == []


def test_folders_on_devices_of_their_own_are_well(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        found = by_subject(folder_findings([tmp_path, Path(elsewhere)]))
    if tmp_path.stat().st_dev != Path("/dev/shm").stat().st_dev:
        assert found["devices"].status is Status.OK


@pytest.mark.parametrize(
    ("kind", "told"), [("tmpfs", "takes memory"), ("nfs4", "crosses the network")]
)
def test_a_folder_on_no_local_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    def of_that_kind(folder: Path, mounts: str) -> str:
        del folder, mounts
        return kind

    monkeypatch.setattr(files, "file_system_of", of_that_kind)
    found = by_subject(folder_findings([tmp_path]))["file system"]
    assert found.status is Status.WARNING
    assert told in found.says


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/mnt/with space/x", "tmpfs"),
        ("/mnt/with", "xfs"),
        ("/mnt/within", "ext4"),
    ],
)
def test_the_innermost_mount_decides(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind


def test_what_is_tried_of_the_optimizers_is_all_native_or_explained() -> None:
    found = optimizer_findings()
    assert [each.subject for each in found] == [*kernels.FAMILIES]
    assert {rule.__name__ for rule in RULES} == kernels.FAMILIES.keys()
    assert [each for each in found if each.status is Status.WARNING] == []


def test_flags_without_torch_s_bits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_bits(*_: Any, **__: Any) -> None:
        return None

    loaded = NativeKernels.load()
    assert loaded is not None
    monkeypatch.setattr(NativeKernels, "arithmetic", other_bits)
    found = family_finding("SGD", list(kernels.combinations(loaded, kernels.FAMILIES["SGD"])))
    assert found.status is Status.WARNING
    assert "momentum=0.9, nesterov=True, fused=True" in found.says
    assert "0 of 18 combinations" in found.says


def test_what_torch_must_do_itself_is_no_warning() -> None:
    tried = [Combination({}, True, False), Combination({"nesterov": True}, False, True)]
    found = family_finding("SGD", tried)
    assert found.status is Status.OK
    assert found.says.endswith("torch's own kernels update nesterov=True")


def test_no_gpu_is_no_warning() -> None:
    assert warnings_among(accelerator_findings()) == ()


def test_a_warning_without_remedy_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        Finding("files", "I/O", Status.WARNING, "it is slow")


def test_findings_are_json_as_they_are() -> None:
    one = Finding("files", "I/O", Status.NOTE, "it is slow", "wait")
    assert as_json([one]) == {
        "num_warnings": 0,
        "findings": [
            {
                "section": "files",
                "subject": "I/O",
                "status": "note",
                "says": "it is slow",
                "remedy": "wait",
            }
        ],
    }

"""The options of the backend: one frozen object, made once at the edge."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from zcompile.io_buffers import SetAside
from zcompile.ir.schedule import PAGE_BYTES, Tier
from zcompile.precision import Precision, StateType

KINDS = ("parameters", "gradients", "optimizer", "activations")
"""What ``place`` can pin as a whole; every other key is a pattern of parameter names."""

SKIP_VARIABLE = "ZINF_SKIP"
"""The environment variable that gives ``skip``: passes left out, for bisecting a fault."""

IO_VARIABLE = "ZINF_IO"
"""The environment variable that gives ``io``: how files are read and written."""

REPLAN_AFTER = 3
"""Iterations that are measured on this machine unless told otherwise; the first does not count."""

_SIZE_FORM = re.compile(r"\s*\d+(\.\d+)?\s*[A-Za-z]*\s*", re.ASCII)
_SIZE_REMEDY = 'write a whole number of bytes, or text such as "512MiB" or "2GB"'
_NAMES_REMEDY = 'write names such as "prefetch,keep"'
_BYTE_SIZE = TypeAdapter(ByteSize)


def _size(given: object) -> int | None:
    if given is None:
        return None
    if isinstance(given, str):
        nbytes = _parsed_size(given)
    elif isinstance(given, int) and not isinstance(given, bool):
        nbytes = given
    else:
        raise ValueError(f"is no size; {_SIZE_REMEDY}")
    if nbytes <= 0:
        raise ValueError("must be more than zero bytes; leave it out to do without this option")
    return nbytes


def _parsed_size(text: str) -> int:
    # ByteSize reads "1,5GiB" as one byte and "512MiB/s" as 512 MiB: it stops where it
    # understands no more.  So the whole text must have the form of a size first.
    if not _SIZE_FORM.fullmatch(text):
        raise ValueError(f"is no size; {_SIZE_REMEDY}")
    try:
        return int(_BYTE_SIZE.validate_python(text))
    except ValidationError as error:
        raise ValueError(f"is no size ({error.errors()[0]['msg']}); {_SIZE_REMEDY}") from None


def _folders(given: object) -> Path | tuple[Path, ...] | None:
    if given is None or not isinstance(given, list | tuple):
        return None if given is None else _folder(given)
    folders = tuple(_folder(each) for each in cast("Sequence[object]", given))
    if not folders:
        raise ValueError("names no folder; name one or several, or leave it out to use no files")
    for at, each in enumerate(folders):
        if each in folders[:at]:
            raise ValueError(f"names {str(each)!r} twice; name each folder once")
    first, *more = folders
    return folders if more else first


def _folder(given: object) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ValueError(
            "is no path; write the folder as text or pathlib.Path, or several in a list"
        )
    text = os.fspath(cast("str | os.PathLike[str]", given))
    if not text.strip() or "\0" in text:
        raise ValueError("is no path; name a folder, or leave it out to use no files")
    try:
        # Absolute now: the training script may change its working directory later.
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # "~nobody"
        raise ValueError(f"cannot be resolved ({error}); write the whole path") from None


def _names(given: object) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple):
        raise ValueError(f"is no list of passes; {_NAMES_REMEDY}")
    names: list[str] = []
    for part in cast("Sequence[object]", parts):
        if not isinstance(part, str):
            raise ValueError(f"has {part!r} among the names of passes; {_NAMES_REMEDY}")
        names.append(part.strip())
    return tuple(name for name in names if name)


def _pins(given: object, others: ValidationInfo) -> tuple[tuple[str, Tier], ...]:
    if isinstance(given, tuple):  # pins that were read before, when an option is replaced
        given = dict(cast("tuple[tuple[str, Tier], ...]", given))
    if not isinstance(given, Mapping):
        raise ValueError('is no mapping; write for example {"optimizer": "nvme"}')
    asked = cast("Mapping[object, object]", given)
    pins = tuple(_pin(key, tier) for key, tier in asked.items())
    for option, tier in (("nvme_dir", Tier.NVME), ("host_budget", Tier.HOST)):
        # An option that failed its own check is absent from the data and reported by itself.
        pinned = [key for key, pinned_to in pins if pinned_to is tier]
        if pinned and others.data.get(option, "absent") is None:
            raise ValueError(
                f"pins {pinned[0]!r} to {tier.value!r}, which needs {option}; "
                f"give {option}, or pin it to another tier"
            )
    return pins


def _machine(given: object) -> object:
    return os.fspath(cast("os.PathLike[str]", given)) if isinstance(given, os.PathLike) else given


def _sums(given: bool, others: ValidationInfo) -> bool:
    if given and others.data.get("nvme_dir", "absent") is None:
        raise ValueError("there are no files to check; give nvme_dir, or leave it out")
    if given and others.data.get("io") == "buffered":
        raise ValueError(
            "needs direct I/O: through the page cache nobody can tell who has written; "
            "give another io, or leave it out"
        )
    return given


def _early(given: object, others: ValidationInfo) -> object:
    if given is True or given is False:
        return given
    if given != "auto":
        raise ValueError("is no choice; write True, False or 'auto'")
    # An option that failed its own check is absent from the data and reported by itself.
    if others.data.get("target", "absent") is None:
        raise ValueError("compares times, which needs target; give target, or write True or False")
    return given


def _replan(given: int | None, others: ValidationInfo) -> int | None:
    if given and others.data.get("target", "absent") is None:
        raise ValueError("plans go by distance and not by time; give target, or leave it out")
    return given


def _pin(key: object, tier: object) -> tuple[str, Tier]:
    if not isinstance(key, str) or not key.strip():
        raise ValueError(
            f"pins {key!r}; write one of {', '.join(KINDS)}, or a pattern of parameter names"
        )
    if not isinstance(tier, str) or tier not in list(Tier):
        raise ValueError(f"pins {key!r} to {tier!r}; the tiers are {', '.join(Tier)}")
    return key, Tier(tier)


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Options:
    """What a user may ask of the backend; every field has a default.

    ``device_budget`` and ``host_budget`` are bytes per compiled model and process, arena,
    transients and I/O buffers included.  ``None`` means: no limit on the device, and no use of the
    host tier.  ``nvme_dir`` is the folder under which homes in files are made; it is created if its
    parent exists.  Several, on devices of their own, are striped as one.  ``compute`` says who runs
    the kernels: Inductor, or PyTorch node by node, bitwise equal to a run without this backend.
    ``pipeline`` is the text form of the passes, ``None`` the default one; ``skip`` names passes to
    leave out of it.  ``place`` pins kinds and parameters to tiers: of the entries that match, the
    last decides, so the general come before the particular.  ``io`` says how files are read and
    written: natively by io_uring or by threads, through the page cache, or by Python's threads;
    ``auto`` takes the best that works.  ``target`` is the machine to plan for, a name or a JSON
    file as ``zcompile.machines`` loads them: with it plans are compared by the time they would
    take.  ``replan_after`` is the number of iterations after which they are compared once more,
    by what kernels took meanwhile; 0 is never.  By default it is 3 for the target ``"here"``, and
    never for another, which need not be this machine.

    ``master_weights`` keeps a copy in fp32 of every parameter in bf16 or fp16, for updating, and
    the states in fp32.  ``state_dtype`` keeps the states in another type.  ``rounding`` says how
    an update rounds what is stored in bf16 or in 8 bits; ``rounding_seed`` is for stochastic
    rounding.

    ``checksums`` keeps a sum of every page that is written to files, 4 bytes in memory for each
    4 KiB, and compares it whenever the page is read: a read that brings other bytes fails.

    ``early_update`` lets the update of what rests in files begin while backward still runs, in an
    eighth of the device budget: see ``docs/update.md``.  With ``"auto"``, which needs a ``target``,
    it may where the iteration is faster with it by simulation.

    ``recompute`` says whether backward may run forward's kernels again for what they save: where
    the budget has no room for it or that takes less time (``auto``), never, or as much as saves
    memory (``always``).

    The constructor takes values; `Options.parse` reads what a user wrote and also looks at the
    disk.
    """

    device_budget: Annotated[int | None, BeforeValidator(_size)] = None
    host_budget: Annotated[int | None, BeforeValidator(_size)] = None
    nvme_dir: Annotated[Path | tuple[Path, ...] | None, BeforeValidator(_folders)] = None
    compute: Literal["inductor", "eager"] = "inductor"
    pipeline: str | None = None
    skip: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    place: Annotated[tuple[tuple[str, Tier], ...], BeforeValidator(_pins)] = ()
    io: Literal["auto", "uring", "threads", "buffered", "python"] = "auto"
    target: Annotated[str | None, BeforeValidator(_machine)] = None
    replan_after: Annotated[int | None, Strict(), Field(ge=0, le=1000), AfterValidator(_replan)] = (
        None
    )
    master_weights: Annotated[bool, Strict()] = False
    state_dtype: StateType | None = None
    rounding: Literal["nearest", "stochastic"] = "nearest"
    rounding_seed: Annotated[int, Strict(), Field(ge=0, lt=1 << 64)] = 0
    early_update: Annotated[bool | Literal["auto"], BeforeValidator(_early)] = False
    checksums: Annotated[bool, Strict(), AfterValidator(_sums)] = False
    recompute: Literal["auto", "never", "always"] = "auto"

    @property
    def nvme_dirs(self) -> tuple[Path, ...]:
        """The folders that ``nvme_dir`` names; none without it."""
        if self.nvme_dir is None:
            return ()
        return self.nvme_dir if isinstance(self.nvme_dir, tuple) else (self.nvme_dir,)

    @property
    def measured_iterations(self) -> int:
        """How many iterations are measured before plans are compared once more; 0: none."""
        if self.replan_after is not None:
            return self.replan_after
        return REPLAN_AFTER if self.target == "here" else 0

    @property
    def precision(self) -> Precision:
        """How parameters and states are kept."""
        stochastic = self.rounding == "stochastic"
        return Precision(self.master_weights, self.state_dtype, stochastic, self.rounding_seed)

    @property
    def set_aside(self) -> SetAside:
        """What is set aside of the device budget, unless the planner finds more to be worth it."""
        return SetAside(self.nvme_dir is not None, self.early_update is True)

    @classmethod
    def parse(cls, given: Mapping[str, object] | None = None) -> Options:
        """Read the options as a user writes them; ``None`` gives the defaults.

        Raises ``ValueError`` with one line for each option that is wrong: the option, the value
        and the remedy.  A missing ``nvme_dir`` is not created here, only found to be possible.

        >>> Options.parse({"device_budget": "512MiB"}).device_budget
        536870912
        >>> Options.parse({"device_bugdet": "512MiB"})
        Traceback (most recent call last):
        ValueError: device_bugdet='512MiB': unknown option; did you mean 'device_budget'?
        """
        options = cls.read(given)
        options.check_folder()
        return options

    @classmethod
    def read(
        cls,
        given: Mapping[str, object] | None = None,
        written_as: Mapping[str, str] | None = None,
    ) -> Options:
        """Do what `parse` does, but do not look at the disk.

        ``written_as`` gives the names by which errors call options that were not given by theirs.
        """
        if isinstance(given, Mapping):
            given = {str(option): value for option, value in given.items()}
        try:
            return TypeAdapter(cls).validate_python({} if given is None else given)
        except ValidationError as error:
            lines = [_explain(each, written_as or {}) for each in error.errors()]
            raise ValueError("\n".join(lines)) from None

    def check_folder(self) -> None:
        """Raise ``ValueError`` if ``nvme_dir`` is given and cannot be used, as things are now."""
        for at, folder in enumerate(self.nvme_dirs):
            _check_folder(folder)
            for other in self.nvme_dirs[:at]:
                if folder.exists() and other.exists() and folder.samefile(other):
                    raise ValueError(
                        f"nvme_dir={str(folder)!r}: is the same folder as {str(other)!r}; "
                        "name each folder once"
                    )

    @classmethod
    def from_env(cls, env: Mapping[str, str], given: Mapping[str, object] | None = None) -> Options:
        """Read ``given``, with the defaults that the environment sets.

        ZINF_SKIP gives ``skip`` and ZINF_IO gives ``io``.  Does not look at the disk.
        """
        if given is not None and not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f'options={given!r}: write a dictionary, such as {{"device_budget": "2GB"}}'
            )
        variables = {"skip": SKIP_VARIABLE, "io": IO_VARIABLE}
        given = given or {}
        set_there = {
            option: name
            for option, name in variables.items()
            if name in env and option not in given
        }
        defaults = {option: env[name] for option, name in set_there.items()}
        return cls.read({**defaults, **given}, set_there)


def _explain(error: ErrorDetails, written_as: Mapping[str, str]) -> str:
    """Say of one wrong option its name, its value, and what to do."""
    option = str(error["loc"][0]) if error["loc"] else "options"
    names = [field.name for field in fields(Options)]
    if error["loc"] and option not in names:
        near = get_close_matches(option, names, n=1, cutoff=0.8) or get_close_matches(option, names)
        meant = " or ".join(map(repr, near))
        remedy = f"did you mean {meant}?" if near else f"the options are {', '.join(names)}"
        return f"{option}={error['input']!r}: unknown option; {remedy}"
    # Our own reasons arrive wrapped as "Value error, ..."; pydantic's say what should be.
    reason = error.get("ctx", {}).get("error") or _reason(error["msg"])
    name = written_as.get(option, option)
    remedy = f"; or unset {name}" if name != option else ""
    return f"{name}={error['input']!r}: {reason}{remedy}"


def _reason(message: str) -> str:
    """Return what pydantic says, in the words of our own reasons."""
    if message == "Input should be a valid boolean":
        return "must be True or False"
    return message.replace("Input should be", "must be", 1)


def _check_folder(folder: Path) -> None:
    """Raise ``ValueError`` unless files can be made in ``folder``, or ``folder`` in its parent.

    It is tried, and leaves nothing behind: permission bits say little to root, on read-only
    file systems and on those of the kernel.
    """
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise ValueError(f"nvme_dir={str(folder)!r}: is no folder; name a folder")
        if folder.is_dir():
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(bytes(PAGE_BYTES))
                probe.flush()
                os.fsync(probe.fileno())
        else:
            tempfile.TemporaryDirectory(dir=folder.parent, prefix=".zinf-probe-").cleanup()
    except OSError as error:
        raise ValueError(
            f"nvme_dir={str(folder)!r}: cannot be used ({error.strerror}); "
            "name a folder on a local disk that you may write to, with a parent that exists"
        ) from error

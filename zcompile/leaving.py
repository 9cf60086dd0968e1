"""What runs outside the compiled graphs of a model, why, and how many bytes of homes it reads.

Note [Leaving the compiled path].  Dynamo stops compiling now and then, and says so in a log at
most.  Plain PyTorch then runs over homes in files: right, but slow, and its gradients and
activations are in no plan.  Three things tell of it, none of which costs anything on the
compiled path: Dynamo's own limits, at the moment they are reached; the stacks of all threads,
when the trimming thread drops pages that somebody has touched; and gradients that autograd made
between two steps of an optimizer with no graph between them.  Each cause is warned of once.
Trained weights that are in no graph at all are in no file and in no plan: they are looked for
once, where a budget was asked for.
Other code that reads homes (between two graphs, saving, clipping, averaging) is counted and
never warned of.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, MappingProxyType

from torch import Tensor, nn
from torch.optim import Optimizer

from zcompile.bridge.torch_private import Attempt, forced_stance, in_compiled_call
from zcompile.errors import size_text
from zcompile.runtime.ledger import Ledger

OTHER = "other code: between graphs, saving, clipping, looking at weights"
"""The cause of all reads that are nobody's fault."""

THE_MODULE = (
    "the module itself ran, not what torch.compile returned: call that (its methods, such as "
    'generate, run the module), or compile in place with model.compile(backend="zinf", ...)'
)

MEMORY = (
    "The numbers are right.  Such code reads weights through the page cache, of which a few MiB "
    "stay resident; its activations, and its gradients until they are moved, are in ordinary "
    "memory, outside device_budget.  zcompile.stats(model) keeps the account"
)
IN_NO_GRAPH = (
    "outside the compiled graphs: {} of the trained weights are in no graph ({}).  Dynamo leaves a "
    "module out that has full backward hooks (register_full_backward_hook) or that "
    "torch.compiler.disable covers, and cannot trace sparse inputs; TORCH_LOGS=graph_breaks says "
    "why.  The numbers are right, but these weights, their gradients, states and activations stay "
    "in ordinary memory, outside device_budget.  Hooks on tensors and register_forward_hook are "
    "compiled; zcompile.stats(model) lists all that is in no graph"
)

WORTH_TELLING = 8
"""Weights in no graph are told of from 1/8 of the trained bytes on."""

MAX_NAMES = 3
"""How many of them are named."""


class Leaving:
    """The account of one session; ``read`` may be called by any thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._bytes: Counter[str] = Counter()
        self._untold: set[str] = set()
        self._told: set[str] = set()
        self._owner: weakref.ref[nn.Module] | None = None
        self._modules: frozenset[int] = frozenset()
        self._codes: frozenset[int] = frozenset()
        self._limits: list[str] = []
        self._failing: dict[str, None] = {}
        self._lap_bytes = 0
        self._num_runs = 0
        self._num_gradients = 0
        self._seen: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )

    def watch(self, owner: object) -> None:
        """Learn by what to recognise ``owner``, a module, where it runs uncompiled."""
        if isinstance(owner, nn.Module):
            self._owner = weakref.ref(owner)
            modules = list(owner.modules())
            codes = (getattr(each.forward, "__code__", None) for each in modules)
            self._modules = frozenset(map(id, modules))
            self._codes = frozenset(id(code) for code in codes if code is not None)

    def attempted(self, attempt: Attempt, home_bytes: int) -> None:
        """Take note that Dynamo is about to compile a frame, or refuses to from here on.

        ``home_bytes`` is what the parameters at home in files weigh.
        """
        if attempt.limit is None:
            self._failing[attempt.frame] = None
        elif not attempt.fatal:
            cause = _limit_reached(attempt)
            self._limits.append(cause)
            self._told.add(cause)
            if home_bytes:
                self._warn(f"each call that none of them fits reads up to {size_text(home_bytes)}"
                           " of homes in files", cause)  # fmt: skip

    def compiled(self, frame: str) -> None:
        """Take note that the attempt to compile ``frame`` gave a graph."""
        self._failing.pop(frame, None)

    def read(self, nbytes: int) -> None:
        """Count ``nbytes`` of homes as read by whatever runs outside the graphs now."""
        self._ledger.eager(nbytes)
        cause = self._cause_on_other_threads()
        with self._lock:
            self._bytes[cause] += nbytes
            if cause == OTHER:
                self._lap_bytes += nbytes
            elif cause not in self._told:
                self._untold.add(cause)

    def ran(self) -> None:
        """Take note that a graph is about to run; tell of what was found before."""
        self._num_runs += 1
        if self._untold:
            self._tell()

    def gradient(self) -> None:
        """Take note that autograd has made a gradient in ordinary memory."""
        self._num_gradients += 1

    def stepped(self, optimizer: Optimizer, home_bytes: int) -> None:
        """Look back on what was read since the last step.

        ``home_bytes`` is what the optimizer's parameters with gradients weigh in files.
        """
        runs, gradients = self._seen.get(optimizer, (-1, -1))
        self._seen[optimizer] = self._num_runs, self._num_gradients
        uncompiled = runs == self._num_runs and gradients < self._num_gradients
        with self._lock:
            lap_bytes, self._lap_bytes = self._lap_bytes, 0
            if uncompiled and home_bytes and 2 * lap_bytes >= home_bytes:
                cause = self._cause_outside()
                self._bytes[OTHER] -= lap_bytes
                self._bytes[cause] += lap_bytes
                self._untold |= {cause} - self._told
        if self._untold:
            self._tell()

    def trained(self, params: Iterable[Tensor], is_in_a_graph: Callable[[Tensor], bool]) -> None:
        """Warn if many of the weights that an optimizer has just updated are in no graph.

        Only those of the module that was compiled: other parameters are nobody's promise.
        """
        owner = self._owner() if self._owner is not None else None
        if owner is None:
            return
        names = {id(each): name for name, each in owner.named_parameters()}
        ours = [each for each in params if each.grad is not None and id(each) in names]
        missed = [each for each in ours if not is_in_a_graph(each)]
        missed_bytes = sum(each.nbytes for each in missed)
        if missed and WORTH_TELLING * missed_bytes >= sum(each.nbytes for each in ours):
            listed = [names[id(each)] for each in missed[:MAX_NAMES]]
            if len(missed) > MAX_NAMES:
                listed.append(f"{len(missed) - MAX_NAMES} more")
            warnings.warn(IN_NO_GRAPH.format(size_text(missed_bytes), ", ".join(listed)),
                          stacklevel=3)  # fmt: skip

    def bytes_by_cause(self) -> Mapping[str, int]:
        """Return the bytes of homes read outside the graphs so far, causes with none left out."""
        with self._lock:
            found = {cause: nbytes for cause, nbytes in self._bytes.items() if nbytes}
        return MappingProxyType({**dict.fromkeys(self._limits, 0), **found})

    def _tell(self) -> None:
        with self._lock:
            causes = sorted(self._untold)
            self._untold.clear()
            self._told.update(causes)
            found = [(cause, self._bytes[cause]) for cause in causes]
        for cause, nbytes in found:
            self._warn(f"{size_text(nbytes)} of homes in files were read by plain PyTorch", cause)

    def _warn(self, what: str, cause: str) -> None:
        warnings.warn(f"outside the compiled graphs: {cause}.  So {what}.  {MEMORY}", stacklevel=3)

    def _cause_on_other_threads(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        # Our own frame would hold itself, and the locals of all that called us: a cycle, which
        # keeps gradients and their homes until the collector comes by.
        del frames[threading.get_ident()]
        for frame in frames.values():
            if self._runs_uncompiled(frame):
                return self._cause_inside() if in_compiled_call(frame) else THE_MODULE
        return OTHER

    def _runs_uncompiled(self, innermost: FrameType) -> bool:
        """Whether a stack is in the forward of one of the modules as it was written."""
        frame: FrameType | None = innermost
        while frame is not None:
            if id(frame.f_code) in self._codes and id(frame.f_locals.get("self")) in self._modules:
                return True
            frame = frame.f_back
        return False

    def _cause_inside(self) -> str:
        """Return why a call of what was compiled runs the module as it was written."""
        stance = forced_stance()
        if stance is not None:
            return f'torch.compiler.set_stance("{stance}") is in force: leave it to compile again'
        return self._limits[-1] if self._limits else OTHER

    def _cause_outside(self) -> str:
        """Return why a whole iteration has run no graph."""
        inside = self._cause_inside()
        if inside != OTHER:
            return inside
        return _given_up(self._failing) if self._failing else THE_MODULE


def _limit_reached(attempt: Attempt) -> str:
    return (
        f"Dynamo has stopped compiling {attempt.frame}: {attempt.limit} reached with "
        f"{attempt.num_graphs} graphs, the last guard that failed is {attempt.reason}; call "
        "torch._dynamo.mark_dynamic on what varies, compile with dynamic=True, pad to few "
        "shapes, or raise the limit"
    )


def _given_up(frames: Mapping[str, None]) -> str:
    return (
        f"Dynamo gave up on {', '.join(frames)}: TORCH_LOGS=graph_breaks says why, and "
        "torch._dynamo.config.suppress_errors = False lets errors through"
    )

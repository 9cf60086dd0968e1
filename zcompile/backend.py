"""The entry point: what ``torch.compile(model, backend="zinf")`` calls for each graph."""

from __future__ import annotations

import copy
import os
import sys
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, NoReturn

from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from zcompile.bridge import torch_private
from zcompile.bridge.capture import Captured, capture
from zcompile.bridge.lower import lower
from zcompile.bridge.partition import partition
from zcompile.bridge.roles import GraphInput, graph_inputs, parameter_names, roles_of, saved_name
from zcompile.bridge.sizes import UnknownSize
from zcompile.collector import sparing_the_collector
from zcompile.errors import BudgetError
from zcompile.graphs import Graph
from zcompile.ir import Role
from zcompile.options import Options
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.handles import Handles
from zcompile.runtime.machine import MakeExecutor
from zcompile.session import Session

Compiled = Callable[..., Any]


class Backend:
    """Compiles graphs and knows the session of each compiled module or function.

    The sessions are found by what was compiled, by its identity and held weakly: a session ends
    with its model, and modules that call themselves equal have one each.  Everything else about a
    model lives in its session.  Graphs are numbered over all models: Dynamo may run what was
    compiled for one of them in the session of another.
    """

    __name__ = "zinf"

    def __init__(self, make_executor: MakeExecutor = CpuExecutor) -> None:
        self._make_executor = make_executor
        self._sessions: MutableMapping[object, dict[Options, Session]] = WeakIdKeyDictionary()
        self._folders: MutableMapping[object, dict[str, Options]] = WeakIdKeyDictionary()
        self._numbers = count()
        self.handles = Handles()
        self._watching = False

    def __call__(
        self,
        module: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, object] | None = None,
        **unknown: object,
    ) -> Compiled:
        """Compile one of Dynamo's graphs.

        Bad options do not raise here, where Dynamo would wrap the error in one of its own, but
        in the first call: before any kernel runs and before any parameter is touched.  So do
        budgets that cannot work; but see Note [Refused sizes].
        """
        owner = torch_private.compiled_object()
        leaves = pytree.tree_leaves(list(example_inputs))
        inputs = graph_inputs(module, leaves, owner, partial(self._called, owner))
        parameters = parameter_names(inputs, owner)
        try:
            if unknown:
                names = ", ".join(sorted(unknown))
                raise ValueError(f"{names}: backend zinf takes no such argument, only options")
            given = self._read(owner, options)
            _check_devices(example_inputs, given)
            _check_owner(owner, given)
            session = self.session(owner, given)
            if parameters is not None:
                session.planner.check_pins(parameters)
        except ValueError as error:
            return _Refusal(error)
        for at, each in inputs.items():
            if each.role is Role.PARAMETER:
                session.compiling.add(each.name, leaves[at])
        job = _Job(self, session, inputs, owned=owner is not None)
        compiled = job.run_or_refuse(module, example_inputs)
        if isinstance(compiled, _Refusal):
            return compiled.raised_now()
        session.leaving.watch(owner)
        return compiled

    def _read(self, owner: object | None, options: Mapping[str, object] | None) -> Options:
        """Read ``options``; a relative folder stays the one that it was for the first graph.

        The script may change its working directory between two graphs of one model.
        """
        given = Options.from_env(os.environ, options)
        if owner is None or options is None or given.nvme_dir is None:
            return given
        written = str(options.get("nvme_dir"))
        first = self._folders.setdefault(owner, {}).setdefault(written, given)
        return replace(given, nvme_dir=first.nvme_dir)

    def session(self, owner: object | None, options: Options) -> Session:
        """Return the session of ``owner`` under ``options``, a new one at first sight."""
        if not self._watching:
            self._watching = True
            end = torch_private.watch_attempts(partial(_attempted, weakref.ref(self)))
            weakref.finalize(self, end).atexit = False
        if owner is None:
            return Session(options, self._make_executor, self.all_sessions, self.handles)
        of_owner = self._sessions.setdefault(owner, {})
        if options not in of_owner:
            of_owner[options] = Session(
                options, self._make_executor, self.all_sessions, self.handles
            )
        return of_owner[options]

    def _called(self, owner: object | None, parameter: Tensor) -> str | None:
        """Return what a graph of ``owner`` has called ``parameter``, if one has had it."""
        sessions = () if owner is None else self.sessions(owner)
        names = (each.compiling.name_of(parameter) for each in sessions)
        return next((name for name in names if name is not None), None)

    def sessions(self, owner: object) -> tuple[Session, ...]:
        """Return the sessions that a compiled module or function has had so far."""
        return tuple(self._sessions.get(owner, {}).values())

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        """Return the backend itself: a copy of a compiled model is compiled by the same one."""
        del memo
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Let a compiled model be pickled: its session stays here, and a new one begins there."""
        return "zinf_backend" if self is zinf_backend else (type(self), (self._make_executor,))

    def managing(self, named: Mapping[str, Tensor], options: Options) -> Session | None:
        """Return a session under ``options`` that knows all these parameters by their names."""
        every = (each for each in self.all_sessions() if each.options == options)
        return next((each for each in every if each.knows(named)), None)

    def all_sessions(self) -> tuple[Session, ...]:
        """Return the sessions of all compiled modules and functions that there are."""
        return tuple(
            session for of_owner in list(self._sessions.values()) for session in of_owner.values()
        )

    def next_number(self) -> int:
        """Return a number that no graph of any model has had."""
        return next(self._numbers)


def _attempted(backend: weakref.ref[Backend]) -> None:
    """Tell the sessions of what Dynamo is compiling that it tries, or does not any more."""
    own, owner = backend(), torch_private.compiled_object()
    attempt = torch_private.attempt_under_way()
    if own is not None and owner is not None and attempt is not None:
        for session in own.sessions(owner):
            session.leaving.attempted(attempt, session.home_bytes())


def _check_devices(example_inputs: Sequence[Any], options: Options) -> None:
    """Raise ``ValueError`` if a budget is to be kept on a device that we do not drive yet."""
    tensors = (
        each for each in pytree.tree_leaves(list(example_inputs)) if isinstance(each, Tensor)
    )
    others = sorted({each.device.type for each in tensors} - {"cpu"})
    if others and options.device_budget is not None:
        raise ValueError(
            f"device_budget={options.device_budget}: the model has tensors on {', '.join(others)}, "
            "and budgets are kept on the CPU only so far; move the model to the CPU, or leave "
            "device_budget out"
        )


def _check_owner(owner: object, options: Options) -> None:
    """Raise ``ValueError`` if somebody else gives and takes the memory of its parameters."""
    if options.device_budget is None or not isinstance(owner, nn.Module):
        return
    if any(torch_private.is_fully_sharded(each) for each in owner.modules()):
        raise ValueError(
            f"device_budget={options.device_budget}: {type(owner).__name__} is sharded by "
            "fully_shard or FullyShardedDataParallel, which give and take the memory of its "
            "parameters themselves; train it unsharded or under DistributedDataParallel, or "
            "leave device_budget out"
        )


class _Job:
    """One of Dynamo's graphs on its way through AOTAutograd.

    AOTAutograd keeps it for as long as Dynamo keeps the compiled code, which is longer than
    the model lives: so it holds the session of a model weakly.
    """

    def __init__(
        self, backend: Backend, session: Session, inputs: dict[int, GraphInput], *, owned: bool
    ) -> None:
        self._backend = backend
        self._options = session.options
        self._own = weakref.ref(session)
        self._keep = None if owned else session
        self._inputs = inputs
        self._owned = owned
        self._number = backend.next_number()
        self._captured: dict[str, Captured] = {}
        self._forward: Graph | None = None
        self._saved: frozenset[str] = frozenset()

    @property
    def _session(self) -> Session:
        """The session that the graph is compiled in; a passing one when the model has gone.

        Another model of the class may run its first backward through the code then: what is
        compiled belongs to no session, and each call finds its own.
        """
        return self._own() or Session(self._options)

    def run(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Return the compiled form of Dynamo's ``module``."""
        with sparing_the_collector():
            return lower(
                module,
                example_inputs,
                eager=self._options.compute == "eager",
                compile_graph=self.compile,
                partition=self.partition,
            )

    def run_or_refuse(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Do what `run` does; where no plan can be made, return what raises the error."""
        try:
            return self.run(module, example_inputs)
        except (BudgetError, UnknownSize) as error:
            return _Refusal(error)
        finally:
            if (attempt := torch_private.attempt_under_way()) is not None:
                self._session.leaving.compiled(attempt.frame)

    def partition(
        self, joint: fx.GraphModule, joint_inputs: Any, **given: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Split the joint graph and plan both halves, before anything is compiled or run.

        Capturing changes a half in place, to one that does the same.  What comes back for
        compilation is AOTAutograd's: usually the forward half itself, and a copy of the
        backward half.  Where it is, it need not be captured again.
        """
        halves = partition(joint, joint_inputs, **given)
        forward = self._capture("forward", halves["forward"])
        self._saved = frozenset(forward.saved)
        backward = self._capture("backward", halves["backward"])
        self._session.announce([Graph(forward, None), Graph(backward, None)])
        self._captured = {"forward": forward, "backward": backward}
        return halves["forward"], halves["backward"]

    def compile(self, kind: str, module: fx.GraphModule, _: Sequence[Any]) -> Runner:
        """Compile one of AOTAutograd's graphs; a backward graph comes after `run` has ended."""
        with sparing_the_collector():
            return self._compile(kind, module)

    def _compile(self, kind: str, module: fx.GraphModule) -> Runner:
        captured, session = self._capture(kind, module), self._session
        compiled = None
        if not captured.inline:
            compiled = session.segments.compile(captured.segments, captured.attributes)
        backward = kind == "backward"
        if backward:
            graph = Graph(captured, compiled, self._forward)
        else:
            graph = Graph(captured, compiled, backward=self._captured.get("backward"))
        if kind == "forward":
            self._forward = graph
            torch_private.donate_nothing()  # or no call of backward may retain what it has read
        captured.forget_tracing()
        session.announce([graph])
        return Runner(self._backend, session, graph, backward=backward, owned=self._owned)

    def _capture(self, kind: str, module: fx.GraphModule) -> Captured:
        known = self._captured.pop(kind, None)
        if known is not None and known.is_still(module):
            return known
        roles = roles_of(
            module.graph, self._inputs, leaving=self._name_of_saved, coming=self._name_of_moved
        )
        inline = self._options.compute == "eager"
        return capture(f"{kind}.{self._number}", module.graph, module, roles, inline=inline)

    def _name_of_saved(self, index: int) -> str:
        """Name what forward saves for backward; in both graphs it stands at the same place."""
        return saved_name(self._number, index)

    def _name_of_moved(self, index: int) -> str | None:
        """Name it in backward, if forward may have moved it."""
        name = self._name_of_saved(index)
        return name if name in self._saved else None


class Runner:
    """The compiled form of one graph: a boxed call that finds the session of its arguments."""

    def __init__(
        self, backend: Backend, session: Session, graph: Graph, *, backward: bool, owned: bool
    ) -> None:
        self._boxed_call = True  # of the object: wrappers of Dynamo copy no class attribute
        self._backend = backend
        self._graph = graph
        self._backward = backward
        self._options = session.options
        self._session = weakref.ref(session)
        # A session ends with its model; one without a model ends with what was compiled.
        self._keep = None if owned else session

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if torch_private.has_tangent(args):
            raise ValueError(
                "forward-mode differentiation (torch.autograd.forward_ad) reached a compiled "
                "graph, which would lose the tangents; call the module itself within dual_level()"
            )
        return self._session_of(args).run(self._graph, args)

    def _session_of(self, args: Sequence[Any]) -> Session:
        """Return the session of the model that this call is for.

        Dynamo shares compiled code between models of one class, and models may share some
        of their parameters: so all parameters of the call decide.  Before they have been in
        any graph, what is being called does.
        """
        own = self._session()
        named = self._graph.managed(args)
        if own is not None and own.knows(named):
            return own
        owner = None if self._backward else torch_private.compiled_object()
        if owner is not None:
            return self._backend.session(owner, self._options)
        session = self._backend.managing(named, self._options)
        return session or own or self._backend.session(None, self._options)


class _Refusal:
    """What a graph compiles to when its options or its budget cannot work."""

    def __init__(self, error: ValueError) -> None:
        # A copy without what was being handled when it was raised: the frames in tracebacks
        # lead to the caller's, and Dynamo would keep the model in them with the compiled code.
        self._error = copy.copy(error)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        del args, kwargs
        raise copy.copy(self._error) from None

    def raised_now(self) -> Compiled:
        """Raise a ``BudgetError`` at once, so that nothing is compiled: Note [Refused sizes]."""
        if isinstance(self._error, BudgetError) and not torch_private.errors_are_hidden():
            raise _TooSmall(self._error, sys._getframe())  # pyright: ignore[reportPrivateUsage]
        return self


class _TooSmall(BudgetError, torch_private.BackendCompilerFailed):
    """A ``BudgetError`` that Dynamo lets through as it is.

    Note [Refused sizes].  Where sizes have varied Dynamo compiles for any size, and what comes of
    it would answer for all of them: a batch that is too large would take the smaller ones along,
    those that a script tries next.  So such an error leaves nothing compiled behind.

    Its traceback leaves out Dynamo's own frames, down to ``frame``.
    """

    __module__, __qualname__ = BudgetError.__module__, BudgetError.__qualname__

    def __init__(self, error: BudgetError, frame: FrameType) -> None:
        torch_private.BackendCompilerFailed.__init__(self, zinf_backend, error, frame)
        BudgetError.__init__(self, *error.fields())


zinf_backend = Backend()
"""What the entry point names: the backend of every ``torch.compile(..., backend="zinf")``."""

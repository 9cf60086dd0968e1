"""Every name of torch that carries no promise of stability, in one place.

``tests/fx/test_torch_private.py`` says which of them a new version of torch has broken.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, cast

import torch
import torch._functorch.config as functorch_config
from torch import fx, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame, eval_frame, external_utils
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.cache_size import exceeds_recompile_limit
from torch._dynamo.decorators import mark_dynamic
from torch._dynamo.eval_frame import OptimizedModule, innermost_fn
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import (
    _use_lazy_graph_module,  # pyright: ignore[reportPrivateUsage]
)
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import (
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)
from torch.utils.flop_counter import flop_registry

from zcompile.bridge.descriptors import (
    gradient_input_index,
    graph_input_index,
    is_saved_activation,
    mutated_input_index,
    output_descriptors,
    saved_index,
)

__all__ = [
    "INVOKE_SUBGRAPH",
    "NO_SYMBOL",
    "Attempt",
    "BackendCompilerFailed",
    "FakeTensorMode",
    "active_ddp",
    "aot_autograd",
    "attempt_under_way",
    "backward_outside_autocast",
    "compile_inner",
    "compiled_object",
    "content",
    "default_decompositions",
    "donate_nothing",
    "errors_are_hidden",
    "flop_formula",
    "forced_stance",
    "gradient_input_index",
    "graph_input_index",
    "has_hooks_on_saved",
    "has_tangent",
    "in_compiled_call",
    "is_fully_sharded",
    "is_random",
    "is_saved_activation",
    "is_sole_owner",
    "isolated",
    "lazy_modules",
    "leaves_operands",
    "mark_dynamic",
    "min_cut_rematerialization_partition",
    "mutated_input_index",
    "original_of",
    "output_descriptors",
    "outside_autocast",
    "saved_index",
    "source_text",
    "storage_key",
    "watch_attempts",
]


NO_SYMBOL = (TorchDynamoException, ConstraintViolationError)
"""What Dynamo raises for a model in which a length that shall be a symbol cannot be one."""


INVOKE_SUBGRAPH: Any = torch.ops.higher_order.invoke_subgraph
"""The operation that runs a region which Dynamo has traced once for several callers."""


def active_ddp() -> nn.Module | None:
    """Return the ``DistributedDataParallel`` that is running its module's forward now."""
    return DistributedDataParallel._active_ddp_module  # pyright: ignore[reportPrivateUsage]


def isolated() -> dict[str, bool]:
    """Return what makes a call of ``torch.compile`` count recompilations by itself.

    From torch 2.12 or 2.13 on; before, what it compiles counts with all else of the same code.
    """
    known = inspect.signature(cast("Callable[..., Any]", torch.compile)).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


@contextlib.contextmanager
def backward_outside_autocast() -> Generator[None, None, None]:
    """Let AOTAutograd trace a backward as it would run if nothing was compiled.

    It assumes that ``backward()`` is called in the autocast region of its forward, which cuts
    other numbers down than a call after the region, where PyTorch wants it to be.
    """
    with functorch_config.patch(backward_pass_autocast="off"):
        yield


def donate_nothing() -> None:
    """Let AOTAutograd know that backward does not write into what forward has saved."""
    context = TracingContext.try_get()
    donated = getattr(context.fw_metadata, "bw_donated_idxs", None) if context else None
    if donated is not None:
        donated.clear()  # one list, which AOTAutograd keeps elsewhere too


def outside_autocast() -> AbstractContextManager[None]:
    """Turn autocast off, as it is while a graph is traced."""
    private: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    return cast("AbstractContextManager[None]", private._DisableAutocast())


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that two fake tensors share exactly if they share their storage."""
    return int(tensor.untyped_storage()._cdata)  # pyright: ignore[reportPrivateUsage]


def is_sole_owner(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is all there is over its memory: no view, no larger buffer."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    storage = tensor.untyped_storage()
    users = torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore[reportPrivateUsage]
    return users == 2 and storage.nbytes() == tensor.nbytes  # the second one is ``storage``


def source_text(placeholder: fx.Node) -> str:
    """Return how Dynamo reaches the input, such as ``L['self']._modules['head']``, or ``""``."""
    source = getattr(placeholder, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def has_hooks_on_saved() -> bool:
    """Whether code around the call wants to pack what is saved for backward on this thread."""
    c: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    hooks: object = c._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None


def lazy_modules() -> AbstractContextManager[None]:
    """Let graph modules made within write their Python code only when they are called.

    Tracing makes many that never are; Inductor compiles within the same context.
    """
    return _use_lazy_graph_module(True)


def content(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a constant of a graph, also while fake tensors are being traced."""
    with _disable_current_modes():
        plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return plain.numpy().tobytes()


def _frames(frame: FrameType | None = None) -> Iterator[FrameType]:
    """Yield ``frame``, by default the caller's, and its callers."""
    frame = frame or sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        yield frame
        frame = frame.f_back


def compiled_object() -> object | None:
    """Return the module, other object or function whose code ``torch.compile`` was called with.

    Dynamo gives a backend the graph and not the thing compiled, so it is looked for among
    the callers: the innermost compile wrapper runs a function, unless an
    ``OptimizedModule`` has called it.  Methods of an object, such as ``forward`` or what
    ``module.compile()`` compiles, stand for the object, also where the method was decorated
    within its class.
    """
    for frame in _frames():
        if frame.f_code.co_name == "compile_wrapper" and "fn" in frame.f_locals:
            caller = frame.f_back.f_locals.get("self") if frame.f_back else None
            if isinstance(caller, OptimizedModule):
                return caller._orig_mod  # pyright: ignore[reportPrivateUsage]
            return _owner_of(frame.f_locals["fn"], frame.f_locals.get("args", ()))
    return None


def in_compiled_call(frame: FrameType) -> bool:
    """Whether ``frame``, of any thread, runs within a call of what ``torch.compile`` returned."""
    file = eval_frame.__file__
    return any(
        each.f_code.co_name == "compile_wrapper" and each.f_code.co_filename == file
        for each in _frames(frame)
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """What Dynamo is about to do with a frame: compile it, or never again.

    ``limit`` names the limit that forbids it, and is ``None`` if there is none; then torch
    runs the frame as plain Python wherever none of its ``num_graphs`` versions fits, because
    of ``reason``.  ``fatal`` says that it raises an error instead.
    """

    frame: str
    limit: str | None
    num_graphs: int
    reason: str
    fatal: bool


def watch_attempts(watcher: Callable[[], None]) -> Callable[[], None]:
    """Let ``watcher`` be called whenever Dynamo is about to compile a frame, or not to.

    Within it ``attempt_under_way`` says more.  Returns what ends it.
    """

    def hook() -> str:
        watcher()
        return "zinf"

    dynamo_utils.register_hook_for_recompile_user_context(hook)

    def end() -> None:
        hooks = dynamo_utils.get_hook_for_recompile_user_context() or []
        if hook in hooks:
            hooks.remove(hook)

    return end


def attempt_under_way() -> Attempt | None:
    """Return what Dynamo is compiling on this thread, if it is compiling."""
    for frame in _frames():
        if frame.f_code is convert_frame._compile.__code__:  # pyright: ignore[reportPrivateUsage]
            return _attempt(frame.f_locals)
    return None


def _attempt(of: dict[str, Any]) -> Attempt:
    exceeded, limit = exceeds_recompile_limit(of["cache_size"], of["compile_id"])
    code: CodeType = of["code"]
    reached = f"torch._dynamo.config.{limit} ({getattr(dynamo_config, limit, '')})"
    return Attempt(
        frame=f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})",
        limit=reached if exceeded else None,
        num_graphs=len(of["cache_entries"]),
        reason=str(of.get("recompile_reason") or "unknown"),
        fatal=bool(of["one_graph"] or dynamo_config.fail_on_recompile_limit_hit),
    )


def has_tangent(tensors: Sequence[object]) -> bool:
    """Whether one of ``tensors`` is a dual number of forward-mode differentiation."""
    forward_ad: Any = torch.autograd.forward_ad
    if forward_ad._current_level < 0:
        return False
    with forward_ad._set_fwd_grad_enabled(True):
        return any(
            forward_ad.unpack_dual(each).tangent is not None
            for each in tensors
            if isinstance(each, torch.Tensor)
        )


def errors_are_hidden() -> bool:
    """Whether Dynamo runs plain Python where a compilation fails."""
    return bool(dynamo_config.suppress_errors)


def forced_stance() -> str | None:
    """Return the stance of ``torch.compiler.set_stance`` if it keeps compiled code from running."""
    stance = eval_frame._stance.stance  # pyright: ignore[reportPrivateUsage]
    return stance if stance == "force_eager" else None


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether ``module`` was sharded by either of torch's FSDPs; imports neither."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, (fsdp.FSDPModule, fsdp.FullyShardedDataParallel))


def original_of(compiled: Callable[..., Any]) -> object:
    """Return the module, other object or function that `compiled_object` has found for it.

    What no call of ``torch.compile`` returned is its own original.
    """
    if isinstance(compiled, OptimizedModule):
        original: object = compiled._orig_mod  # pyright: ignore[reportPrivateUsage]
        return original
    return _owner_of(compiled if inspect.ismethod(compiled) else innermost_fn(compiled))


def _owner_of(function: Callable[..., Any], args: Sequence[object] = ()) -> object:
    """Return the object that ``function``, about to be called with ``args``, is a method of.

    A function that is nobody's method owns itself, and so does an object that is called as it is:
    Dynamo puts a function of its own around that.
    """
    if getattr(function, "__globals__", {}).get("__name__") == external_utils.__name__:
        function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", None) if inspect.ismethod(function) else None
    if owner is None and args and _is_method(function, type(args[0])):
        owner = args[0]
    if isinstance(owner, type) or not type(owner).__weakrefoffset__:  # sessions are held weakly
        return function
    return owner


def _is_method(function: Callable[..., Any], of: type) -> bool:
    """Whether a class has ``function`` by its name, bare or decorated."""
    found = getattr(of, getattr(function, "__name__", ""), None)
    return found is not None and inspect.unwrap(found) is inspect.unwrap(function)


def default_decompositions() -> dict[Any, Any]:
    """Return the decompositions that Inductor expects AOTAutograd to have applied.

    Random operations are left whole, so that they draw what eager code draws.
    """
    import torch._inductor.config as inductor_config
    from torch._inductor.decomposition import select_decomp_table

    with inductor_config.patch(fallback_random=True):
        return select_decomp_table()


def compile_inner(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Compile a graph of ATen operations with Inductor; the result takes a boxed list.

    Every output keeps the strides it was traced with: the next segment was traced against
    them.  Random operations run as ATen's own (see ``default_decompositions``).
    """
    import torch._inductor.config as inductor_config
    from torch._inductor.compile_fx import compile_fx_inner

    (output,) = module.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    with _output_strides_aside(), inductor_config.patch(fallback_random=True):
        return compile_fx_inner(module, inputs)


@contextlib.contextmanager
def _output_strides_aside() -> Generator[None, None, None]:
    """Keep Inductor from reporting a segment's strides as those of the whole graph."""
    context = TracingContext.try_get()
    if context is None:
        yield
        return
    before, context.output_strides = context.output_strides, []
    try:
        yield
    finally:
        context.output_strides = before


def leaves_operands(target: object) -> bool:
    """Whether it is known of an operation that it changes nothing that it is given."""
    if isinstance(target, OpOverload):
        return not target._schema.is_mutable  # pyright: ignore[reportPrivateUsage]
    return target is operator.getitem


def is_random(target: object) -> bool:
    """Whether an operation draws random numbers: the order of such operations matters."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def flop_formula(target: object) -> Callable[..., Any] | None:
    """Return torch's formula for the flops of an operation, if it has one.

    It takes what the operation takes, with fake tensors, and ``out_val``, its result.
    """
    packet = getattr(target, "overloadpacket", None)
    found: Callable[..., Any] | None = flop_registry.get(packet) if packet is not None else None
    return found

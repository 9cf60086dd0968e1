"""Which layers of a model are alike, so that tracing a few of them tells of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import cast

from torch import nn

MIN_BLOCKS = 7
"""A list of fewer blocks is traced whole."""

SHORT_BLOCKS = 5
"""Blocks that stand for all: a first, a last, and one between two of its like.

The first and the last often save something else for backward, or make what all others read.
"""

MAX_FIRST, MAX_UNIT = 8, 8
"""Layers before the pattern begins, and layers of one period of it, at the most."""

SETTINGS = (str, int, float, bool, tuple, type(None))
"""Types of attributes that say how a layer differs from another."""

LISTS = frozenset({nn.ModuleList, nn.Sequential})
"""By exact type: a subclass may do anything with what is in it."""


@dataclass(frozen=True, slots=True)
class Layers:
    """A list of layers in which blocks of ``unit`` layers repeat, behind the ``first`` ones.

    ``path`` is the name of the list in its model; ``length`` counts all its layers.
    """

    path: str
    length: int
    first: int
    unit: int

    @property
    def prefix(self) -> str:
        """What the names of all that is in the list begin with."""
        return f"{self.path}." if self.path else ""

    @property
    def num_blocks(self) -> int:
        return (self.length - self.first) // self.unit

    def length_with(self, num_blocks: int) -> int:
        """Return how many layers the list has with so many blocks."""
        return self.length - (self.num_blocks - num_blocks) * self.unit


def repeating(model: nn.Module) -> tuple[Layers, ...]:
    """Return the outermost lists of ``model`` that repeat a pattern often enough to be short."""
    found: list[Layers] = []
    for path, module in _named_modules(model):
        inside = any(path.startswith(each.prefix) for each in found)
        if type(module) not in LISTS or inside or not _is_numbered(module):
            continue
        children = tuple(module.children())
        pattern = _pattern(children)
        if pattern is not None:
            found.append(Layers(path, len(children), *pattern))
    return tuple(found)


def shorten(
    model: nn.Module, lists: Sequence[Layers], num_blocks: Mapping[str, int]
) -> dict[int, nn.Module]:
    """Return for the id of each of the ``lists`` one with so many blocks of the same layers."""
    made: dict[int, nn.Module] = {}
    for each in lists:
        whole = model.get_submodule(each.path)
        kept = tuple(whole.children())[: each.length_with(num_blocks[each.path])]
        made[id(whole)] = (
            nn.ModuleList(kept) if type(whole) is nn.ModuleList else nn.Sequential(*kept)
        )
        made[id(whole)].training = whole.training
    return made


def _named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(cast("Iterator[tuple[str, nn.Module]]", model.named_modules()))


def _is_numbered(module: nn.Module) -> bool:
    names = [name for name, _ in module.named_children()]
    is_whole = isinstance(module, Sized) and len(names) == len(module)
    return is_whole and names == [str(at) for at in range(len(names))]


def _pattern(layers: Sequence[nn.Module]) -> tuple[int, int] | None:
    """Return how many layers stand before a repeating pattern, and its length, if there is one.

    A list in which one module stands twice shares weights, and is not taken apart.
    """
    if len(set(map(id, layers))) < len(layers):
        return None
    kinds = _kinds(layers)
    candidates = sorted(
        ((first, unit) for first in range(MAX_FIRST) for unit in range(1, MAX_UNIT)), key=sum
    )
    for first, unit in candidates:
        repeats = all(a == b for a, b in zip(kinds[first:], kinds[first + unit :], strict=False))
        if repeats and (len(layers) - first) // unit >= MIN_BLOCKS:
            return first, unit
    return None


def _kinds(layers: Sequence[nn.Module]) -> tuple[int, ...]:
    """Number the layers so that those with one number differ in nothing but their index."""
    kinds: list[int] = []
    for index, layer in enumerate(layers):
        known = (at for at in range(index) if _alike(layers[at], at, layer, index))
        kinds.append(kinds[first] if (first := next(known, None)) is not None else index)
    return tuple(kinds)


def _alike(a: nn.Module, at_a: int, b: nn.Module, at_b: int) -> bool:
    """Whether two layers have the same parts; a number may be the layer's index in each."""
    parts_a, parts_b = _named_modules(a), _named_modules(b)
    if [(name, type(each)) for name, each in parts_a] != [(n, type(e)) for n, e in parts_b]:
        return False
    return all(
        _tensors(one) == _tensors(other) and _settings_alike(one, at_a, other, at_b)
        for (_, one), (_, other) in zip(parts_a, parts_b, strict=True)
    )


def _tensors(module: nn.Module) -> list[tuple[object, ...]]:
    named = (
        *module.named_parameters(recurse=False),
        *module.named_buffers(recurse=False),
    )
    return [(name, t.shape, t.stride(), t.dtype, t.requires_grad) for name, t in named]


def _settings_alike(a: nn.Module, at_a: int, b: nn.Module, at_b: int) -> bool:
    own_a, own_b = dict(_settings(a)), dict(_settings(b))
    return own_a.keys() == own_b.keys() and all(
        own_a[name] == own_b[name] or (own_a[name], own_b[name]) == (at_a, at_b) for name in own_a
    )


def _settings(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the plain attributes of ``module``, and how many hooks of each kind it has."""
    for name, value in vars(module).items():
        if isinstance(value, SETTINGS):
            yield name, value
        elif name.endswith("_hooks"):
            yield name, len(value)

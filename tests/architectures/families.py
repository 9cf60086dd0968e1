"""All families that are trained, by name."""

from __future__ import annotations

from tests.architectures.family import Family
from tests.architectures.language import LANGUAGE
from tests.architectures.senses import SENSES

FAMILIES: dict[str, Family] = {**LANGUAGE, **SENSES}

"""Parts of SGLang by name, imported without what a server needs beside them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from unittest.mock import MagicMock


def parts_of(package: str, names: Mapping[str, str]) -> SimpleNamespace:
    """``names``, name to its module below ``package``, and torch. What SGLang warns of while it is imported concerns
    its authors, not whoever selects it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stand_in_for_torchvision()
        modules = {name: importlib.import_module(f"{package}.{where}") for name, where in names.items()}
    import torch

    return SimpleNamespace(torch=torch, **{name: getattr(module, name) for name, module in modules.items()})


def stand_in_for_torchvision() -> None:
    """An image model's configuration imports it, and its wheel does not load beside a torch for the CPU. Where it is
    missing something stands in, once transformers has noticed that it is missing, and remembers."""
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        importlib.import_module("transformers.utils").is_torchvision_available()
        parts = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
        sys.modules.update({name: MagicMock(__spec__=None) for name in parts})

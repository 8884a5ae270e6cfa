"""Adapter for models of transformers to plain PyTorch modules.

Invariant: transformers is never imported here; if a model of it exists, it has been imported already.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn


class HuggingFaceModule(nn.Module):
    """A ``transformers.PreTrainedModel`` with the key-value cache off and tensors, tuples and dicts for outputs.

    Keyword inputs are passed on as they are. ``model`` is the wrapped model itself, not a copy.
    """

    def __init__(self, model: nn.Module, input_names: Sequence[str] = ()) -> None:
        """Wrap a model.

        Args:
            model: the pretrained model.
            input_names: names for positional inputs, in order, if the model's own order is not suitable, e.g.
                ``("input_ids", "decoder_input_ids")``; by default they are passed by position.
        """
        super().__init__()
        self.model = model
        self.input_names = tuple(input_names)
        self._settings: dict[str, Any] = {"use_cache": False} if _takes_use_cache(model) else {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.input_names:
            kwargs = {**dict(zip(self.input_names, args, strict=True)), **kwargs}
            args = ()
        return plain(self.model(*args, **{**self._settings, **kwargs}))


def adapt(module: nn.Module, input_names: Sequence[str] = ()) -> nn.Module:
    """Return the module, wrapped if it is a transformers model; ``input_names`` are as for `HuggingFaceModule`."""
    return HuggingFaceModule(module, input_names) if is_pretrained_model(module) else module


def is_pretrained_model(module: nn.Module) -> bool:
    """Return whether the module is a ``transformers.PreTrainedModel``."""
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return base is not None and isinstance(module, base)


def plain(output: Any) -> Any:
    """Return an output with ``ModelOutput`` as a dict, and without values that contain no tensor."""
    if isinstance(output, Mapping):
        kept = {str(name): plain(value) for name, value in output.items()}
        return {name: value for name, value in kept.items() if value is not None}
    if isinstance(output, list | tuple):
        items = tuple(plain(value) for value in output)
        return tuple(value for value in items if value is not None) or None
    return output if isinstance(output, Tensor) else None


def _takes_use_cache(model: nn.Module) -> bool:
    """Return whether ``forward`` has a parameter ``use_cache``, or ``**kwargs`` and a configured cache."""
    parameters = inspect.signature(model.forward).parameters
    rest = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return "use_cache" in parameters or (rest and bool(getattr(model.config, "use_cache", False)))

"""Generation by the components of an exported model: ``generate`` of the model's own class, without its weights.

Invariant: every forward pass of the model is one of a component; what has no component cannot run, since the class is
made on the meta device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from transformers.exporters.base import ExportedModel

from taso_py.huggingface.exporter import DECODE, ENCODER, PREFILL, ExporterError


def generation_model(exported: ExportedModel) -> Any:
    """Return a model whose ``generate`` runs the components of an exported one.

    Args:
        exported: as ``export_for_generation`` returns it, or ``ExportedModel.from_pretrained``.

    Raises:
        ExporterError: it has no components for the two stages of generation.
    """
    if exported.components.keys() - {ENCODER} != {PREFILL, DECODE}:
        found = ", ".join(exported.components)
        raise ExporterError(f"{PREFILL} and {DECODE} are needed to generate, and the model has {found}; call these")
    name = exported.components[DECODE].metadata.architecture
    architecture = getattr(transformers, str(name), None)
    if architecture is None or exported.config is None:
        raise ExporterError(f"transformers has no class {name}; call the components yourself")
    with torch.device("meta"):
        model = _class_of(architecture, exported)(exported.config)
    if exported.generation_config is not None:
        model.generation_config = exported.generation_config
    if ENCODER in exported.components:
        encoder = model.get_encoder()
        encoder.forward = _call_like(encoder.forward, partial(_run, exported, ENCODER))
    return model.eval()


def _run(exported: ExportedModel, component: str, **kwargs: Any) -> Any:
    """Run a component on those of some arguments that it was exported with."""
    runner = exported.runners[component]
    return runner(**{name: value for name, value in kwargs.items() if name in runner.metadata.kwargs})


def _call_like(original: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the signature of another one: what generate passes depends on it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    vars(call)["__signature__"] = inspect.signature(original)
    return call


def _class_of(architecture: Any, exported: ExportedModel) -> Any:
    """Return a class like a model's, whose instances run the components of an exported model."""

    class Generating(architecture):
        """A model without weights."""

        @property
        def device(self) -> torch.device:
            return exported.device

        @property
        def dtype(self) -> torch.dtype:
            return exported.dtype

        def _prefill(self, *args: Any, **kwargs: Any) -> Any:
            self._stage = PREFILL
            try:
                return super()._prefill(*args, **kwargs)
            finally:
                self._stage = DECODE

        forward = _call_like(architecture.forward, lambda model, **kwargs: _run(exported, model._stage, **kwargs))

    Generating.__name__ = Generating.__qualname__ = architecture.__name__
    return Generating

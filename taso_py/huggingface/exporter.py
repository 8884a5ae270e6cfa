"""Exporter and runner of the export backend ``taso``; importing this module registers them with transformers.

The interface of ``transformers.exporters`` is experimental, so that versions that were not tested are refused.

Invariant: the components of one model share weights and state, as exported, saved and loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from taso_py.entries.optimize import optimize_together
from taso_py.huggingface.archive import OptimizedProgram, SharedWeights, load_component
from taso_py.ir.errors import TasoError
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.saving.weights_file import WEIGHTS

FORMAT = "taso"
"""The name of the backend."""
TESTED = ("5.23",)
"""The versions of transformers whose interface was tested."""


class ExporterError(TasoError):
    """Raised where the backend cannot be used as asked."""


def _check_version() -> None:
    try:
        found = version("transformers")
    except PackageNotFoundError:
        found = "absent"
    if not found.startswith(tuple(f"{tested}." for tested in TESTED)):
        advice = f"install transformers=={TESTED[-1]}.*"
        raise ExporterError(f"transformers is {found}, and its exporters were tested in {', '.join(TESTED)}; {advice}")


_check_version()

from transformers.exporters import (  # noqa: E402  (only a tested version has what follows)
    DynamoConfig,
    DynamoExporter,
    ExportedModel,
    register_backend,
)
from transformers.exporters.base import ExportedComponent  # noqa: E402
from transformers.exporters.runners.runner_dynamo import DynamoModelRunner  # noqa: E402


@dataclass
class TasoConfig(DynamoConfig):
    """How to export a model, as for ``DynamoConfig``, and how to optimize what was exported."""

    export_format: str = FORMAT
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The fields of :class:`taso_py.Options`."""


class _ProgramExporter(DynamoExporter):
    """Exports programs that are not optimized yet."""

    config_class = TasoConfig


class TasoExporter(DynamoExporter):
    """Exports a model of transformers as programs that are optimized together."""

    export_format = FORMAT
    config_class = TasoConfig
    program_suffix = ".taso"

    def export(self, model: Any, sample_inputs: Any, config: Any) -> ExportedModel:
        """Export a model as one optimized program.

        Raises:
            TasoError: it cannot be optimized.
        """
        return self._optimized(_ProgramExporter().export(model, sample_inputs, config), config)

    def export_for_generation(
        self,
        model: Any,
        sample_inputs: Any,
        config: Any,
        *,
        generation_config: Any = None,
        multi_token_decode: bool = False,
    ) -> ExportedModel:
        """Export the stages of generation as optimized programs, which share their weights.

        Raises:
            TasoError: one cannot be optimized.
        """
        programs = _ProgramExporter().export_for_generation(
            model,
            sample_inputs,
            config,
            generation_config=generation_config,
            multi_token_decode=multi_token_decode,
        )
        return self._optimized(programs, config)

    def _optimized(self, exported: ExportedModel, config: Any) -> ExportedModel:
        options = Options.from_mapping(config.options)
        sources = {name: _source(name, component.program) for name, component in exported.components.items()}
        found = optimize_together(sources, options, saves=True)
        entries = {name: entry.savable for name, entry in found.items() if entry.savable is not None}
        weights = SharedWeights(
            {name: entry.weights for name, entry in entries.items()},
            {name: list(entry.state) for name, entry in entries.items()},
        )
        components = {
            name: ExportedComponent(
                OptimizedProgram.of(name, found[name].optimized.module, entry, weights),
                exported.components[name].metadata,
            )
            for name, entry in entries.items()
        }
        return ExportedModel(
            components, FORMAT, config=exported.config, generation_config=exported.generation_config
        )

    @classmethod
    def save_program(cls, program: OptimizedProgram, path: str | Path) -> None:
        """Write a component, and the weights of all beside it."""
        program.save(Path(path))

    @classmethod
    def load_program(cls, path: str | Path) -> OptimizedProgram:
        """Read a component back, ready to run."""
        return load_component(Path(path))

    @classmethod
    def program_files(cls, filename: str) -> list[str]:
        """Return the files of a component."""
        return [filename, WEIGHTS]


def _source(name: str, program: ExportedProgram) -> Source:
    assert program.example_inputs is not None  # torch.export keeps them
    args, kwargs = program.example_inputs
    return Source(name, program, args, kwargs)


class TasoModelRunner(DynamoModelRunner):
    """Runs a component."""

    @property
    def device(self) -> torch.device:
        """The device that it was exported on, which is the only one it runs on."""
        return torch.device(self.metadata.export_device)

    @classmethod
    def from_program(cls, program: OptimizedProgram, metadata: Any, device: Any = None) -> TasoModelRunner:
        """Return a runner for a component.

        Raises:
            ExporterError: the device is not the one that it was exported on.
        """
        runner = cls(program.module, metadata)
        if device is not None and torch.device(device).type != runner.device.type:
            raise ExporterError(f"the model was optimized on {runner.device}; export it again on {device}")
        return runner


register_backend(TasoExporter, TasoModelRunner)

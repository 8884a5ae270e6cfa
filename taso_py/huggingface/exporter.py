"""Exporter and runner of the export backend ``taso``; importing this module registers them with transformers.

The interface of ``transformers.exporters`` is experimental, so that versions that were not tested are refused.

Invariant: the components of one model share weights and state, as exported, saved and loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec

from taso_py.engines.engine import Runner
from taso_py.entries.optimize import optimize_together
from taso_py.huggingface.archive import OptimizedProgram, SharedWeights, load_component
from taso_py.ir.errors import TasoError
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.saving.weights_file import WEIGHTS

PREFILL, DECODE, ENCODER = "prefill", "decode", "encoder"
"""Names of components."""
CACHE, TOKENS = "past_key_values", 3
"""The argument that is a cache, and how many tokens are in one that is exported with an open length."""
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

# Only a tested version has what follows.
from transformers.exporters.auto import register_backend  # noqa: E402
from transformers.exporters.base import ExportedComponent, ExportedModel  # noqa: E402
from transformers.exporters.configs import DynamoConfig  # noqa: E402
from transformers.exporters.exporter_dynamo import (  # noqa: E402
    DynamoExporter,
    get_auto_dynamic_shapes,
    register_cache_pytrees_for_model,
)
from transformers.exporters.metadata import load_treespec  # noqa: E402
from transformers.exporters.runners.base import ModelRunner  # noqa: E402
from transformers.exporters.utils import prepare_for_export  # noqa: E402


@dataclass
class TasoConfig(DynamoConfig):
    """How to export a model, as for ``DynamoConfig``, and how to optimize what was exported."""

    export_format: Any = FORMAT
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The fields of :class:`taso_py.Options`."""


class _ProgramExporter(DynamoExporter):
    """Exports programs that are not optimized yet."""

    config_class = TasoConfig
    tested_versions: ClassVar[dict[str, str]] = {}  # those that taso-py itself supports

    def export_program(self, model: Any, sample_inputs: Any, config: Any) -> tuple[ExportedProgram, Any]:
        """Export a program; with open sizes, that of a cache is open also where there is one token in the example.

        Encoder-decoder models begin with one, and ``torch.export`` takes a size of 1 for fixed.
        """
        if config.dynamic and config.dynamic_shapes is None:
            register_cache_pytrees_for_model(model)
            _, inputs, flags = prepare_for_export(model, sample_inputs)
            inputs, shapes = _with_open_cache(inputs)
            sample_inputs, config = {**inputs, **flags}, replace(config, dynamic_shapes=shapes)
        return super().export_program(model, sample_inputs, config)


class TasoExporter(_ProgramExporter):
    """Exports a model of transformers as programs that are optimized together."""

    export_format = FORMAT
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

        The encoder of a model that has one is a component too.

        Raises:
            TasoError: one cannot be optimized, or cannot run twice.
        """
        how = generation_config or model.generation_config
        if how.cache_implementation == "static" and how.max_cache_len is None:
            raise ExporterError("a static cache is exported at its full length; give generation_config a max_cache_len")
        exporter = _ProgramExporter()
        with _encoder_call(model) as (encoder, given):
            exported = exporter.export_for_generation(
                model,
                sample_inputs,
                config,
                generation_config=generation_config,
                multi_token_decode=multi_token_decode,
            )
        if given:
            exported.components[ENCODER] = exporter.export(encoder, given, config).components["model"]
        for stage in {PREFILL, DECODE} & exported.components.keys():
            _check_continued(stage, exported.components[stage].program, exported.components[DECODE].program)
        return self._optimized(exported, config)

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
        return ExportedModel(components, FORMAT, config=exported.config, generation_config=exported.generation_config)

    @classmethod
    def save_program(cls, program: Any, path: str | Path) -> None:
        """Write a component, and the weights of all beside it."""
        program.save(Path(path))

    @classmethod
    def load_program(cls, path: str | Path) -> Any:
        """Read a component back, ready to run."""
        return load_component(Path(path))

    @classmethod
    def program_files(cls, filename: str) -> list[str]:
        """Return the files of a component."""
        return [filename, WEIGHTS]


def _with_open_cache(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs in which a cache of one token holds it several times, and which of their sizes are open."""
    given, shapes = dict(inputs), get_auto_dynamic_shapes(dict(inputs))
    cache = getattr(given.get(CACHE), "self_attention_cache", None)
    if cache is None or cache.get_seq_length() != 1:
        return given, shapes
    given[CACHE] = copy.deepcopy(given[CACHE])
    grown, length = list[Any](), Dim("cached", min=1)
    for layer in given[CACHE].self_attention_cache.layers:
        layer.keys, layer.values = (states.repeat(1, 1, TOKENS, 1) for states in (layer.keys, layer.values))
        grown += [layer.keys, layer.values]
    tensors, _ = SUPPORTED_NODES[type(given[CACHE])].flatten_fn(given[CACHE])
    for tensor, sizes in zip(tensors, shapes[CACHE], strict=True):
        if any(tensor is states for states in grown):
            sizes[2] = length
    return given, shapes


@contextmanager
def _encoder_call(model: Any) -> Generator[tuple[Any, dict[str, Any]]]:
    """Yield a model's encoder and the keyword arguments of its first call in the body; none if it has no encoder."""
    given: dict[str, Any] = {}
    if not model.config.is_encoder_decoder:
        yield None, given
        return

    def note(_: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not (given or args):
            given.update(kwargs)

    hook = model.get_encoder().register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield model.get_encoder(), given
    finally:
        hook.remove()


def _check_continued(stage: str, program: ExportedProgram, decode: ExportedProgram) -> None:
    """Check that decoding can go on with the cache that a stage returns, whose sizes alone may differ.

    Raises:
        ExporterError: the cache has another structure, or other types, than the one that decoding takes.
    """
    taken, returned = decode.call_spec.in_spec, program.call_spec.out_spec
    assert taken is not None
    assert returned is not None
    taken = taken.child(1)  # keyword arguments
    found = dict(_parts(returned, program.graph_signature.user_outputs, program))
    for name, (spec, types) in _parts(taken, decode.graph_signature.user_inputs, decode):
        if name in found and found[name][0] != spec:
            raise ExporterError(
                f"{stage} returns another structure of {name} than {DECODE} takes, as sliding windows do, whose "
                "length is counted in Python; set config.layer_types to full_attention if no text is longer than the "
                "window, or use torch.compile(backend='taso')"
            )
        if name in found and found[name][1] != types:
            raise ExporterError(
                f"{stage} returns {name} of other types than {DECODE} was exported for: transformers casts caches to "
                "the type of the model; export the model in float32"
            )


def _parts(
    spec: TreeSpec, names: Collection[Any], program: ExportedProgram
) -> Iterator[tuple[str, tuple[TreeSpec, Collection[Any]]]]:
    """Yield the parts of arguments or a result by name, each with its structure and the types of its tensors."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    types = [getattr(values.get(name), "dtype", None) for name in names]
    keys = spec.context if isinstance(spec.context, list | tuple) else ()
    place = 0
    for key, child in zip(keys, spec.children(), strict=False):
        yield str(key), (child, types[place : place + child.num_leaves])
        place += child.num_leaves


def _source(name: str, program: ExportedProgram) -> Source:
    assert program.example_inputs is not None  # torch.export keeps them
    args, kwargs = program.example_inputs
    return Source(name, program, args, kwargs)


class TasoModelRunner(ModelRunner):
    """Runs a component."""

    def __init__(self, module: Runner, metadata: Any) -> None:
        """Run a module as the component that the metadata describes."""
        super().__init__(metadata)
        self._module = module
        self._names = [*load_treespec(metadata.in_spec).child(1).context]

    @property
    def device(self) -> torch.device:
        """The device that it was exported on, which is the only one it runs on."""
        return torch.device(str(self.metadata.export_device))

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

    def __call__(self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any) -> Any:
        """Run the component on its own arguments, in the order in which it was exported; nothing is copied."""
        given = {**self.metadata.in_constants, **kwargs}
        own = {name: given.pop(name) for name in self._names if name in given}
        with torch.no_grad():
            return self._module(**own, **given)


register_backend(TasoExporter, TasoModelRunner)

"""The compact form of a saved program: everything but its weights as JSON, and where the ``.pt2`` file has those.

It is read in a fraction of the time that ``torch.export.load`` and an import take. Weights are mapped into memory: they
are read when they are first used, and what is written to them stays in this process.

Invariant: it describes the program that its ``.pt2`` file is imported as; this was checked when it was written. Where
the file is not the one that was described, nothing is read from it.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import pickle
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from taso_py.backend.bits import all_resolved, content_of
from taso_py.backend.program import Contract, Fixed, Program, Signature, leaves_in_order
from taso_py.ir.errors import TasoError
from taso_py.ir.text import print_graph
from taso_py.ops.table import parse_graph

COMPACT = "program.json"
"""The name of the file in the folder of a result."""
_CONFIGS = ("weights_config.json", "constants_config.json")
"""The ends of the names of the entries of a ``.pt2`` file that say where tensors are (PyTorch 2.9 to 2.13)."""
_EXAMPLES = "data/sample_inputs/model.pt"
"""The end of the name of the entry that has the example inputs."""


class CompactFormError(TasoError):
    """A compact form that does not fit the file beside it, or that cannot be read."""


def describe(program: Program, content: bytes) -> Mapping[str, Any] | None:
    """Return the compact form of a program; None if it has none, as with open sizes.

    Args:
        program: the program as the file was imported.
        content: the content of the ``.pt2`` file.
    """
    if program.open or program.conditions is not None:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            said = json.loads(json.dumps(_described(program, archive, content), allow_nan=False))
            found = with_examples(_restored(said, bytearray(content), {}), *_examples(archive))
    except (ArithmeticError, LookupError, TypeError, ValueError, TasoError, zipfile.BadZipFile):
        return None
    return said if are_equal(program, found) else None


def describe_without_weights(program: Program) -> dict[str, Any]:
    """Return the compact form of a program whose weights are given when it is restored."""
    signature, contract = program.signature, program.contract
    return {
        "graph": print_graph(program.graph),
        "weights": dict.fromkeys(program.weights),
        "parameters": dict(program.parameters),
        "state": sorted(program.state),
        "in_spec": pytree.treespec_dumps(signature.in_spec),
        "out_spec": pytree.treespec_dumps(signature.out_spec),
        "argument_names": signature.argument_names,
        "inputs": [[leaf.value] if isinstance(leaf, Fixed) else leaf for leaf in signature.inputs],
        "outputs": [[leaf.value] if isinstance(leaf, Fixed) else leaf for leaf in signature.outputs],
        "strides": contract.strides,
        "shared": sorted(contract.shared),
        "bits": contract.bits,
        "examples": [_described_tensor(tensor, 0, 0) for tensor in program.example_inputs],
        "device": str(program.device),
        "variants": dict(program.variants),
    }


def restore_without_weights(said: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Program:
    """Return the program of a compact form that was written without weights; they are not copied.

    Its example inputs are zeros, with which a model may fail: whoever builds it gives it others.
    """
    return _restored(said, bytearray(), weights)


def without_weights(said: Mapping[str, Any], content: bytes, names: Collection[str]) -> Mapping[str, Any] | None:
    """Return the compact form of a program whose file was written again without some weights; None if it has none.

    Args:
        said: its compact form with them.
        content: the content of the other file.
        names: the names of the weights that are missing in it; who restores the program gives them.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            places = _places(archive, content)
            kept = {key: _moved(where, *places[key]) for key, where in said["weights"].items() if key not in names}
            weights = {key: kept.get(key) for key in said["weights"]}
            return {**said, "archive": _directory_digest(archive), "weights": weights}
    except (LookupError, ValueError, zipfile.BadZipFile):
        return None


def restore(said: Mapping[str, Any], path: Path, given: Mapping[str, Tensor] | None = None) -> Program:
    """Return the program of a compact form, whose weights are mapped from its ``.pt2`` file.

    Args:
        said: the compact form.
        path: the file.
        given: the weights that are not in the file; they are not copied.

    Raises:
        CompactFormError: the file is another one, or the form cannot be read.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            if _directory_digest(archive) != said["archive"]:
                raise CompactFormError(f"{path} is of another run")
            program = _restored(said, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), given or {})
            return with_examples(program, *_examples(archive))
    except (OSError, LookupError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise CompactFormError(f"the compact form beside {path} cannot be read: {error!r}") from error


def with_examples(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
    """Return a program with other example inputs: positional arguments, and those by keyword."""
    signature = program.signature
    leaves = leaves_in_order(args, kwargs, signature.in_spec)
    given = [leaf for leaf, place in zip(leaves, signature.inputs, strict=True) if isinstance(place, str)]
    return replace(program, example_inputs=tuple(all_resolved([tensor.detach() for tensor in given])))


def _examples(archive: zipfile.ZipFile) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs in a ``.pt2`` file, as ``torch.export.load`` reads them.

    Raises:
        CompactFormError: they cannot be read.
    """
    try:
        content = archive.read(next(name for name in archive.namelist() if name.endswith(_EXAMPLES)))
        try:
            args, kwargs = torch.load(io.BytesIO(content), weights_only=True)
        except pickle.UnpicklingError:  # containers of other libraries, whose trees are registered
            args, kwargs = torch.load(io.BytesIO(content), weights_only=False)
    except Exception as error:  # torch raises errors of many kinds for what it cannot read
        raise CompactFormError(f"the example inputs cannot be read: {error!r}") from error
    return args, kwargs


def _described(program: Program, archive: zipfile.ZipFile, content: bytes) -> dict[str, Any]:
    places = _places(archive, content)
    weights = {key: _described_tensor(tensor, *places[key]) for key, tensor in program.weights.items()}
    return {"archive": _directory_digest(archive), **describe_without_weights(program), "weights": weights}


def _restored(said: Mapping[str, Any], memory: bytearray | mmap.mmap, given: Mapping[str, Tensor]) -> Program:
    device = torch.device(said["device"])
    with torch.device("cpu"):  # whatever the default device is
        weights = {
            key: given[key] if where is None else _mapped_tensor(where, memory).to(device)
            for key, where in said["weights"].items()
        }
        examples = tuple([_empty_tensor(where).to(device) for where in said["examples"]])
    return Program(
        graph=parse_graph(said["graph"]),
        weights=weights,
        parameters=said["parameters"],
        signature=Signature(
            in_spec=pytree.treespec_loads(said["in_spec"]),
            out_spec=pytree.treespec_loads(said["out_spec"]),
            argument_names=tuple(said["argument_names"]),
            inputs=tuple([Fixed(leaf[0]) if isinstance(leaf, list) else leaf for leaf in said["inputs"]]),
            outputs=tuple([Fixed(leaf[0]) if isinstance(leaf, list) else leaf for leaf in said["outputs"]]),
        ),
        contract=Contract(
            strides=tuple(map(tuple, said["strides"])),
            shared=frozenset(map(tuple, said["shared"])),
            bits=tuple(map(tuple, said["bits"])),
        ),
        state={key: weights[key] for key in said["state"]},
        example_inputs=examples,
        device=device,
        variants=said["variants"],
    )


def _places(archive: zipfile.ZipFile, content: bytes) -> Mapping[str, tuple[int, int]]:
    """Return, by name, where the file has the bytes of a tensor, and the tensor's offset in them, in elements."""
    found: dict[str, tuple[int, int]] = {}
    entries = {entry.filename: entry for entry in archive.infolist()}
    for name in entries:
        if not name.endswith(_CONFIGS):
            continue
        for key, said in json.loads(archive.read(name))["config"].items():
            entry = entries[f"{name.rpartition('/')[0]}/{said['path_name']}"]
            if said.get("use_pickle") or entry.compress_type != zipfile.ZIP_STORED:
                continue
            # The local header repeats the name, and has extra bytes that align the content (APPNOTE.TXT, 4.3.7).
            header = content[entry.header_offset : entry.header_offset + 30]
            start = entry.header_offset + 30 + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
            found[key] = start, said["tensor_meta"]["storage_offset"]["as_int"]
    return found


def _described_tensor(tensor: Tensor, start: int, offset: int) -> Mapping[str, Any]:
    size, stride = tuple(tensor.shape), tensor.stride()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "size": size,
        "stride": stride,
        "start": start + offset * tensor.element_size(),
    }


def _moved(where: Mapping[str, Any], start: int, offset: int) -> Mapping[str, Any]:
    """Return the description of a tensor for another place."""
    dtype: torch.dtype = getattr(torch, where["dtype"])
    return {**where, "start": start + offset * dtype.itemsize}


def _mapped_tensor(where: Mapping[str, Any], memory: bytearray | mmap.mmap) -> Tensor:
    """Return the tensor at a place in memory, in storage of its own."""
    count = _reach(where["size"], where["stride"])
    if count == 0:
        return _empty_tensor(where)
    dtype: torch.dtype = getattr(torch, where["dtype"])
    found = torch.frombuffer(memory, dtype=dtype, count=count, offset=where["start"])
    return found.as_strided(where["size"], where["stride"])


def _empty_tensor(where: Mapping[str, Any]) -> Tensor:
    dtype: torch.dtype = getattr(torch, where["dtype"])
    return torch.zeros(_reach(where["size"], where["stride"]), dtype=dtype).as_strided(where["size"], where["stride"])


def _reach(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the elements of memory from the first to the last of a tensor; zero if it has none."""
    if 0 in size:
        return 0
    return 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))


def _directory_digest(archive: zipfile.ZipFile) -> str:
    """Return a digest of the names, sizes, places and checksums of a file's entries."""
    entries = [(entry.filename, entry.file_size, entry.header_offset, entry.CRC) for entry in archive.infolist()]
    return hashlib.sha256(repr(entries).encode()).hexdigest()


def are_equal(program: Program, other: Program) -> bool:
    """Return whether two programs are built into equal modules."""
    return (
        other.graph == program.graph
        and other.signature == program.signature
        and other.contract == program.contract
        and other.parameters == program.parameters
        and other.variants == program.variants
        and other.state.keys() == program.state.keys()
        and other.device == program.device
        and other.weights.keys() == program.weights.keys()
        and all(_are_alike(tensor, other.weights[key]) for key, tensor in program.weights.items())
        and all(map(_lie_alike, program.example_inputs, other.example_inputs))
    )


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one is other or (_lie_alike(one, other) and torch.equal(content_of(one), content_of(other)))


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape, one.stride(), one.device) == (other.dtype, other.shape, other.stride(), other.device)

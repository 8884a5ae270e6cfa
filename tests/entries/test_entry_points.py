"""Entry points of one model: they share weights and state, before and after they are saved."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taso_py
from taso_py.backend.schema import storage_of
from taso_py.entries.entry import EntryPoint, EntryPointError
from taso_py.entries.optimize import OptimizedEntries, optimize_entry_points
from taso_py.judging.evaluation import EVEN
from taso_py.judging.timing import Race
from taso_py.saving import together
from taso_py.saving.folder import ArtifactError, WarmupError
from taso_py.saving.weights_file import read_weights, write_weights
from tests.gains import take_any_gain

QUICK: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 1.0, "kernels": False, "cache": False}
WIDTH, HEADS, LENGTH, WORDS, PROMPT = 16, 2, 12, 50, 4


class Model(nn.Module):
    """A layer of attention whose cache is in buffers: one entry point fills it, one extends it, one reads it."""

    keys: Tensor
    values: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def prefill(self, tokens: Tensor) -> Tensor:
        self.place.zero_()
        return self._step(tokens, torch.arange(tokens.shape[1]))

    def decode(self, token: Tensor) -> Tensor:
        return self._step(token, self.place.clone())

    def peek(self, scale: Tensor) -> Tensor:
        return self.keys.sum(2) * scale + self.k.weight.sum()

    def _step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        self.place.add_(tokens.shape[1])
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)
        seen = torch.arange(LENGTH)[None] <= positions[:, None]
        attended = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        return self.head(torch.relu(self.out(attended.transpose(1, 2).flatten(2)) + x))


PROMPT_TOKENS = torch.tensor([[3, 7, 5, 9]])


def entries_of(model: Model) -> dict[str, EntryPoint]:
    return {
        "prefill": EntryPoint(model.prefill, PROMPT_TOKENS),
        "decode": EntryPoint(model.decode, torch.tensor([[1]])),
        "peek": EntryPoint(model.peek, torch.ones(1)),
    }


def generated(calls: Mapping[str, Any]) -> tuple[list[int], Tensor]:
    """Return the tokens after the prompt, until the cache is full, and what is then read of it."""
    with torch.no_grad():
        token = calls["prefill"](PROMPT_TOKENS)[:, -1:].argmax(-1)
        found = [int(token)]
        for _ in range(LENGTH - PROMPT):
            token = calls["decode"](token).argmax(-1)
            found.append(int(token))
        return found, calls["peek"](torch.ones(1))


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module", params=["rebuilt", "original kept", "onnxruntime"])
def optimized(
    request: pytest.FixtureRequest, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OptimizedEntries, Path]]:
    """Results, and their folder: all rebuilt, or none faster than the original, or all in another engine."""

    folder = tmp_path_factory.mktemp("entries") / "out"
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "original kept":
            patch.setattr(Race, "ratio", lambda *_, **__: EVEN)
        else:
            take_any_gain(patch)
        runtime = "eager"
        if request.param == "onnxruntime":
            pytest.importorskip("onnxruntime")
            runtime = "onnxruntime"
        yield optimize_entry_points(entries_of(model), output=folder, runtime=runtime, **QUICK), folder


def test_entry_points_together_compute_the_same(model: Model, optimized: tuple[OptimizedEntries, Path]) -> None:
    results, folder = optimized
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loaded = taso_py.load(folder)
    assert isinstance(loaded, Mapping)
    others = [generated(calls) for calls in (results.modules, loaded)]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    tokens, read = generated({name: getattr(model, name) for name in results.modules})
    assert len(set(tokens)) > 1
    for found, seen in others:
        assert found == tokens
        torch.testing.assert_close(seen, read)
    model.load_state_dict(before)


def test_memory_is_shared(optimized: tuple[OptimizedEntries, Path]) -> None:
    results, folder = optimized
    both: list[Mapping[str, Any]] = [results.modules, taso_py.load(folder)]
    for modules in both:
        tensors = [dict([*module.named_parameters(), *module.named_buffers()]) for module in modules.values()]
        prefill, decode, peek = ({name.split(".", 1)[1]: t for name, t in named.items()} for named in tensors)
        for name in ("keys", "values", "place"):
            assert storage_of(prefill[name]) == storage_of(decode[name])
        assert storage_of(peek["keys"]) == storage_of(prefill["keys"])
        if results.reports["prefill"].runtime != "eager":
            continue  # an engine's weights are in its file
        assert {storage_of(t) for n, t in prefill.items() if n.endswith("weight")} & {
            storage_of(t) for n, t in decode.items() if n.endswith("weight")
        }


def test_entry_points_load_without_the_compiler(optimized: tuple[OptimizedEntries, Path]) -> None:
    script = (
        "import sys, torch, taso_py; calls = taso_py.load(sys.argv[1]); calls['peek'](torch.ones(1));"
        "heavy = {'torch._dynamo', 'sympy', 'z3', 'networkx', 'onnx_ir', 'taso_py.frontend'};"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(optimized[1])], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_each_tensor_is_saved_once(model: Model, optimized: tuple[OptimizedEntries, Path]) -> None:
    folder = optimized[1]
    said = json.loads((folder / "entries.json").read_text())
    stored = torch.load(folder / said["folder"] / "weights.pt")
    own = {storage_of(t): t.untyped_storage().nbytes() for named in stored.values() for t in named.values()}
    state = sum(tensor.nbytes for tensor in model.state_dict().values())
    folded = sum(t.nbytes for named in stored.values() for name, t in named.items() if name.startswith("folded"))
    assert sum(own.values()) <= state + folded
    assert all(path.stat().st_size < state + 200_000 for path in folder.rglob("*.pt2"))


def test_one_entry_point_can_be_loaded(model: Model, optimized: tuple[OptimizedEntries, Path]) -> None:
    folder = optimized[1]
    run = json.loads((folder / "entries.json").read_text())["folder"]
    alone = taso_py.load(folder / run / "prefill")
    torch.testing.assert_close(alone(PROMPT_TOKENS), optimized[0].modules["prefill"](PROMPT_TOKENS))


@pytest.mark.parametrize("kept", [True, False])
def test_an_interrupted_run_leaves_the_earlier_result(
    kept: bool, optimized: tuple[OptimizedEntries, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = optimized[1]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    entry = together.SavableEntry(b"", {}, (), next(iter(optimized[0].reports.values())), "", None)
    monkeypatch.setattr(together.SavableEntry if kept else together, "write" if kept else "replace_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        together.write_entries(folder, {"prefill": entry})
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_later_run_replaces_the_earlier_one(tmp_path: Path, optimized: tuple[OptimizedEntries, Path]) -> None:
    report = next(iter(optimized[0].reports.values()))
    for tensor in (torch.zeros(3), torch.ones(3)):
        entry = together.SavableEntry(b"", {"w": tensor}, (), report, "", None)
        together.write_entries(tmp_path, {"one": entry})
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert torch.load(run / "weights.pt")["one"]["w"].sum() == 3


def test_damage_to_shared_weights_is_one_line(tmp_path: Path, optimized: tuple[OptimizedEntries, Path]) -> None:
    report = next(iter(optimized[0].reports.values()))
    together.write_entries(tmp_path, {"one": together.SavableEntry(b"", {"w": torch.ones(3)}, (), report, "", None)})
    (file,) = tmp_path.rglob("weights.pt")
    for content, message in ((b"PK damaged", "cannot be read"), (b"", "cannot be read")):
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match=message) as caught:
            taso_py.load(tmp_path)
        assert "\n" not in str(caught.value)
    torch.save({"one": {"w": torch.zeros(3)}}, file)
    with pytest.raises(ArtifactError, match="belongs to another run"):
        taso_py.load(tmp_path)


def test_another_number_of_threads_is_said(tmp_path: Path, optimized: tuple[OptimizedEntries, Path]) -> None:
    folder = shutil.copytree(optimized[1], tmp_path / "out")
    for plan in folder.glob("run-*/*/plan.json"):
        plan.write_text(json.dumps({**json.loads(plan.read_text()), "threads": torch.get_num_threads() + 1}))
    with pytest.warns(UserWarning, match="threads") as said:
        taso_py.load(folder)
    assert {Path(warning.filename) for warning in said} == {Path(__file__)}


def test_equal_weights_are_stored_once_and_equal_state_is_not(tmp_path: Path) -> None:
    big = torch.arange(12.0).reshape(3, 4)
    one = {"w": big[:1].clone(), "v": big[:, 1], "s": torch.zeros(2), "t": torch.zeros(2), "e": big[0, :1].expand(3)}
    digest = write_weights(tmp_path / "w.pt", {"a": one, "b": {"w": big[:1]}}, {"a": ["s", "t"], "b": []})
    read = read_weights(tmp_path / "w.pt", digest)
    assert storage_of(read["a"]["w"]) == storage_of(read["b"]["w"])
    assert storage_of(read["a"]["s"]) != storage_of(read["a"]["t"])
    assert all(torch.equal(read["a"][name], tensor) for name, tensor in one.items())
    assert all(read["a"][name].stride() == tensor.stride() for name, tensor in one.items())
    assert read["b"]["w"].untyped_storage().nbytes() == 16


def test_forms_are_not_mixed_in_a_folder(tmp_path: Path, optimized: tuple[OptimizedEntries, Path]) -> None:
    with pytest.raises(ArtifactError, match="another form"):
        taso_py.optimize(nn.ReLU(), torch.ones(2), output=optimized[1], **QUICK)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ArtifactError, match="another form"):
        optimize_entry_points({"one": EntryPoint(nn.ReLU(), torch.ones(2))}, output=tmp_path, **QUICK)
    with pytest.raises(WarmupError, match="several entry points"):
        taso_py.load(optimized[1], warmup=[3])


@pytest.mark.parametrize(
    ("entries", "said"), [(5, "5"), ({"a": 5}, "5"), (nn.Sequential(nn.ReLU()), r"Sequential\("), ([], r"\[\]")]
)
def test_what_is_no_entry_point_is_one_line(entries: Any, said: str) -> None:
    with pytest.raises(EntryPointError, match=rf"\Aentries must be a dict of EntryPoint by names, not of {said}\Z"):
        optimize_entry_points(entries)


def test_what_cannot_be_shared_is_refused() -> None:
    class Held(nn.Module):
        """Holds buffers and counts the first one up, or returns their sums."""

        def __init__(self, *buffers: Tensor, counts: bool) -> None:
            super().__init__()
            self.counts = counts
            for place, buffer in enumerate(buffers):
                self.register_buffer(f"b{place}", buffer)

        def forward(self, x: Tensor) -> Tensor:
            if self.counts:
                self.get_buffer("b0").add_(1)
            return x + sum(buffer.sum() for buffer in self.buffers())

    whole = torch.zeros(4)
    writes, reads = Held(whole, counts=True).eval(), Held(whole, whole[:2], counts=False).eval()
    with pytest.raises(EntryPointError, match="entry point read holds memory that is written to as both b0 and b1"):
        optimize_entry_points(
            {"write": EntryPoint(writes, torch.ones(4)), "read": EntryPoint(reads, torch.ones(4))}, **QUICK
        )
    with pytest.raises(EntryPointError, match="valid in Python"):
        optimize_entry_points({"a b": EntryPoint(nn.ReLU(), torch.ones(1))})


def test_a_run_waits_for_another_one_that_writes_to_its_folder(
    tmp_path: Path, optimized: tuple[OptimizedEntries, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, entered = next(iter(optimized[0].reports.values())), threading.Event()
    write = together.write_shared_weights

    def slow(path: Path, entries: Any) -> str:
        digest = write(path, entries)
        entered.set()
        time.sleep(0.2)
        return digest

    monkeypatch.setattr(together, "write_shared_weights", slow)
    runs = [
        threading.Thread(
            target=together.write_entries,
            args=(tmp_path, {"one": together.SavableEntry(b"", {"w": torch.full((3,), n)}, (), report, "", None)}),
        )
        for n in (1.0, 2.0)
    ]
    runs[0].start()
    assert entered.wait(10)
    runs[1].start()
    for run in runs:
        run.join()
    (found,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert torch.load(found / "weights.pt")["one"]["w"].tolist() == [2.0] * 3
    assert json.loads((tmp_path / "entries.json").read_text())["folder"] == found.name

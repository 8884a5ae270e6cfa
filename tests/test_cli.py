"""The command line: the main job on a user's own model, and every mistake as one line with exit status 2."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from types import ModuleType

import pytest
import torch

import taso_py
from experiments.faults import interruptible_children
from taso_py.cli import main
from taso_py.commands import generate, optimize, profile, replay
from tests.report.pages import problems

MERGE = """rule x: float[..G,M,K], a: float[N,K], b: float[P,K]
  source linear(x, a), linear(x, b)
  target t = linear(x, concat(a, b){axis=-2}); slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}
  numerics REORDER
"""
QUICK = ["--time-limit", "5", "--race-seconds", "0.1", "--runtime", "eager"]
MODEL = """
import torch

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(512, 512, bias=False)
        self.b = torch.nn.Linear(512, 512, bias=False)

    def forward(self, x):
        return torch.relu(self.a(x)) + torch.tanh(self.b(x))

def model():
    return Two().eval(), (torch.randn(1, 512),)

def not_a_module():
    return 3

class Dependent(torch.nn.Module):
    def forward(self, x):
        return x[x > 0]

def dependent():
    return Dependent(), (torch.randn(3),)

class Talking(Two):
    def forward(self, x):
        print("called")
        return super().forward(x)

class Late(Two):
    def forward(self, x):
        from beside_mine import factor
        return factor * super().forward(x)

def late():
    return Late().eval(), (torch.randn(1, 512),)

class Best(Two):
    def forward(self, x):
        return super().forward(x).topk(2)

def best():
    return Best().eval(), (torch.randn(1, 512),)

def talking():
    print("loading weights")
    return Talking().eval(), (torch.randn(1, 512),)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "beside_mine.py").write_text("factor = 2.0")
    (tmp_path / "merge.rules").write_text(MERGE)
    (tmp_path / "broken.pt2").write_bytes(b"PK nothing")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    return tmp_path


def test_optimize_saves_a_result_that_replays(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factory, out = f"{model / 'mine.py'}:model", model / "out"
    options = ["--rules", str(model / "merge.rules"), "--output", str(out), "--json", *QUICK]
    assert main(["optimize", factory, *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "report.json").read_text())
    assert report["comparison_passed"]
    page = (out / "report.html").read_text()
    assert problems(page) == []
    assert all(rule in page for rule in report["applied"])
    assert report["speedup_low"] <= report["speedup"] <= report["speedup_high"]
    assert report["error"] < 1e-5
    x = torch.randn(1, 512)
    assert torch.export.load(out / "model.pt2").module()(x).shape == (1, 512)
    assert main(["replay", str(out / "trace.rules"), factory]) == 0
    assert f"{len(report['applied'])} steps replayed" in capsys.readouterr().out
    assert main(["profile", str(out), "--seconds", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(out / "model.pt2")


@pytest.mark.filterwarnings("ignore")
def test_by_default_a_model_runs_where_it_is_fastest(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--time-limit", "2", "--race-seconds", "0.2", "--effort", "quick"]
    out = model / "out"
    assert main(["optimize", f"{model / 'mine.py'}:model", "--json", "--output", str(out), *quick]) == 0
    report = json.loads(capsys.readouterr().out)
    tried = {name.rsplit(", ")[-1] for name in report["timed"]}
    assert {"onnxruntime", "openvino"} <= tried
    assert report["comparison_passed"]
    assert report["speedup_low"] > 1 or report["runtime"] == "eager"
    assert taso_py.load(out)(torch.randn(1, 512)).shape == (1, 512)


def test_templates_are_applied_to_a_model_in_half_precision(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factory = f"{model / 'mine.py'}:model"
    assert main(["optimize", factory, "--dtype", "bf16", "--search", "templates", "--json", *QUICK]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "1 rule applied, eager" in report["timed"]
    assert report["comparison_passed"]
    assert 1e-4 < report["original_error"] < 0.1


def test_profile_writes_page_data_and_trace(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factory, out = f"{model / 'mine.py'}:model", model / "out"
    assert main(["profile", factory, "--seconds", "0.1", "--output", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((out / "profile.json").read_text())
    assert sorted(region["kind"] for region in document["regions"]) == ["add", "linear", "linear", "relu", "tanh"]
    assert {region["line"] for region in document["regions"]} == {
        "mine.py:11: return torch.relu(self.a(x)) + torch.tanh(self.b(x))"
    }
    assert "traceEvents" in json.loads((out / "trace.json").read_text())
    assert factory in (out / "profile.html").read_text()
    assert main(["profile", factory, "--seconds", "0.1", "--output", str(out)]) == 0, "an earlier profile is replaced"
    assert main(["profile", factory, "--seconds", "0.1"]) == 0
    assert "bottleneck" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["trace.json", "profile.html", "profile.json"])
def test_profile_does_not_replace_files_of_the_users_own(
    model: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / name).write_text('{"model": "mine"}')
    assert main(["profile", f"{model / 'mine.py'}:model", "--seconds", "0.1", "--output", str(model)]) == 2
    assert f"{name} does not belong to a saved result, and would be replaced" in capsys.readouterr().err
    assert (model / name).read_text() == '{"model": "mine"}'


@pytest.mark.parametrize("command", [["optimize", *QUICK], ["profile", "--seconds", "0.1"]])
def test_what_a_model_prints_is_no_result(model: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rules", str(model / "merge.rules")] if command[0] == "optimize" else []
    assert main([command[0], f"{model / 'mine.py'}:talking", *command[1:], *options, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["model"].endswith("mine.py:talking")
    assert "loading weights" in printed.err


@pytest.mark.parametrize("command", [["optimize", *QUICK], ["profile", "--seconds", "0.1"]])
def test_a_model_imports_from_its_folder_when_it_is_called(model: Path, command: list[str]) -> None:
    options = ["--rules", str(model / "merge.rules")] if command[0] == "optimize" else []
    path_before = list(sys.path)
    sys.modules.pop("beside_mine", None)
    assert main([command[0], f"{model / 'mine.py'}:late", *command[1:], *options, "--json"]) == 0
    assert sys.path == path_before


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_rules_have_operators(count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--ops", "scalars", "--max-ops", count, "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "give 1 or more" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("seed", ["-1", "1.5", "99999999999999999999"])
def test_a_seed_is_a_number_that_generators_take(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["optimize", "zoo:nasrnn", "--seed", seed])
    assert ended.value.code == 2
    assert f"'{seed}' is not a whole number below 2**63" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "zoo:nasrnn", "--output", ""],
        ["optimize", "zoo:nasrnn", "--trace", ""],
        ["predict", "zoo:nasrnn", "--environment", "a", "--output", ""],
        ["profile", "zoo:nasrnn", "--output", ""],
        ["generate", "--out", ""],
        ["rules", "list", "--rules", ""],
    ],
)
def test_an_empty_path_is_not_the_current_folder(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"argument {arguments[-2]}: the path is empty" in capsys.readouterr().err


def test_a_database_that_cannot_be_used_is_neither_changed_nor_shown_as_empty(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "none.json").write_text('{"format": "taso-py latencies 1", "environments": {}, "latencies": []}')
    assert main(["latencies", "import", str(model / "none.json")]) == 0
    monkeypatch.setenv("TASO_PY_CACHE", str(model / "mine.py"))
    kept = model / "kept.json"
    kept.write_text("an earlier export")
    for arguments in (["import", str(model / "none.json")], ["clear"], ["export", str(kept)], ["list"], ["devices"]):
        assert main(["latencies", *arguments]) == 2
        assert "nothing was done" in capsys.readouterr().err
    assert kept.read_text() == "an earlier export"


def test_a_saved_program_can_be_optimized_again(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(module, (torch.randn(2, 8),)), model / "mine.pt2")
    assert main(["optimize", str(model / "mine.pt2"), "--rules", str(model / "merge.rules"), *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "none applied" in printed
    assert "latency" in printed
    assert "is timed as plain calls, without PyTorch's own checks" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize", "absent.py:model"], "absent.py"),
        (["optimize", "{}/mine.py:absent"], "absent"),
        (["optimize", "{}/mine.py:not_a_module"], "int"),
        (["optimize", "{}/mine.py:model", "--input", "1x513"], "1x513"),
        (["optimize", "{}/mine.py:model", "--input", "1x512:int64"], "to have the same dtype"),
        (["optimize", "{}/mine.py:model", "--input", "axb"], "axb"),
        (["optimize", "{}/mine.py:dependent"], "depends on the data"),
        (["optimize", "{}/broken.pt2"], "broken.pt2"),
        (["optimize", "zoo:resnet5"], "resnet50"),
        (["optimize", "{}/mine.py:model", "--alpha", "0.5"], "alpha"),
        (["optimize", "{}/mine.py:model", "--dtype", "int8"], "cannot be cast to 'int8'; choose one of fp16, bf16"),
        (["optimize", "{}/mine.py:model", "--runtime", "cudagraph"], "need a GPU"),
        (["optimize", "{}/mine.py:model", "--rules", "{}/absent.rules"], "absent.rules"),
        (["optimize", "{}/mine.py:model", "--output", "{}/mine.py"], "cannot write"),
        (["optimize", "{}/mine.py:best", "--output", "{}/out"], "leave --output out"),
        (["optimize", "{}/mine.py:model", "--race-seconds", "0"], "race_seconds must be positive"),
        (["optimize", "{}/mine.py:model", "--emit", "code"], "add --output DIR"),
        (["optimize", "{}/mine.py:model", "--emit", "pt2,pdf", "--output", "{}/out"], "no format 'pdf'"),
        (["profile", "absent.py:model"], "absent.py"),
        (["profile", ""], "'' is not a model"),
        (["profile", "{}/mine.py:model", "--seconds", "0"], "--seconds"),
        (["profile", "{}/mine.py:model", "--seconds", "nan"], "--seconds"),
        (["optimize", "{}/mine.py:model", "--alpha", "nan"], "alpha"),
        (["optimize", "{}/mine.py:model", "--time-limit", "nan"], "time limit"),
        (["profile", "{}/mine.py:model", "--output", "{}/mine.py"], "cannot write"),
        (["replay", "{}/mine.py", "{}/mine.py:model"], "no trace"),
        (["rules", "show", "rffffffffffff"], "no rule has the identifier"),
        (["rules", "list", "--rules", "{}/mine.py"], "line 2"),
        (["rules", "list", "r12"], "rules list takes no ID"),
        (["rules", "stats", "r12"], "rules stats takes no ID"),
        (["latencies", "clear", "{}/mine.py"], "latencies clear takes no FILE; leave"),
        (["latencies", "list", "{}/mine.py"], "latencies list takes no FILE"),
        (["latencies", "devices", "{}/mine.py"], "latencies devices takes no FILE"),
        (["verify", "{}/absent.rules"], "absent.rules"),
        (["generate", "--ops", "everything"], "no vocabulary is called everything"),
        (["latencies", "import", "{}/mine.py"], "not JSON"),
        (["latencies", "import", "{}/deep.json"], "not JSON: maximum recursion depth"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.replace("{}", str(model)) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = [line for line in printed.err.splitlines() if line.startswith("taso-py: error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in printed.err


def test_verify_proves_and_refutes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(model / "merge.rules"), "--json", "--jobs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["proved"] == 1
    (model / "wrong.rules").write_text(MERGE.replace("concat(a, b)", "concat(b, a)"))
    assert main(["verify", str(model / "wrong.rules"), "--jobs", "1"]) == 1
    assert "REFUTED" in capsys.readouterr().out
    assert main(["verify", str(model / "wrong.rules"), "--jobs", "1", "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["proved"], verdict["refuted"], verdict["unknown"]) == (0, 1, 0)
    (failed,) = verdict["failed"]
    evidence = failed["counterexample"]
    assert set(evidence["values"]) == {"x", "a", "b"}
    assert evidence["source"] != evidence["target"]


def test_verify_fails_a_rule_that_understates_its_numerics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scaled.rules"
    stated = """rule a: float[M,K], b: float[K,N], c: float[]
      source mul(matmul(a, b), c) target matmul(a, mul(b, c))"""
    for line, status in (("", 1), ("numerics REASSOCIATE", 1), ("numerics RANGE", 0), ("numerics MASK", 0)):
        path.write_text(f"{stated} {line}")
        assert main(["verify", str(path), "--jobs", "1", "--json"]) == status
        verdict = json.loads(capsys.readouterr().out)
        assert (verdict["proved"], verdict.get("understated", 0)) == (1 - status, status)
        assert [failed["reason"][-20:] for failed in verdict["failed"]] == ["write numerics RANGE"] * status
    path.write_text(stated)
    assert main(["verify", str(path), "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    assert "UNDERSTATED true, but" in printed
    assert "0 proved, 0 refuted, 0 unknown, 1 understated" in printed


def _interrupted_verification(path: Path, count: int) -> tuple[int, str, str]:
    """Exit status, output and last line for a user of a verification that is interrupted once some rules are proved."""
    sizes = (divmod(n, 40) for n in range(count))  # small ones, since they are tried, too
    many = (MERGE.replace("M,K", f"M+{m},K").replace("P,K", f"P+{p},K").replace("N+P", f"N+P+{p}") for m, p in sizes)
    path.write_text("\n".join(many))
    command = [sys.executable, "-m", "taso_py.cli", "verify", str(path), "--jobs", "2"]
    screen, terminal = os.openpty()  # progress in a file is written four times a minute
    termios.tcsetwinsize(screen, (24, 80))
    with interruptible_children():
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True, start_new_session=True)
    os.close(terminal)
    shown, is_interrupted = b"", False
    with started as process, open(screen, "rb", buffering=0) as err:
        with contextlib.suppress(OSError):  # at the end
            while read := err.read(4096):
                shown += read
                if not is_interrupted and re.search(rf" [1-9]\d*/{count}".encode(), shown):
                    is_interrupted = True
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate()
    return process.returncode, out, shown.decode()


def test_an_interrupted_verification_ends_quietly(model: Path) -> None:
    # On a busy machine all may be proved before the interrupt comes; then there is to be more.
    for count in (600, 3000, 12000):
        status, out, err = _interrupted_verification(model / "many.rules", count)
        if status != 0:
            break
    assert status == 130
    assert out == ""
    assert "Traceback" not in err, err
    assert err.splitlines()[-1] == "taso-py: interrupted"  # nothing is kept


@pytest.mark.parametrize(
    ("command", "module", "said"),
    [
        (["optimize", "m"], optimize, "; latencies that were measured undisturbed are stored"),
        (["profile", "m"], profile, "; latencies that were measured undisturbed are stored"),
        (["generate"], generate, "; finished work is stored, and --resume continues from there"),
        (["replay", "t", "m"], replay, ""),
    ],
)
def test_an_interrupt_says_what_is_kept(
    command: list[str],
    module: ModuleType,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, f"_{command[0]}", interrupt)
    assert main(command) == 130
    assert capsys.readouterr().err == f"taso-py: interrupted{said}\n"


def test_rules_are_listed_shown_and_counted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["--rules", str(model / "merge.rules")]
    assert main(["rules", "list", *rules]) == 0
    identifier = capsys.readouterr().out.split()[0]
    assert main(["rules", "show", identifier[:6], *rules]) == 0
    assert capsys.readouterr().out.startswith(f"rule {identifier}\n")
    assert main(["rules", "stats", "--json", *rules]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert (stats["total"], stats["base"], stats["macros"], stats["by_operators"]) == (1, 1, 0, {"4": 1})


def test_counts_are_in_the_order_of_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "stats", "--json"]) == 0
    sizes = list(json.loads(capsys.readouterr().out)["by_operators"])
    assert len(sizes[-1]) > 1
    assert sizes == sorted(sizes, key=int)


def test_latencies_are_exported_imported_and_cleared(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rules", str(model / "merge.rules"), *QUICK]
    assert main(["optimize", f"{model / 'mine.py'}:model", *options]) == 0
    assert main(["latencies", "export", str(model / "all.json")]) == 0
    capsys.readouterr()
    assert main(["latencies", "clear"]) == 0
    cleared = int(capsys.readouterr().out.split()[0])
    assert cleared > 0
    assert main(["latencies", "import", str(model / "all.json")]) == 0
    assert capsys.readouterr().out.startswith(f"{cleared} ")

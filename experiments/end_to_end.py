"""How much faster do models get, and how much of it is due to the substitutions?

Every model is optimized by the command line in a process of its own, so that nothing is warm from the one before. A
model that is done already is not run again: remove its row's file under ``runs/`` to repeat it.

Invariant: losses are shown like gains.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.harness import Experiment, Settings

QUICK = ("nasrnn", "squeezenet1_1", "inception_v3", "bert_base")
FULL = (
    *QUICK,
    *(
        "resnet50",
        "resnext50_32x4d",
        "mobilenet_v3_large",
        "efficientnet_b0",
        "densenet121",
        "convnext_tiny",
        "vit_b_16",
    ),
    *("convnext_tiny", "swin_t", "nasnetalarge", "vit_base", "mixer_b16", "gpt2", "llama", "t5", "whisper_encoder"),
)
RUNTIMES: Mapping[str, Sequence[str]] = {"cpu": ("eager",), "cuda": ("eager", "cudagraph")}
FIELDS = (
    *("model", "runtime", "original_ms", "optimized_ms", "speedup", "speedup_low", "speedup_high"),
    *("error", "original_error", "comparison_passed", "search_seconds", "expansions", "stop_reason"),
)
SECONDS = 900
"""Longest time for one model."""


def _run(settings: Settings) -> Sequence[Mapping[str, Any]]:
    names = QUICK if settings.quick else FULL
    runs = [(name, runtime) for name in names for runtime in RUNTIMES[settings.device]]
    return [_optimize(name, runtime, settings) for name, runtime in tqdm(runs, desc="end_to_end", unit="model")]


def _optimize(name: str, runtime: str, settings: Settings) -> Mapping[str, Any]:
    done = settings.out / "runs" / f"{name}-{runtime}.json"
    if not done.exists():
        limits = ["--time-limit", "20" if settings.quick else "60"]
        command = [sys.executable, "-m", "taso_py.cli", "optimize", f"zoo:{name}", "--json", *limits]
        command += ["--device", settings.device, "--runtime", runtime, "--seed", str(settings.seed)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if ran.returncode != 0:
            reason = (ran.stderr.strip().splitlines() or ["no message"])[-1]
            return {"model": f"zoo:{name}", "runtime": runtime, "stop_reason": f"failed: {reason}"}
        done.parent.mkdir(parents=True, exist_ok=True)
        done.write_text(ran.stdout)
    report = json.loads(done.read_text())
    rules = report["rules_speedup"]
    return {
        **{name: report[name] for name in FIELDS},
        **{"rules": len(report["applied"]), "by_rules": rules["median"]},
        **{"by_rules_low": rules["low"], "by_rules_high": rules["high"]},
    }


def _plot(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    done = [row for row in rows if "speedup" in row]
    axes = figure.subplots()
    places = range(len(done))
    axes.barh(places, [row["speedup"] for row in done], height=0.8, color="0.85", edgecolor="0.3", label="all")
    axes.barh(places, [row["by_rules"] for row in done], height=0.4, color="0.35", label="by substitutions alone")
    low = [row["speedup"] - row["speedup_low"] for row in done]
    high = [row["speedup_high"] - row["speedup"] for row in done]
    axes.errorbar([row["speedup"] for row in done], places, xerr=[low, high], fmt="none", ecolor="black", capsize=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(list(places), [f"{row['model'].removeprefix('zoo:')} ({row['runtime']})" for row in done])
    axes.invert_yaxis()
    axes.set_xlabel("speed-up over the original in eager mode (median of paired ratios, 95% interval)")
    axes.legend(loc="lower right")


EXPERIMENT = Experiment("end_to_end", "How much faster do models get, and by what?", _run, _plot)

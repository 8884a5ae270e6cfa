"""Seconds until a saved result can be called, beside other saved forms of the same rewritten program.

Each form is loaded in a process of its own, several times, the forms in turns. Seconds count from the start of the
process's own code, imports included; what importing PyTorch alone takes is a column of its own.

Invariant: all forms are of one program, with the same weights, and use the same number of threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments import loading_child
from experiments.drawing import name_rows, shade
from experiments.harness import Experiment, Row, Settings
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.models.source import load_source
from taso_py.options import Options

QUICK = ("squeezenet1_1",)
FULL = ("nasrnn", "squeezenet1_1", "mobilenet_v3_large", "resnet50", "bert_base", "gpt2")
FORMS = ("taso_py", "torch_export", "onnxruntime", "openvino")
QUICK_TURNS, TURNS = 2, 7


def _loaded(way: str, folder: Path) -> Mapping[str, Any]:
    command = [sys.executable, loading_child.__file__, way, str(folder), str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with TemporaryDirectory() as place:
        folder = Path(place) / "out"
        source = load_source(f"zoo:{name}", device=settings.device, seed=settings.seed)
        options = Options(effort="quick")
        optimize_source(source, options, rules_for(options), output=folder, forms=["onnx"])
        np.savez(folder / "inputs.npz", *[tensor.numpy() for tensor in source.args])
        turns = QUICK_TURNS if settings.quick else TURNS
        runs = [{way: _loaded(way, folder) for way in ("torch", *FORMS)} for _ in range(turns)]
        return [
            {
                "model": name,
                "mib": (folder / "model.pt2").stat().st_size / 2**20,
                "torch_import_s": median(run["torch"]["import_s"] for run in runs),
                **{f"{way}_s": median(_seconds(run[way]) for run in runs) for way in FORMS},
                "taso_py_beyond_torch_s": median(_seconds(run["taso_py"]) - _seconds(run["torch"]) for run in runs),
                "first_over_tenth_call": median(
                    run["taso_py"]["calls_s"][0] / run["taso_py"]["calls_s"][-1] for run in runs
                ),
            }
        ]


def _seconds(run: Mapping[str, Any]) -> float:
    return run["import_s"] + run["load_s"]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    height = 0.84 / len(FORMS)
    for number, way in enumerate(FORMS):
        places = [place + (number - (len(FORMS) - 1) / 2) * height for place in range(len(rows))]
        seconds = [row[f"{way}_s"] for row in rows]
        colour = shade(number, len(FORMS))
        axes.barh(places, seconds, height, color=colour, edgecolor="0.2", label=way.replace("_", "."))
    name_rows(axes, [row["model"] for row in rows])
    axes.set_xlabel("seconds until the model can be called, imports included (medians)")
    figure.legend(loc="outside upper center", ncols=len(FORMS), frameon=False)


EXPERIMENT = Experiment(
    "loading",
    "How soon can a saved result be called?",
    reading=(
        "`taso_py_s` is a saved folder by `taso_py.load`, `torch_export_s` its `model.pt2` by `torch.export.load`, the "
        "others its `model.onnx`; all include imports, `torch_import_s` is that of PyTorch alone, which the latter do "
        "without; `first_over_tenth_call` is near one where nothing is left for the first call"
    ),
    parts=lambda settings: settings.choose(QUICK, FULL),
    measure=_measure,
    plot=_plot,
    devices=("cpu",),
)

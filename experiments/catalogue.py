"""All experiments, in the order of a paper: rules, correctness, costs, gains, reasons, limits.

Invariant: an experiment is listed once, and its module is named as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments import (
    ablation,
    captured,
    correctness,
    coverage,
    decoding,
    effort,
    end_to_end,
    engines,
    faults,
    fidelity,
    generation,
    grouped_convolutions,
    headroom,
    joint_layout,
    loading,
    memory_formats,
    relatives,
    round_trip,
    rule_size,
    scaling,
    search_speed,
    search_vs_greedy,
    tiles,
    verification,
)
from experiments.harness import Experiment

MODULES = (
    *(generation, verification),
    *(round_trip, correctness),
    *(tiles, fidelity, memory_formats),
    *(end_to_end, captured, engines, relatives, headroom, decoding, effort, loading),
    *(search_vs_greedy, coverage, rule_size, joint_layout, grouped_convolutions, ablation),
    *(search_speed, scaling, faults),
)
EXPERIMENTS: Mapping[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}

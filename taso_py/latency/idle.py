"""Waiting until the threads of this process are asleep.

Thread pools spin for a while after their work, ready for more: PyTorch's and ONNX Runtime's for about ten milliseconds
each on an idle core. Another pool that computes meanwhile has a core less. So before a call is timed whose threads are
not those that worked last, the processor time that the process uses is watched until it stops.
"""

from __future__ import annotations

import time

SHARE = 0.1
"""The share of a core below which a process counts as asleep."""
STEP_S, MOST_S = 1e-3, 0.1
"""The interval of checks, and the longest wait."""


def wait_until_idle() -> None:
    """Sleep until no thread of this process spins, or for a tenth of a second."""
    deadline = time.perf_counter() + MOST_S
    while time.perf_counter() < deadline:
        begun, used = time.perf_counter(), time.process_time()
        time.sleep(STEP_S)
        if time.process_time() - used < SHARE * (time.perf_counter() - begun):
            return

"""taso-py behind ``torch.compile``: the model's own code runs, and each graph captured from it is optimized.

    python examples/compile_backend.py

Decisions are saved on disk: the second run of this program searches nothing.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn


class Head(nn.Module):
    """Two branches of one input, and Python between the tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            x = self.norm(x + torch.sigmoid(self.gate(x)) * self.value(x))
        return x


def milliseconds(call: Callable[..., Tensor], *inputs: object) -> float:
    """Return the median time of a call."""
    times: list[float] = []
    for _ in range(50):
        start = time.perf_counter()
        call(*inputs)
        times.append((time.perf_counter() - start) * 1e3)
    return median(times)


parser = argparse.ArgumentParser(description="Compile a small model with the backend taso.")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--time-limit", type=float, default=20, help="seconds of search per graph")
parser.add_argument("--race-seconds", type=float, default=6, help="seconds to time the best graphs")
arguments = parser.parse_args()

torch.manual_seed(0)
model = Head(arguments.width).eval()
x = torch.randn(8, arguments.width)

limits = {"time_limit": arguments.time_limit, "race_seconds": arguments.race_seconds}
compiled = torch.compile(model, backend="taso", options={"freeze": True, **limits})
with torch.no_grad():  # graphs that need gradients run as they were captured
    difference = (compiled(x, 3) - model(x, 3)).abs().max()
    print(f"largest difference {difference:.1e}")
    print(f"eager {milliseconds(model, x, 3):.3f} ms, compiled {milliseconds(compiled, x, 3):.3f} ms")

    # Changes of frozen weights are detected: new ones are folded at the next call.
    model.load_state_dict(Head(arguments.width).state_dict())
    print(f"with other weights {(compiled(x, 3) - model(x, 3)).abs().max():.1e}")

"""A torchvision model: optimized in Python, saved as a folder, loaded again.

    python examples/image_classifier.py --output out

The weights are random, so that nothing is downloaded; ``resnet18(weights="DEFAULT")`` is the same model, trained.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from rich import print

import taso_py

try:
    from torchvision.models.resnet import BasicBlock, ResNet
except (ImportError, RuntimeError):  # not there, or made for another build of torch
    sys.exit("torchvision does not import; this says what to install: python -m taso_py.models.zoo")

parser = argparse.ArgumentParser(description="Optimize a ResNet for images of one size.")
parser.add_argument("--size", type=int, default=224, help="pixels in a row and in a column")
parser.add_argument("--blocks", type=int, default=2, help="in each of the four stages; 2 make a ResNet-18")
parser.add_argument("--time-limit", type=float, default=60, help="seconds of search")
parser.add_argument("--race-seconds", type=float, default=20, help="seconds to time the best graphs")
parser.add_argument("--output", type=Path, help="save the result here (default: a temporary folder)")
arguments = parser.parse_args()
output = arguments.output or Path(tempfile.mkdtemp())

torch.manual_seed(0)
model = ResNet(BasicBlock, [arguments.blocks] * 4).eval()
image = torch.randn(1, 3, arguments.size, arguments.size)

optimized = taso_py.optimize(
    model,
    (image,),
    time_limit=arguments.time_limit,
    race_seconds=arguments.race_seconds,
    output=output,
    progress=True,
)
print(optimized.report)
print(f"in {output}:", *sorted(path.name for path in output.iterdir()))

loaded = taso_py.load(output)
with torch.no_grad():
    print("same class:", bool((loaded(image).argmax() == model(image).argmax()).item()))

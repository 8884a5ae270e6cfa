"""Random weights that resemble trained ones, so that errors in rewrites are not hidden by constants.

Invariant: a parameter changes only if its initialiser left it constant; all draws come from torch's global generator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_TINY = 1e-2


def randomize_constants(module: nn.Module) -> None:
    """Replace constant floating-point parameters, in place, by random ones of a trained model's magnitude.

    A zero bias or head hides a lost addition, a unit scale a lost product, and a layer scale of 1e-6 the whole branch
    behind it; an optimizer that treats any of them wrongly would go unnoticed.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and _is_constant(parameter):
                _randomize(parameter)


def settle_batch_norms(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Give every batch norm, in place, statistics near those of what reaches it when the module runs on the inputs.

    A fresh batch norm in evaluation mode is the identity, which hides errors in folding it; and without it, or with
    unrelated statistics, the activations of deep networks fade until the output no longer depends on the input.
    """

    def settle(norm: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(norm, _NORMS) and norm.running_mean is not None and norm.running_var is not None:
            variance, mean = torch.var_mean(args[0].transpose(0, 1).flatten(1), dim=1, correction=0)
            # A channel that happens to be constant on these inputs must not amplify what it sees on others.
            variance = (variance + 0.1 * variance.mean() + 1e-6) * torch.empty_like(variance).uniform_(0.8, 1.25)
            norm.running_mean.copy_(mean + 0.1 * variance.sqrt() * torch.randn_like(mean))
            norm.running_var.copy_(variance)

    handles = [norm.register_forward_pre_hook(settle) for norm in module.modules() if isinstance(norm, _NORMS)]
    if handles:
        with torch.no_grad():
            module(*inputs)
    for handle in handles:
        handle.remove()


def _is_constant(parameter: nn.Parameter) -> bool:
    """Return whether all elements (two or more) have one value."""
    flat = parameter.detach().reshape(-1)
    return flat.numel() > 1 and bool((flat == flat[0]).all())


def _randomize(parameter: nn.Parameter) -> None:
    """Draw values around 0 for biases, 0.1 for layer scales (near zero only before training), else the old value."""
    value = float(parameter.reshape(-1)[0])
    if value == 0.0:
        parameter.normal_(0.0, 0.02)
    elif abs(value) < _TINY:
        parameter.uniform_(0.05, 0.15)
    else:
        parameter.mul_(torch.empty_like(parameter).uniform_(0.9, 1.1))

"""Resizing, as models call it, goes to the table where it copies elements by whole factors, and back bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.backend.lowering import is_upsampled_exactly
from taso_py.frontend import import_program
from tests.round_trips import Model, opaque_targets, operator_names, round_trip

IMAGE = torch.randn(2, 4, 7, 6, generator=torch.Generator().manual_seed(0))

ENLARGED: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": lambda x: F.interpolate(x, scale_factor=2.0),
    "three times as high": lambda x: F.interpolate(x, scale_factor=(3.0, 1.0)),
    "to a size": lambda x: F.interpolate(x, (14, 18)),
    "by the other count": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest-exact"),
    "to a size by the other count": lambda x: F.interpolate(x, (35, 66), mode="nearest-exact"),
    "one pixel": lambda x: F.interpolate(x[:, :, :1, :1], (32, 41)),
    "with a factor computed anew": lambda x: F.interpolate(x, scale_factor=2, recompute_scale_factor=True),
    "channels last": lambda x: F.interpolate(x.to(memory_format=torch.channels_last) + 1, scale_factor=2),
    "in half precision": lambda x: F.interpolate(x.half(), scale_factor=5),
    "by the greatest factor": nn.Upsample(scale_factor=16),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "by a fraction": lambda x: F.interpolate(x, scale_factor=1.5),
    "to a size that is no multiple": lambda x: F.interpolate(x, (14, 17)),
    "by a fraction that gives a multiple": lambda x: F.interpolate(x, scale_factor=(2.0, 2.1)),
    "by a factor of which PyTorch rounds the reciprocal down": lambda x: F.interpolate(x, scale_factor=41),
    "to a smaller size": lambda x: F.interpolate(x, (7, 3)),
    "bytes": lambda x: F.interpolate(x.to(torch.uint8), scale_factor=2),
}


@pytest.mark.parametrize("name", ENLARGED)
def test_enlarging_by_whole_factors_is_an_operator(name: str) -> None:
    program = round_trip(Model(lambda s, x: ENLARGED[name](x)), IMAGE)
    assert set(opaque_targets(program)) <= {"clone", "_to_copy"}
    assert operator_names(program).count("upsample_nearest2d") == 1


def test_sizes_may_stay_open() -> None:
    model = Model(lambda s, x: F.interpolate(x, scale_factor=(2.0, 3.0)).relu())
    height = torch.export.Dim("height", min=2, max=64)
    program = import_program(torch.export.export(model, (IMAGE,), dynamic_shapes=(({2: height},),)))
    assert operator_names(program) == ["upsample_nearest2d", "relu"]
    built = build(program)
    for rows in (2, 7, 64):
        x = torch.randn(2, 4, rows, 6)
        assert torch.equal(built(x), model(x))


INTERPOLATED: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "eight times": lambda x: F.interpolate(x, scale_factor=8, mode="bilinear"),
    "to a size": lambda x: F.interpolate(x, (21, 30), mode="bilinear"),
    "between corners": lambda x: F.interpolate(x, (35, 12), mode="bilinear", align_corners=True),
    "between corners by a factor": lambda x: F.interpolate(x, scale_factor=3, mode="bilinear", align_corners=True),
    "along one axis": lambda x: F.interpolate(x, scale_factor=(1.0, 7.0), mode="bilinear"),
    "by factors computed anew": lambda x: F.interpolate(
        x, scale_factor=2, mode="bilinear", recompute_scale_factor=True
    ),
    "channels last": lambda x: F.interpolate(
        x.to(memory_format=torch.channels_last) + 1, scale_factor=2, mode="bilinear"
    ),
    "in half precision": lambda x: F.interpolate(x.half(), scale_factor=5, mode="bilinear"),
}
NOT_BY_WHOLE_FACTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "by a fraction": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "to a size that is no multiple": lambda x: F.interpolate(x, (14, 17), mode="bilinear"),
    "to a smaller size": lambda x: F.interpolate(x, (7, 3), mode="bilinear", align_corners=True),
    "to a smaller size by centres": lambda x: F.interpolate(x, (3, 3), mode="bilinear"),
    "to a size that is smaller along one axis": lambda x: F.interpolate(x, (3, 36), mode="bilinear"),
    "by a fraction that gives a multiple": lambda x: F.interpolate(x, scale_factor=(2.0, 2.1), mode="bilinear"),
    "between the corners of one pixel": lambda x: F.interpolate(
        x[:, :, :1], scale_factor=(1.0, 2.0), mode="bilinear", align_corners=True
    ),
    "with antialiasing": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", antialias=True),
}


@pytest.mark.parametrize("name", INTERPOLATED)
def test_interpolating_by_whole_factors_is_an_operator(name: str) -> None:
    program = round_trip(Model(lambda s, x: INTERPOLATED[name](x)), IMAGE)
    assert set(opaque_targets(program)) <= {"clone", "_to_copy"}
    assert operator_names(program).count("upsample_bilinear2d") == 1


@pytest.mark.parametrize("name", ["twice", "between corners"])
def test_what_is_built_with_interpolation_is_imported_as_it_was(name: str) -> None:
    program = round_trip(Model(lambda s, x: INTERPOLATED[name](x)), IMAGE)
    assert operator_names(round_trip(build(program), IMAGE)) == operator_names(program)


@pytest.mark.parametrize("name", NOT_BY_WHOLE_FACTORS)
def test_other_interpolation_is_opaque(name: str) -> None:
    program = round_trip(Model(lambda s, x: NOT_BY_WHOLE_FACTORS[name](x)), IMAGE)
    assert opaque_targets(program)[-1].startswith(("upsample_bilinear2d", "_upsample_bilinear2d_aa"))
    assert "upsample_bilinear2d" not in operator_names(program)


@pytest.mark.parametrize("name", OTHERS)
def test_other_resizing_is_opaque(name: str) -> None:
    program = round_trip(Model(lambda s, x: OTHERS[name](x)), IMAGE)
    assert opaque_targets(program)[-1] == "upsample_nearest2d"
    assert "upsample_nearest2d" not in operator_names(program)


NORMALIZED: dict[str, tuple[nn.Module, list[str]]] = {
    "groups": (nn.GroupNorm(2, 4), ["group_norm"]),
    "one group, of a sequence": (nn.Sequential(nn.Flatten(2), nn.GroupNorm(1, 4)), ["reshape", "group_norm"]),
    "groups without weights": (nn.GroupNorm(4, 4, affine=False), ["group_norm"]),
    "images": (nn.InstanceNorm2d(4, affine=True), ["instance_norm"]),
    "images without weights": (nn.InstanceNorm2d(4), ["instance_norm"]),
    "sequences": (nn.Sequential(nn.Flatten(2), nn.InstanceNorm1d(4)), ["reshape", "instance_norm"]),
    "channels last": (
        Model(lambda s, x: s.norm(x.to(memory_format=torch.channels_last) + 1), norm=nn.GroupNorm(2, 4)),
        ["add", "group_norm"],
    ),
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_normalizations_of_channels_are_operators(name: str) -> None:
    module, expected = NORMALIZED[name]
    assert operator_names(round_trip(module.eval(), IMAGE)) == expected


def test_statistics_that_are_read_and_running_ones_are_left_as_they_are() -> None:
    def forward(s: Model, x: Tensor) -> tuple[Tensor, ...]:
        return torch.native_group_norm(x, None, None, 2, 4, 42, 2, 1e-5)

    assert opaque_targets(round_trip(Model(forward), IMAGE)) == ["native_group_norm"]
    tracking = nn.InstanceNorm2d(4, track_running_stats=True).eval()
    assert "instance_norm" not in operator_names(round_trip(tracking, IMAGE))


@pytest.mark.parametrize("factor", range(1, 60))
def test_the_kernel_reads_what_the_operator_says(factor: int) -> None:
    extent = 600
    line = torch.arange(extent, dtype=torch.float32).reshape(1, 1, 1, extent)
    found = F.interpolate(line, scale_factor=(1.0, float(factor))).reshape(-1).numpy()
    is_right = np.array_equal(found, np.arange(extent * factor) // factor)
    assert is_right or not is_upsampled_exactly((1, extent), (1, factor))
    assert not is_right or factor not in (41, 47, 55)


@pytest.mark.parametrize("factor", range(1, 17))
def test_up_to_its_limit_the_kernel_reads_what_the_operator_says(factor: int) -> None:
    extent = 2**19
    assert is_upsampled_exactly((extent, 1), (factor, 1))
    assert not is_upsampled_exactly((extent + 1, 1), (factor, 1))
    places = np.arange((extent - 2**10) * factor, extent * factor)
    read = np.floor(places.astype(np.float32) * np.float32(1 / factor)).astype(np.int64)
    assert np.float32(1 / factor) >= 1 / factor
    assert np.array_equal(read, places // factor)

"""The zoo's models from torchvision and timm.

Invariant: a builder imports its library only when called, and asks for no pretrained weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from taso_py.models.zoo.entry import ZooEntry, images


def _resnet50(small: bool) -> nn.Module:
    from torchvision.models import resnet

    return resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1] if small else [3, 4, 6, 3])


def _resnext50(small: bool) -> nn.Module:
    from torchvision.models import resnet

    return resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1] if small else [3, 4, 6, 3], groups=32, width_per_group=4)


def _inception_v3(small: bool) -> nn.Module:
    from torchvision.models import inception_v3

    del small  # torchvision offers no smaller one; the small input makes the difference
    # Its own initialisation, a truncated normal per layer, takes half a minute.
    return inception_v3(aux_logits=False, init_weights=False)


def _squeezenet1_1(small: bool) -> nn.Module:
    from torchvision.models import squeezenet1_1

    return squeezenet1_1(num_classes=10 if small else 1000)


def _mobilenet_v3_large(small: bool) -> nn.Module:
    from torchvision.models import mobilenet_v3_large

    return mobilenet_v3_large(reduced_tail=small)


def _efficientnet_b0(small: bool) -> nn.Module:
    from torchvision.models import efficientnet_b0

    return efficientnet_b0(num_classes=10 if small else 1000)


def _densenet121(small: bool) -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=8, block_config=(2, 2, 2, 2), num_init_features=16) if small else DenseNet()


def _convnext_tiny(small: bool) -> nn.Module:
    from torchvision.models import convnext

    widths, depths = ((16, 32, 64), (1, 2, 1)) if small else ((96, 192, 384, 768), (3, 3, 9, 3))
    stages = zip(widths, (*widths[1:], None), depths, strict=True)
    return convnext.ConvNeXt([convnext.CNBlockConfig(*stage) for stage in stages], stochastic_depth_prob=0.1)


def _vit_b_16(small: bool) -> nn.Module:
    from torchvision.models import VisionTransformer

    if small:
        return VisionTransformer(64, 16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128)
    return VisionTransformer(224, 16, num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072)


def _swin_t(small: bool) -> nn.Module:
    from torchvision.models import SwinTransformer

    depths, heads, width = ([2, 2], [2, 4], 32) if small else ([2, 2, 6, 2], [3, 6, 12, 24], 96)
    return SwinTransformer([4, 4], width, depths, heads, window_size=[7, 7])


def _nasnetalarge(small: bool) -> nn.Module:
    from timm.models.nasnet import NASNetALarge

    return NASNetALarge(stem_size=16, num_features=24 * 8, num_classes=10) if small else NASNetALarge()


def _mobileone_s0(small: bool) -> nn.Module:
    """MobileOne as it is trained, with up to six branches beside each other."""
    from timm.models.byobnet import ByobNet, model_cfgs

    config: Any = model_cfgs["mobileone_s0"]
    return ByobNet(
        replace(config, blocks=tuple(replace(block, d=1) for block in config.blocks[:2])) if small else config
    )


def _vit_base(small: bool) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=64, embed_dim=64, depth=2, num_heads=4) if small else VisionTransformer()


def _mixer_b16(small: bool) -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(img_size=64, embed_dim=64, num_blocks=2) if small else MlpMixer(embed_dim=768, num_blocks=12)


ENTRIES = (
    ZooEntry("convnext_tiny", "torchvision", _convnext_tiny, images(224, 64)),
    ZooEntry("densenet121", "torchvision", _densenet121, images(224, 64)),
    ZooEntry("efficientnet_b0", "torchvision", _efficientnet_b0, images(224, 64)),
    ZooEntry("inception_v3", "torchvision", _inception_v3, images(299, 96)),
    ZooEntry("mobilenet_v3_large", "torchvision", _mobilenet_v3_large, images(224, 64)),
    ZooEntry("resnet50", "torchvision", _resnet50, images(224, 64)),
    ZooEntry("resnext50_32x4d", "torchvision", _resnext50, images(224, 64)),
    ZooEntry("squeezenet1_1", "torchvision", _squeezenet1_1, images(224, 64)),
    ZooEntry("swin_t", "torchvision", _swin_t, images(224, 64)),
    ZooEntry("vit_b_16", "torchvision", _vit_b_16, images(224, 64)),
    ZooEntry("mobileone_s0", "timm", _mobileone_s0, images(224, 64)),
    ZooEntry("mixer_b16", "timm", _mixer_b16, images(224, 64)),
    # At 224, not its native 331, as TASO measured it.
    ZooEntry("nasnetalarge", "timm", _nasnetalarge, images(224, 64)),
    ZooEntry("vit_base", "timm", _vit_base, images(224, 64)),
)
"""Image classifiers on ``[batch, 3, size, size]``."""

"""Models on which the coverage of the rules is measured: what people build, small, with random weights.

Invariant: models and inputs depend only on the seed, and nothing is downloaded; a library is imported when one of its
models is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from experiments.coverage_blocks import DiffusionTransformer, ImageDecoder, Recurrent, UNet, WrittenLstm
from taso_py.backend.generators import random_state_seeded
from taso_py.driver.prepare import source_of
from taso_py.models import zoo
from taso_py.models.source import Source
from taso_py.models.zoo.libraries import require

Built: TypeAlias = tuple[nn.Module, tuple[Any, ...] | dict[str, Any]]
"""A module in evaluation mode, and its inputs by position or by name."""

CONVOLUTIONAL, MOBILE, TRANSFORMERS = "convolutional networks", "mobile networks", "vision transformers"
DENSE, ENCODERS, DECODERS = "segmentation and detection", "text encoders", "text decoders"
AUDIO, MULTIMODAL, DIFFUSION, RECURRENT = "audio", "images and text", "diffusion", "recurrent networks"
FAMILIES = (
    *(CONVOLUTIONAL, MOBILE, TRANSFORMERS, DENSE),
    *(ENCODERS, DECODERS, AUDIO, MULTIMODAL),
    *(DIFFUSION, RECURRENT),
)
_VOCABULARY, _LENGTH = 128, 16


@dataclass(frozen=True)
class CorpusModel:
    """A model of the corpus."""

    name: str
    family: str
    """One of `FAMILIES`."""
    build: Callable[[], Built]

    def source(self, seed: int) -> Source:
        """Return the model with inputs.

        Raises:
            ImportError: the library that defines it is not installed.
        """
        with random_state_seeded(seed):
            module, inputs = self.build()
        module.eval()
        return source_of(module, inputs, {}) if isinstance(inputs, tuple) else source_of(module, (), inputs)


def _from_zoo(name: str) -> Built:
    return zoo.get(name).make(small=True)


def _from_torchvision(name: str, side: int, **options: Any) -> Built:
    require("torchvision")
    from torchvision.models import get_model

    return get_model(name, weights=None, **options), (torch.randn(1, 3, side, side),)


def _from_timm(name: str, side: int, **options: Any) -> Built:
    require("timm")
    import timm

    return timm.create_model(name, **options), (torch.randn(1, 3, side, side),)


_SMALL: Mapping[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "embedding_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_size": 32,
    "patch_size": 8,
}
"""Values for whichever of these attributes a configuration has."""


def _from_transformers(
    kind: str, inputs: Callable[[], dict[str, Tensor]], *, head: str = "AutoModel", **options: Any
) -> Built:
    """Return a model of a small configuration.

    Args:
        kind: the type of model, as configurations name it.
        inputs: makes the inputs by name.
        head: the automatic class that makes the model.
        options: attributes of the configuration besides `_SMALL`.
    """
    require("transformers")
    import transformers

    config_class = transformers.AutoConfig.for_model(kind).__class__
    known = {field.name for field in fields(config_class)} | set(config_class.attribute_map)
    small = {name: value for name, value in _SMALL.items() if name in known}
    config = config_class(**{**small, **options})
    return getattr(transformers, head).from_config(config), inputs()


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, _VOCABULARY, (1, _LENGTH))}


def _short_text() -> dict[str, Tensor]:
    """Return a text for models that are exported step by step."""
    return {"input_ids": torch.randint(3, _VOCABULARY, (1, 6))}


def _two_texts() -> dict[str, Tensor]:
    return {**_tokens(), "decoder_input_ids": torch.randint(3, _VOCABULARY, (1, _LENGTH))}


def _masked_tokens() -> dict[str, Tensor]:
    return {**_tokens(), "attention_mask": torch.ones(1, _LENGTH, dtype=torch.int64)}


def _waveform() -> dict[str, Tensor]:
    return {"input_values": torch.randn(1, 2000)}


def _spectrogram(length: int, bins: int, name: str = "input_values") -> dict[str, Tensor]:
    return {name: torch.randn(1, length, bins)}


def _pixels(side: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, side, side)}


def _pixels_and_tokens() -> dict[str, Tensor]:
    return {**_masked_tokens(), **_pixels()}


def _pyramid_backbone() -> Built:
    require("torchvision")
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return resnet_fpn_backbone(backbone_name="resnet18", weights=None), (torch.randn(1, 3, 64, 64),)


def _feature_maps(channels: int, count: int = 3) -> list[Tensor]:
    return [torch.randn(1, channels, 16 >> level, 16 >> level) for level in range(count)]


def _retinanet_head() -> Built:
    require("torchvision")
    from torchvision.models.detection.retinanet import RetinaNetHead

    return RetinaNetHead(32, 9, 10), (_feature_maps(32),)


def _region_proposals() -> Built:
    require("torchvision")
    from torchvision.models.detection.rpn import RPNHead

    return RPNHead(32, 3), (_feature_maps(32),)


def _video() -> Built:
    require("torchvision")
    from torchvision.models.video import r3d_18

    return r3d_18(weights=None), (torch.randn(1, 3, 8, 32, 32),)


def _unet() -> Built:
    return UNet(), (torch.randn(1, 4, 16, 16), torch.tensor([10]), torch.randn(1, 8, 48))


def _diffusion_transformer() -> Built:
    return DiffusionTransformer(), (torch.randn(1, 64, 16), torch.tensor([10]))


def _image_decoder() -> Built:
    return ImageDecoder(), (torch.randn(1, 4, 8, 8),)


def _recurrent(kind: type[nn.LSTM | nn.GRU]) -> Built:
    return Recurrent(kind), (torch.randn(1, 8, 32),)


def _written_lstm() -> Built:
    return WrittenLstm(), (torch.randn(1, 4, 32), torch.randn(1, 32), torch.randn(1, 32))


_ZOO: Mapping[str, tuple[str, ...]] = {
    CONVOLUTIONAL: (
        *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "densenet121", "nasnetalarge"),
        "convnext_tiny",
    ),
    MOBILE: ("mobilenet_v3_large", "efficientnet_b0"),
    TRANSFORMERS: ("vit_b_16", "swin_t", "vit_base", "mixer_b16"),
    ENCODERS: ("bert_base", "bert_base_eager_attention", "distilbert", "t5"),
    DECODERS: ("gpt2", "gpt2_eager_attention", "llama", "llama_eager_attention"),
    AUDIO: ("whisper_encoder",),
    RECURRENT: ("nasrnn",),
}
"""Models of the zoo by family."""

_TORCHVISION: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    CONVOLUTIONAL: {
        "alexnet": {"side": 64},
        "vgg11_bn": {"side": 32},
        "googlenet": {"side": 64, "aux_logits": False, "init_weights": False},
        "regnet_y_400mf": {"side": 64},
    },
    MOBILE: {
        "mobilenet_v2": {"side": 64},
        "mnasnet0_5": {"side": 64},
        "shufflenet_v2_x0_5": {"side": 64},
    },
    TRANSFORMERS: {"swin_v2_t": {"side": 64}, "maxvit_t": {"side": 224}},
    DENSE: {
        "fcn_resnet50": {"side": 64, "weights_backbone": None},
        "deeplabv3_mobilenet_v3_large": {"side": 64, "weights_backbone": None},
        "lraspp_mobilenet_v3_large": {"side": 64, "weights_backbone": None},
    },
}
"""Options of torchvision's models by family and name."""

_TIMM: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    CONVOLUTIONAL: {
        "res2net50_26w_4s": {"side": 64},
        "resnest14d": {"side": 64},
        "skresnet18": {"side": 64},
        "dla34": {"side": 64},
        "hrnet_w18_small": {"side": 64},
        "cspresnet50": {"side": 64},
        "repvgg_a0": {"side": 64},
        "ese_vovnet19b_dw": {"side": 64},
        "convnextv2_atto": {"side": 64},
        "dpn48b": {"side": 64},
    },
    MOBILE: {
        "ghostnet_050": {"side": 64},
        "mobilenetv4_conv_small": {"side": 64},
        "edgenext_xx_small": {"side": 64},
        "mobilevit_xxs": {"side": 64},
        "mobilevitv2_050": {"side": 64},
        "efficientvit_b0": {"side": 64},
        "repvit_m0_9": {"side": 64},
        "fastvit_t8": {"side": 64},
    },
    TRANSFORMERS: {
        "deit_tiny_patch16_224": {"side": 224, "depth": 2},
        "cait_xxs24_224": {"side": 224, "depth": 2},
        "beit_base_patch16_224": {"side": 224, "depth": 2, "embed_dim": 192, "num_heads": 3},
        "eva02_tiny_patch14_224": {"side": 224, "depth": 2},
        "xcit_nano_12_p16_224": {"side": 224, "depth": 2},
        "crossvit_tiny_240": {"side": 240},
        "pvt_v2_b0": {"side": 64},
        "poolformer_s12": {"side": 64},
        "davit_tiny": {"side": 224, "depths": (1, 1, 1, 1)},
        "focalnet_tiny_srf": {"side": 64},
        "levit_128s": {"side": 224},
        "hiera_tiny_224": {"side": 224, "stages": (1, 1, 1, 1)},
        "tiny_vit_5m_224": {"side": 224},
    },
}
"""Options of timm's models by family and name."""

_TRANSFORMERS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    ENCODERS: {
        "albert": {"inputs": _tokens},
        "roberta": {"inputs": _tokens},
        "deberta-v2": {"inputs": _tokens, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "mpnet": {"inputs": _tokens},
        "modernbert": {"inputs": _masked_tokens, "cls_token_id": 1, "sep_token_id": 2},
        "xlnet": {"inputs": _tokens, "d_model": 32, "n_head": 4, "d_inner": 64},
        "fnet": {"inputs": _tokens},
        "bart": {
            "inputs": _two_texts,
            **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
            **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_start_token_id": 2},
        },
    },
    DECODERS: {
        "gpt_neo": {"inputs": _tokens, "attention_types": [[["global", "local"], 1]]},
        "gptj": {"inputs": _tokens, "rotary_dim": 4},
        "gpt_neox": {"inputs": _tokens},
        "opt": {"inputs": _tokens, "ffn_dim": 64, "word_embed_proj_dim": 32},
        "bloom": {"inputs": _tokens},
        "falcon": {"inputs": _tokens},
        "mistral": {"inputs": _tokens, "num_key_value_heads": 2, "sliding_window": 8},
        "qwen3": {"inputs": _tokens, "num_key_value_heads": 2, "head_dim": 8},
        "gemma2": {"inputs": _tokens, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
        "phi3": {"inputs": _tokens, "num_key_value_heads": 2},
        "mixtral": {"inputs": _tokens, "num_key_value_heads": 2, "num_local_experts": 4},
        "mamba": {"inputs": _short_text},
        "rwkv": {"inputs": _short_text, "context_length": 32},
    },
    AUDIO: {
        "wav2vec2": {"inputs": _waveform, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16},
        "hubert": {
            "inputs": _waveform,
            "conv_dim": [16] * 7,
            "num_conv_pos_embeddings": 16,
            "feat_extract_norm": "layer",
            "do_stable_layer_norm": True,
        },
        "wavlm": {"inputs": _waveform, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16},
        "audio-spectrogram-transformer": {
            "inputs": partial(_spectrogram, 64, 32),
            **{"max_length": 64, "num_mel_bins": 32, "patch_size": 16},
        },
        "encodec": {"inputs": lambda: {"input_values": torch.randn(1, 1, 640)}, "num_filters": 8, "hidden_size": 32},
    },
    MULTIMODAL: {
        "clip": {
            "inputs": _pixels_and_tokens,
            "text_config": {**_SMALL, "projection_dim": 32},
            "vision_config": {**_SMALL, "projection_dim": 32},
            "projection_dim": 32,
        },
        "vilt": {"inputs": _pixels_and_tokens},
        "dinov2": {"inputs": _pixels},
    },
    DENSE: {
        "segformer": {
            "inputs": partial(_pixels, 64),
            "head": "AutoModelForSemanticSegmentation",
            **{"depths": (1, 1, 1, 1), "hidden_sizes": (16, 32, 48, 64), "decoder_hidden_size": 32},
            **{"num_attention_heads": (1, 2, 3, 4), "num_hidden_layers": 4},
        },
        "dpt": {
            "inputs": partial(_pixels, 32),
            "head": "AutoModelForDepthEstimation",
            **{"backbone_out_indices": [0, 1, 2, 3], "num_hidden_layers": 4, "neck_hidden_sizes": [8, 16, 24, 32]},
            **{"fusion_hidden_size": 16},
        },
    },
}
"""Inputs and attributes of transformers' models by family and type."""

_OWN: Mapping[str, Mapping[str, Callable[[], Built]]] = {
    DENSE: {
        "resnet18_fpn_backbone": _pyramid_backbone,
        "retinanet_head": _retinanet_head,
        "rpn_head": _region_proposals,
        "r3d_18": _video,
    },
    DIFFUSION: {"unet": _unet, "image_decoder": _image_decoder, "diffusion_transformer": _diffusion_transformer},
    RECURRENT: {
        "lstm": partial(_recurrent, nn.LSTM),
        "gru": partial(_recurrent, nn.GRU),
        "lstm_written_out": _written_lstm,
    },
}
"""Builders of further models by family and name."""


def _family(family: str) -> Iterator[CorpusModel]:
    for name in _ZOO.get(family, ()):
        yield CorpusModel(name, family, partial(_from_zoo, name))
    libraries = ((_TORCHVISION, _from_torchvision), (_TIMM, _from_timm), (_TRANSFORMERS, _from_transformers))
    for table, build in libraries:
        for name, options in table.get(family, {}).items():
            yield CorpusModel(name.replace("-", "_"), family, partial(build, name, **options))
    for name, build_own in _OWN.get(family, {}).items():
        yield CorpusModel(name, family, build_own)


CORPUS: Mapping[str, CorpusModel] = {model.name: model for family in FAMILIES for model in _family(family)}
"""All models by name, family by family."""

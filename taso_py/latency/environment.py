"""The environment in which a latency is valid: the device, its software, and the settings that select kernels.

Invariant: two environments have the same key exactly if all their fields are equal, so that a latency is never taken
from another device, another version of PyTorch or another precision.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from taso_py.ir.errors import TasoError

Device: TypeAlias = str | torch.device
"""The name of a device, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, or a ``torch.device``."""

OPTIONAL = ("settings", "launched_by")
"""The fields of an environment that are omitted if they are empty."""


class DeviceError(TasoError):
    """A device that does not exist here or that is not supported."""


@dataclass(frozen=True)
class Environment:
    """Everything outside a tile that its latency depends on."""

    device: str
    """``cpu`` or ``cuda``."""
    device_name: str
    """The model of the processor or of the GPU."""
    instruction_set: str
    """The target of compiled kernels: PyTorch's CPU capability, e.g. ``AVX512``, or the GPU's, e.g. ``sm_90``."""
    driver: str
    """CUDA (or ROCm), cuDNN and driver version; empty on a CPU, where PyTorch's version implies everything."""
    torch_version: str
    """With the build's suffix, e.g. ``2.13.0+cpu``."""
    threads: int
    """Threads within an operator; 0 on a GPU, whose kernels do not use them."""
    matmul_precision: str
    """The precision of float32 matrix products: ``ieee``, ``tf32`` or ``bf16``."""
    convolution_precision: str
    """The precision of float32 convolutions; ``tf32`` is PyTorch's default on a GPU."""
    deterministic: bool
    """True if only deterministic kernels may be chosen."""
    cudnn_benchmark: bool
    """True if cuDNN tries its algorithms and takes the fastest; False on a CPU."""
    settings: str = ""
    """Other kernel-selecting switches of PyTorch that are off, and whether calls are captured in CUDA graphs;
    usually empty, and then omitted."""
    launched_by: str = ""
    """The processor that launches a GPU's kernels: a call that is shorter than its launch takes as long as that. Empty,
    and omitted, on a CPU and if calls are captured."""

    @classmethod
    def current(cls, device: Device) -> Environment:
        """Return the environment of this process; raise `DeviceError` if the device is not here or not supported."""
        resolved = resolve_device(device)
        return _cpu() if resolved.type == "cpu" else _cuda(resolved)

    @classmethod
    def from_dict(cls, description: Mapping[str, object]) -> Environment:
        """Read back a description by `as_dict`; raises `TasoError` for missing, unknown or mistyped fields."""
        kinds = {"str": str, "int": int, "bool": bool}
        description = {**dict.fromkeys(OPTIONAL, ""), **description}
        expected = {field.name: kinds[str(field.type)] for field in dataclasses.fields(cls)}
        if {name: type(value) for name, value in description.items()} != expected:
            raise TasoError("an environment is described by other fields than here; export it with the same version")
        return cls(**description)  # pyright: ignore[reportArgumentType] -- the types were compared above

    def as_dict(self) -> dict[str, str | int | bool]:
        """Return the fields by name, for people and for JSON."""
        return {name: value for name, value in vars(self).items() if name not in OPTIONAL or value}

    def with_cuda_graphs(self) -> Environment:
        """Return this environment with calls captured in CUDA graphs, whose kernels are not launched one by one."""
        settings = ", ".join(filter(None, (self.settings, "in CUDA graphs")))
        return dataclasses.replace(self, settings=settings, launched_by="")

    def for_engine(self, engine: str) -> Environment:
        """Return this environment for an engine other than PyTorch, named with its version."""
        return dataclasses.replace(self, settings=", ".join(filter(None, (self.settings, f"in {engine}"))))

    def key(self) -> str:
        """Return a digest of the fields, equal in every process: 16 hexadecimal digits."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve_device(device: Device) -> torch.device:
    """Return the device that is meant; raises `DeviceError` if it is not here or not supported."""
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise DeviceError(f"there is no device {str(device)!r}; use cpu or cuda") from None
    if resolved.type == "cpu":
        return resolved
    if resolved.type != "cuda":
        raise DeviceError(f"device {str(device)!r} is not supported; use cpu or cuda")
    if not torch.cuda.is_available():
        raise DeviceError("CUDA is not available here; use cpu, or install a CUDA build of PyTorch and its driver")
    if (resolved.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"there is no GPU {resolved.index}; this machine has {torch.cuda.device_count()}, from 0 on")
    return resolved


def _cpu() -> Environment:
    return Environment(
        device="cpu",
        device_name=_cpu_name(),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        driver="",
        torch_version=str(torch.__version__),
        threads=torch.get_num_threads(),
        matmul_precision=_precision(torch.backends.mkldnn, "matmul"),
        convolution_precision=_precision(torch.backends.mkldnn, "conv"),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        cudnn_benchmark=False,
        settings=", ".join(filter(None, (_settings(mkldnn=torch.backends.mkldnn.enabled), *_library_settings()))),
    )


def _cuda(device: torch.device) -> Environment:
    major, minor = torch.cuda.get_device_capability(device)
    products: Any = torch.backends.cuda.matmul
    library = str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2].lower()
    toolkit = f"rocm {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
    return Environment(
        device="cuda",
        device_name=torch.cuda.get_device_name(device),
        instruction_set=f"sm_{major}{minor}",
        driver=f"{toolkit}, {library}, cudnn {torch.backends.cudnn.version()}, driver {_driver_version()}",
        torch_version=str(torch.__version__),
        threads=0,
        matmul_precision=_precision(torch.backends.cuda, "matmul"),
        convolution_precision=_precision(torch.backends.cudnn, "conv"),
        deterministic=torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        settings=_settings(
            cudnn=torch.backends.cudnn.enabled,
            mem_efficient_sdp=torch.backends.cuda.mem_efficient_sdp_enabled(),
            cudnn_sdp=torch.backends.cuda.cudnn_sdp_enabled(),
            fp16_reduction=products.allow_fp16_reduced_precision_reduction,
            bf16_reduction=products.allow_bf16_reduced_precision_reduction,
            fp16_split_k=getattr(products, "allow_fp16_reduced_precision_reduction_split_k", True),
            bf16_split_k=getattr(products, "allow_bf16_reduced_precision_reduction_split_k", True),
            fp32_sums_of_fp16=not products.allow_fp16_accumulation,
        ),
        launched_by=_cpu_name(),
    )


_VARIABLES = (
    *(f"{prefix}_{name}" for prefix in ("ONEDNN", "DNNL") for name in ("MAX_CPU_ISA", "DEFAULT_FPMATH_MODE")),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"),
)
"""Environment variables by which oneDNN and MKL choose other kernels."""


def _library_settings() -> Sequence[str]:
    return [f"{name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name)]


def _settings(**switches: object) -> str:
    """Return the names of a device's switches that are off, and of the attention switches that all devices have."""
    switches["flash_sdp"] = torch.backends.cuda.flash_sdp_enabled()
    switches["math_sdp"] = torch.backends.cuda.math_sdp_enabled()
    return ", ".join(f"no {name}" for name, is_on in switches.items() if not is_on)


_float32 = threading.RLock()


@contextmanager
def float32_precision(precision: str, device: torch.device, kernels: str = "matmul") -> Generator[None]:
    """Compute float32 matrix products, or convolutions (``conv``), in ``ieee``, ``tf32`` or ``bf16`` in this context.

    A value that was inherited from a more general setting is inherited again afterwards. The setting is process-wide:
    one thread at a time changes it, for as short a time as possible.
    """
    with _float32:
        yield from _float32_precision(precision, device, kernels)


def _float32_precision(precision: str, device: torch.device, kernels: str) -> Generator[None]:
    libraries = {"matmul": torch.backends.cuda, "conv": torch.backends.cudnn}
    settings: Any = getattr(libraries[kernels] if device.type == "cuda" else torch.backends.mkldnn, kernels)
    before = settings.fp32_precision
    # The value that is read is the effective one, from this setting or a more general one; only a change tells which.
    # If both are equal, it is assumed to come from the general one.
    settings.fp32_precision = "none"
    own = "none" if settings.fp32_precision == before else before
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = own


def _precision(library: object, kernels: str) -> str:
    """Return a library's precision of float32 kernels; the legacy flags (``allow_tf32`` and so on) set this as well."""
    setting: str = getattr(library, kernels).fp32_precision
    return "ieee" if setting == "none" else setting


def _cpu_name() -> str:
    """Return the processor's model; on Linux, ``platform`` alone says no more than ``x86_64``.

    A virtual machine may show only a bare name, ``AMD EPYC``: family and model then tell generations apart.
    """
    about = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+?)\s*$", _read("/proc/cpuinfo"), re.MULTILINE))
    if "model name" not in about:
        return platform.processor() or platform.machine()
    parts = [f"{word} {about[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in about]
    return f"{about['model name']} ({', '.join(parts)})" if parts else about["model name"]


def _driver_version() -> str:
    """Return the version of NVIDIA's kernel module, if Linux tells it."""
    match = re.search(r"Kernel Module(?: for \S+)? +([\d.]+)", _read("/proc/driver/nvidia/version"))
    return match[1] if match else "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

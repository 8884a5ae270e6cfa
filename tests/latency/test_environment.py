"""Environments: what they tell apart, and that they survive being written down."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from taso_py.ir.errors import TasoError
from taso_py.latency import environment as environments
from taso_py.latency.environment import DeviceError, Environment, float32_precision, resolve_device


def test_the_processor_is_described() -> None:
    environment = Environment.current("cpu")
    assert environment.device == "cpu"
    assert environment.device_name
    assert environment.torch_version == torch.__version__
    assert environment.threads == torch.get_num_threads()


def test_every_field_is_part_of_the_key() -> None:
    environment = Environment.current("cpu")
    keys = {environment.key()}
    for name, value in environment.as_dict().items():
        other = f"{value}, another" if isinstance(value, str) else type(value)(not value)
        keys.add(dataclasses.replace(environment, **{name: other}).key())
    assert len(keys) == 1 + len(environment.as_dict())


def test_precision_settings_change_the_key() -> None:
    before = Environment.current("cpu")
    settings: Any = getattr(torch.backends.mkldnn, "matmul")  # noqa: B009 -- torch's annotations leave it out
    settings.fp32_precision = "bf16"
    try:
        changed = Environment.current("cpu")
    finally:
        settings.fp32_precision = "none"
    assert (before.matmul_precision, changed.matmul_precision) == ("ieee", "bf16")
    assert before.key() != changed.key()
    assert before == Environment.current("cpu")


@contextmanager
def _without_onednn() -> Generator[None]:
    torch._C._set_mkldnn_enabled(False)  # what torch.backends has for it sets other things too
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize(
    ("switch", "name"), [(_without_onednn, "mkldnn"), (lambda: sdpa_kernel(SDPBackend.MATH), "flash_sdp")]
)
def test_switches_that_are_off_change_the_key(switch: Callable[[], AbstractContextManager[None]], name: str) -> None:
    before = Environment.current("cpu")
    assert "settings" not in before.as_dict()
    with switch():
        changed = Environment.current("cpu")
    assert changed.settings == f"no {name}"
    assert changed.key() != before.key() == Environment.current("cpu").key()
    assert Environment.from_dict(changed.as_dict()) == changed


def test_variables_by_which_libraries_choose_kernels_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR"):
        monkeypatch.delenv(name, raising=False)
    before = Environment.current("cpu")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    after = Environment.current("cpu")
    assert after.settings.endswith("ONEDNN_MAX_CPU_ISA=AVX2")
    assert after.key() != before.key()


def test_the_key_is_the_same_in_another_process() -> None:
    program = (
        "import json, sys; from taso_py.latency.environment import Environment;"
        "print(Environment.from_dict(json.load(sys.stdin)).key())"
    )
    environment = Environment.current("cpu")
    answer = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(environment.as_dict()),
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == environment.key()


@pytest.mark.parametrize("change", [{"threads": "2"}, {"deterministic": 0}, {"colour": "blue"}])
def test_a_foreign_description_is_refused(change: dict[str, object]) -> None:
    description = Environment.current("cpu").as_dict()
    assert Environment.from_dict(description) == Environment.current("cpu")
    with pytest.raises(TasoError, match="other fields"):
        Environment.from_dict({**description, **change})


@pytest.mark.parametrize("device", ["banana", "mps", "cuda:99"])
def test_devices_that_are_not_here(device: str) -> None:
    with pytest.raises(DeviceError, match=r"use cpu|there is no GPU 99"):
        resolve_device(device)


@pytest.mark.parametrize(
    "module", ["Kernel Module", "Open Kernel Module", "Kernel Module for x86_64", "Open Kernel Module for aarch64"]
)
def test_the_driver_is_known_by_its_version(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    banner = f"NVRM version: NVIDIA UNIX {module}  580.159.04  Release Build  (root)\nGCC version: gcc version 13.3.0"
    monkeypatch.setattr(environments, "_read", lambda _: banner)
    assert environments._driver_version() == "580.159.04"


def test_processors_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
    names = list[str]()
    for model in (1, 2):
        monkeypatch.setattr(environments, "_read", lambda _, model=model: text.format(model=model))
        names.append(environments._cpu_name())
    assert names == ["AMD EPYC (family 26, model 1)", "AMD EPYC (family 26, model 2)"]
    monkeypatch.setattr(environments, "_read", lambda _: "model name\t: Neoverse-V2\n")
    assert environments._cpu_name() == "Neoverse-V2"


def test_products_are_computed_otherwise_for_a_while_only() -> None:
    before = Environment.current("cpu")
    with float32_precision("bf16", torch.device("cpu")):
        assert Environment.current("cpu").matmul_precision == "bf16"
    assert Environment.current("cpu") == before


@pytest.mark.parametrize("own", ["none", "tf32"])
def test_a_precision_that_is_taken_over_from_a_general_setting_is_so_afterwards(own: str) -> None:
    general: Any = torch.backends
    products: Any = general.mkldnn.matmul
    before = general.fp32_precision, products.fp32_precision
    try:
        general.fp32_precision, products.fp32_precision = "bf16", own
        with float32_precision("ieee", torch.device("cpu")):
            assert products.fp32_precision == "ieee"
        general.fp32_precision = "ieee"
        assert products.fp32_precision == ("ieee" if own == "none" else own)
    finally:
        general.fp32_precision, products.fp32_precision = before


def test_eager_calls_on_a_gpu_depend_on_what_launches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A GPU")
    found = list[Environment]()
    for processor in ("One", "Another"):
        monkeypatch.setattr(environments, "_cpu_name", lambda processor=processor: processor)
        found.append(environments._cuda(torch.device("cuda", 0)))
    one, another = found
    assert (one.device_name, one.launched_by) == ("A GPU", "One")
    assert one.key() != another.key()
    assert one.with_cuda_graphs() == another.with_cuda_graphs()
    assert Environment.from_dict(one.as_dict()) == one
    assert "launched_by" not in {**Environment.current("cpu").as_dict(), **one.with_cuda_graphs().as_dict()}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_is_described() -> None:
    environment = Environment.current("cuda")
    assert environment.device_name == torch.cuda.get_device_name()
    assert environment.instruction_set.startswith("sm_")
    assert environment.convolution_precision == "tf32"
    assert environment.threads == 0
    assert environment.launched_by == Environment.current("cpu").device_name

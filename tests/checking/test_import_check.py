"""Before anything is rewritten, the imported graph has to give what the model gives."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from taso_py.checking.import_check import ImportCheckError, check_import
from taso_py.checking.roundtrip import without_fused_attention
from taso_py.driver.prepare import prepare
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.options import Options

X = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_what_is_imported_wrongly_is_refused() -> None:
    """Eager mode computes nested tensors where padding is masked, an export does not."""
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 6, 64), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    source = Source("encoder", model, (x,), {"src_key_padding_mask": padding})
    with torch.no_grad():
        program = import_source(source)
    with pytest.raises(ImportCheckError) as refused:
        check_import(source, program, 0)
    said = str(refused.value)
    assert "computes something else than its export: output 0 on example inputs is off by" in said
    assert "torch.backends.mha.set_fastpath_enabled(False)" in said, "what to do"
    assert Path(said.rpartition("; see ")[2]).is_file(), "where to read on"
    with without_fused_attention():
        check_import(source, program, 0)


class Slightly(nn.Module):
    """Exports as something a little else than it computes, or much else."""

    def __init__(self, apart: float) -> None:
        super().__init__()
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() * (1.0 if torch.compiler.is_exporting() else 1.0 + self.apart)


@pytest.mark.parametrize(("apart", "told"), [(0.0, False), (1e-4, True)])
def test_a_small_difference_from_the_export_is_told(apart: float, told: bool) -> None:
    source = Source("slightly", Slightly(apart), (X,), {})
    notes = check_import(source, import_source(source), 0)
    assert [note.partition(",")[0] for note in notes] == ["the model differs slightly from its export"] * told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_difference_that_the_fused_path_makes_is_not_told(dtype: torch.dtype) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    model = nn.TransformerEncoder(layer, 8).eval().to(dtype)
    source = Source("encoder", model, (torch.randn(2, 6, 64).to(dtype),), {})
    with torch.no_grad():
        assert check_import(source, import_source(source), 0) == ()


class Peaking(nn.Module):
    """Divides by the greatest magnitude of all calls, or of this one."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps, self.peak = keeps, X.abs().max() * 2

    def forward(self, x: Tensor) -> Tensor:
        peak = torch.maximum(self.peak, x.abs().max())
        if self.keeps:
            self.peak = peak
        return x / peak


@pytest.mark.parametrize("keeps", [False, True])
def test_a_model_that_keeps_something_of_other_inputs_only_is_refused(keeps: bool) -> None:
    model = Peaking(keeps=keeps)
    source = Source("peaking", model, (X,), {})
    program = import_source(source)
    with pytest.raises(ImportCheckError, match="repeated example inputs") if keeps else nullcontext():
        assert check_import(source, program, 0) == ()


@pytest.mark.parametrize("keeps", [False, True])
def test_a_model_is_as_it_was_afterwards(keeps: bool) -> None:
    model = Peaking(keeps=keeps)
    peak = model.peak
    with suppress(ImportCheckError), prepare(Source("peaking", model, (X,), {}), Options(cache=False)):
        model.made = X
    assert model.peak is peak
    assert not hasattr(model, "made")

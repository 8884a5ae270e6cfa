"""Rows of losses, of which models in evaluation return some."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taso_py.backend.onnx.aten.elementwise import operand_as, operands_as
from taso_py.backend.onnx.elementwise import log1p
from taso_py.backend.onnx.row import OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer, as_number
from taso_py.ir.types import DType

_MEAN, _SUM = 1, 2
"""PyTorch's numbers of reductions; 0 is for none."""
_LEAST_LOGARITHM = -100.0
"""The least logarithm of a probability in the binary cross entropy."""


def _reduced(w: Writer, call: OpaqueCall, losses: OnnxValue) -> OnnxValue:
    """Write the mean or the sum of losses, or leave them as they are."""
    names = {_MEAN: "ReduceMean", _SUM: "ReduceSum"}
    name = names.get(call.arguments["reduction"])
    return losses if name is None else w.op(name, losses, keepdims=0)


def _operands(w: Writer, call: OpaqueCall) -> tuple[OnnxValue, OnnxValue, DType]:
    dtype = call.types[0].dtype
    x, target = operands_as(w, call, dtype, "self", "target")
    return x, target, dtype


def _of_difference(loss: Callable[[Writer, OnnxValue, OpaqueCall], OnnxValue]) -> OpaqueRow:
    """Return the row of a loss, given what writes it for the difference of output and target."""

    def row(w: Writer, call: OpaqueCall) -> OnnxValue:
        x, target, _ = _operands(w, call)
        return _reduced(w, call, loss(w, w.op("Sub", x, target), call))

    return row


def _squared(w: Writer, apart: OnnxValue, call: OpaqueCall) -> OnnxValue:
    return w.op("Mul", apart, apart)


def _absolute(w: Writer, apart: OnnxValue, call: OpaqueCall) -> OnnxValue:
    return w.op("Abs", apart)


def _huber(w: Writer, apart: OnnxValue, call: OpaqueCall) -> OnnxValue:
    dtype, delta = call.types[0].dtype, call.arguments["delta"]
    size, half, limit = w.op("Abs", apart), w.number(0.5, dtype), w.number(delta, dtype)
    square = w.op("Mul", half, w.op("Mul", size, size))
    line = w.op("Mul", limit, w.op("Sub", size, w.number(0.5 * delta, dtype)))
    return w.op("Where", w.op("Less", size, limit), square, line)


def _smooth_l1(w: Writer, apart: OnnxValue, call: OpaqueCall) -> OnnxValue:
    dtype, beta = call.types[0].dtype, call.arguments["beta"]
    size = w.op("Abs", apart)
    if not beta:
        return size
    half, limit = w.number(0.5, dtype), w.number(beta, dtype)
    square = w.op("Div", w.op("Mul", half, w.op("Mul", size, size)), limit)
    line = w.op("Sub", size, w.number(0.5 * beta, dtype))
    return w.op("Where", w.op("Less", size, limit), square, line)


def _weighted(w: Writer, call: OpaqueCall, losses: OnnxValue) -> OnnxValue:
    weight = call.optional("weight")
    return losses if weight is None else w.op("Mul", losses, operand_as(w, weight, call.types[0].dtype))


def _binary_cross_entropy(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, target, dtype = _operands(w, call)
    least, one = w.number(_LEAST_LOGARITHM, dtype), w.number(1.0, dtype)
    # NaN comes second in the maximum, where engines keep it.
    no = w.op("Mul", w.op("Sub", target, one), w.op("Max", least, log1p(w, w.op("Neg", x), dtype)))
    yes = w.op("Mul", target, w.op("Max", least, w.op("Log", x)))
    return _reduced(w, call, _weighted(w, call, w.op("Sub", no, yes)))


def _binary_cross_entropy_with_logits(w: Writer, call: OpaqueCall) -> OnnxValue:
    (x, target, dtype), positive = _operands(w, call), call.optional("pos_weight")
    one = w.number(1.0, dtype)
    soft = w.op("Softplus", w.op("Neg", x))
    if positive is not None:
        less = w.op("Sub", operand_as(w, positive, dtype), one)
        soft = w.op("Mul", w.op("Add", w.op("Mul", less, target), one), soft)
    losses = w.op("Add", w.op("Mul", w.op("Sub", one, target), x), soft)
    return _reduced(w, call, _weighted(w, call, losses))


def _divergence(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, target, dtype = _operands(w, call)
    if call.arguments["log_target"]:
        return _reduced(w, call, w.op("Mul", w.op("Exp", target), w.op("Sub", target, x)))
    zero = w.number(0.0, dtype)
    entropy = w.op("Mul", target, w.op("Log", target))
    entropy = w.op("Where", w.op("Equal", target, zero), zero, entropy)
    return _reduced(w, call, w.op("Sub", entropy, w.op("Mul", target, x)))


def _class_axis(call: OpaqueCall) -> int:
    return 1 if call.operand().type.rank > 1 else 0


def _likelihood(w: Writer, call: OpaqueCall) -> OnnxValue:
    return _of_classes(w, call, call.operand().onnx, smoothing=0.0)


def _cross_entropy(w: Writer, call: OpaqueCall) -> OnnxValue:
    x, smoothing = call.operand(), call.arguments["label_smoothing"]
    logarithms = w.op("LogSoftmax", x.onnx, axis=_class_axis(call))
    if not call.operand("target").type.dtype.is_floating:
        return _of_classes(w, call, logarithms, smoothing=smoothing)
    return _of_probabilities(w, call, logarithms, smoothing=smoothing)


def _of_probabilities(w: Writer, call: OpaqueCall, logarithms: OnnxValue, smoothing: float) -> OnnxValue:
    """Write the cross entropy with the probabilities of all classes."""
    dtype, x, axis = call.types[0].dtype, call.operand(), _class_axis(call)
    target = operand_as(w, call.operand("target"), dtype)
    if smoothing:
        share = smoothing / as_number(x.type.dims[axis])
        target = w.op("Add", w.op("Mul", target, w.number(1 - smoothing, dtype)), w.number(share, dtype))
    products = w.op("Mul", logarithms, target)
    weight = call.optional("weight")
    if weight is not None:
        products = w.op("Mul", products, _beside(w, operand_as(w, weight, dtype), x.type.rank - 1 - axis))
    return _reduced(w, call, w.op("Neg", w.op("ReduceSum", products, w.integers([axis]), keepdims=0)))


def _beside(w: Writer, weight: OnnxValue, behind: int) -> OnnxValue:
    """Return the weights of classes along their axis, behind which there are others."""
    return w.op("Reshape", weight, w.integers([-1, *[1] * behind])) if behind else weight


def _of_classes(w: Writer, call: OpaqueCall, logarithms: OnnxValue, smoothing: float) -> OnnxValue:
    """Write the cross entropy with the one class of each element, some of which may be left out."""
    dtype, x, axis = call.types[0].dtype, call.operand(), _class_axis(call)
    target, weight = call.operand("target"), call.optional("weight")
    left_out = w.op("Equal", target.onnx, w.number(call.arguments["ignore_index"], target.type.dtype))
    classes = w.op("Where", left_out, w.number(0, target.type.dtype), target.onnx)
    along, zero = w.integers([axis]), w.number(0.0, dtype)
    picked = w.op("GatherElements", logarithms, w.op("Unsqueeze", classes, along), axis=axis)
    losses = w.op("Neg", w.op("Squeeze", picked, along))
    shares: OnnxValue = w.number(1.0, dtype)
    if weight is not None:
        shares = w.op("Gather", weight.onnx, classes, axis=0)
        losses = w.op("Mul", losses, shares)
    if smoothing:
        weighted = logarithms
        if weight is not None:
            weighted = w.op("Mul", logarithms, _beside(w, weight.onnx, x.type.rank - 1 - axis))
        spread = w.op("Neg", w.op("ReduceSum", weighted, along, keepdims=0))
        share = w.number(smoothing / as_number(x.type.dims[axis]), dtype)
        losses = w.op("Mul", losses, w.number(1 - smoothing, dtype))
        losses = w.op("Add", losses, w.op("Mul", spread, share))
    losses = w.op("Where", left_out, zero, losses)
    if call.arguments["reduction"] != _MEAN:
        return _reduced(w, call, losses)
    total = w.op("ReduceSum", losses, keepdims=0)
    return w.op("Div", total, w.op("ReduceSum", w.op("Where", left_out, zero, shares), keepdims=0))


ROWS: Mapping[str, OpaqueRow] = {
    "aten.mse_loss.default": _of_difference(_squared),
    "aten.l1_loss.default": _of_difference(_absolute),
    "aten.huber_loss.default": _of_difference(_huber),
    "aten.smooth_l1_loss.default": _of_difference(_smooth_l1),
    "aten.binary_cross_entropy.default": _binary_cross_entropy,
    "aten.binary_cross_entropy_with_logits.default": _binary_cross_entropy_with_logits,
    "aten.kl_div.default": _divergence,
    "aten.nll_loss_nd.default": _likelihood,
    "aten.cross_entropy_loss.default": _cross_entropy,
}
"""The rows, by the name of the overload."""

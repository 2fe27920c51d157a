# SPDX-License-Identifier: Apache-2.0
"""
The operators that a program of torch.export may call; all others are refused.

The list is what exports of ACT, diffusion and VQ-BeT of LeRobot, of torchvision's image networks,
of transformers and of recurrent networks call, as exported and after `run_decompositions`, with
the arithmetic of the same kinds (`test_program_operators.py` exports them). The rest of torch is
left out because operators read and write past their tensors, return pointers, or return memory
that holds other values (`empty*`, and `grid_sampler` of an unknown mode). Some of these do so too,
for shapes that no export has: CHECKED are called in their place. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
import operator
import re
from typing import Any

import torch

from lerobot_serve.policies.base import PolicyError

aten = torch.ops.aten
ARITHMETIC = """
abs acos acosh add add_ addmm amax amin all any argmax argmin asin asinh atan atan2 atanh
baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor bmm ceil clamp clamp_ clamp_max clamp_min
cos cosh cumsum div div_ dot einsum eq erf exp expm1 fill fill_ floor floor_divide fmod ge gt
isinf isnan le linalg_vector_norm log log10 log1p log2 logical_and logical_not logical_or
logical_xor lt matmul max maximum mean min minimum mm mul mul_ nan_to_num ne neg pow prod
reciprocal remainder round rsqrt rsub sigmoid sign sin sinh sqrt square std sub sub_ sum tan
tanh trunc var where __and__ __or__
"""
SHAPES = """
alias as_strided broadcast_to cat chunk clone constant_pad_nd contiguous copy copy_ detach
detach_ diagonal expand expand_as flatten flip lift_fresh_copy movedim narrow pad permute
pixel_shuffle repeat reshape roll select select_scatter slice slice_scatter split
split_with_sizes squeeze stack sym_numel sym_size t to transpose tril triu unbind unflatten
unsqueeze view _to_copy _unsafe_view _assert_scalar _assert_tensor_metadata
"""
VALUES = """
arange bucketize embedding full full_like gather index index_put index_put_ index_select
linspace masked_fill masked_fill_ multinomial new_full new_ones new_zeros one_hot ones ones_like
rand rand_like randn randn_like scalar_tensor scatter scatter_add sort topk zeros zeros_like
"""
LAYERS = """
_adaptive_avg_pool2d _log_softmax _native_batch_norm_legit_no_training _softmax
adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d batch_norm conv1d conv2d
conv_transpose1d conv_transpose2d convolution dropout dropout_ elu gelu glu group_norm gru
hardsigmoid hardswish hardswish_ hardtanh hardtanh_ layer_norm leaky_relu leaky_relu_ linear
log_softmax lstm max_pool1d max_pool2d max_pool2d_with_indices mish native_dropout
native_group_norm native_layer_norm prelu relu relu_ rms_norm scaled_dot_product_attention silu
silu_ softmax softplus
"""
NAMES = frozenset(f'{ARITHMETIC} {SHAPES} {VALUES} {LAYERS}'.split())
# of a name above: bits of one type read as another, rows counted by a tensor that is unchecked,
# and remainders of whole numbers, which end the process for some
REFUSED_OVERLOADS = {'view.dtype', 'lstm.data', 'gru.data', 'remainder.int', 'remainder.default'}
TENSOR_OPERATOR = re.compile(r'torch\.ops\.aten\.(\w+)\.(\w+)', re.ASCII)
# others, such as str or t[], operate on TorchScript's texts and lists, which are unbounded
RESULT_TYPES = re.compile(
    r'(List\[)?(Optional\[Tensor\]|Tensor|int|SymInt)\]?|number|Scalar|float|bool'
)
# of sizes; no power, which is computed with any number of digits
SIZE_OPERATORS = (
    *('add', 'sub', 'mul', 'neg', 'pos', 'floordiv', 'truediv', 'mod', 'and_', 'or_', 'not_'),
    *('eq', 'ne', 'lt', 'le', 'gt', 'ge'),
)
OTHER_OPERATOR = re.compile(
    rf'_operator\.({"|".join(SIZE_OPERATORS)}|getitem)'
    r'|math\.(ceil|floor|trunc|sqrt)'
    r'|torch\.sym_(int|float|max|min|not|ite|sum|sqrt)'
    # no while_loop, cond, map or scan: no export of a policy needs them
    r'|torch\.ops\.higher_order\.(wrap_with_autocast|wrap_with_set_grad_enabled)'
)
SIZE_LIMIT = 1 << 63


def is_allowed(target: str) -> bool:
    """Return whether a program may call the operator of this name."""
    if OTHER_OPERATOR.fullmatch(target):
        return True
    parts = TENSOR_OPERATOR.fullmatch(target)
    if parts is None or parts[1] not in NAMES or f'{parts[1]}.{parts[2]}' in REFUSED_OVERLOADS:
        return False
    overload = getattr(getattr(aten, parts[1], None), parts[2], None)
    return isinstance(overload, torch._ops.OpOverload) and _takes_and_gives_numbers(overload)


def _takes_and_gives_numbers(overload: Any) -> bool:
    schema = overload._schema
    return all(RESULT_TYPES.fullmatch(str(each.type)) for each in schema.returns) and not any(
        each.is_out for each in schema.arguments
    )


def use_checked_operators(module: torch.nn.Module) -> None:
    """Replace the operators of a program that have a checked form."""
    for graph_module in module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in graph_module.graph.nodes:
                if node.op == 'call_function' and node.target in CHECKED:
                    node.target = CHECKED[node.target]
            graph_module.recompile()


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise PolicyError(f'the program has {what}; export it again')


def _attention(query: Any, key: Any, value: Any, *arguments: Any, **named: Any) -> Any:
    """The kernels take the number of values for that of keys."""
    heads = query.shape[:-2] == key.shape[:-2] or bool(named.get('enable_gqa'))
    _require(
        heads and key.shape[:-1] == value.shape[:-1] and query.shape[-1] == key.shape[-1],
        'a scaled_dot_product_attention with queries, keys and values of different sizes',
    )
    return aten.scaled_dot_product_attention.default(query, key, value, *arguments, **named)


def _lstm(values: Any, hidden: Any, weights: Any, *arguments: Any) -> Any:
    _check_recurrent('lstm', 4, values, hidden, weights, *arguments)
    return aten.lstm.input(values, hidden, weights, *arguments)


def _gru(values: Any, hidden: Any, weights: Any, *arguments: Any) -> Any:
    _check_recurrent('gru', 3, values, [hidden], weights, *arguments)
    return aten.gru.input(values, hidden, weights, *arguments)


def _check_recurrent(
    name: str,
    gates: int,
    values: Any,
    hidden: Any,
    weights: Any,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> None:
    """The kernels take all sizes from the first weight. Raises PolicyError."""
    directions, width = 1 + bool(bidirectional), hidden[0].shape[-1]
    rows = gates * width
    wanted = [
        shape
        for layer in range(layers)
        for _ in range(directions)
        for shape in (
            (rows, width * directions if layer else values.shape[-1]),
            (rows, width),
            *([(rows,), (rows,)] if has_biases else []),
        )
    ]
    state = (layers * directions, values.shape[0 if batch_first else 1], width)
    tensors = [*hidden, *weights]
    _require(
        values.dim() == 3
        and [tuple(each.shape) for each in tensors] == [state] * len(hidden) + wanted
        and all(each.dtype == values.dtype for each in tensors),
        f'a {name} with weights or states of other sizes than its inputs need',
    )


def _batch_norm(values: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
    sizes = {each.numel() for each in (weight, bias, mean, variance) if each is not None}
    _require(sizes == {values.shape[1]}, 'a batch_norm with statistics of other channels')
    return aten._native_batch_norm_legit_no_training.default(
        values, weight, bias, mean, variance, *rest
    )


def _divide(overload: Callable[..., Any]) -> Callable[..., Any]:
    """A truncated division of whole numbers ends the process for the least of them by -1."""

    def checked(values: Any, divisor: Any, *, rounding_mode: str | None = None) -> Any:
        _require(
            rounding_mode != 'trunc' or values.is_floating_point(),
            'a div of whole numbers with rounding_mode trunc',
        )
        return overload(values, divisor, rounding_mode=rounding_mode)

    return checked


def _one_hot(values: Any, num_classes: int = -1) -> Any:
    """Without a number of classes a value of a caller is the size."""
    _require(num_classes > 0, 'a one_hot without num_classes')
    return aten.one_hot.default(values, num_classes)


def _of_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of sizes alone; with texts and lists it would take any memory."""

    def checked(*values: Any) -> Any:
        _require(all(isinstance(each, int | float) for each in values), 'sizes that are none')
        result = function(*values)
        _require(abs(result) < SIZE_LIMIT, 'a size without bound')
        return result

    return checked


CHECKED: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: _attention,
    aten.lstm.input: _lstm,
    aten.gru.input: _gru,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.one_hot.default: _one_hot,
    **{
        overload: _divide(overload)
        for divide in (aten.div, aten.div_)
        for overload in (divide.Tensor_mode, divide.Scalar_mode)
    },
    **{getattr(operator, name): _of_sizes(getattr(operator, name)) for name in SIZE_OPERATORS},
}

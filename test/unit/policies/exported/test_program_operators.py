# SPDX-License-Identifier: Apache-2.0
"""The operators of exported programs: those that policies need, with shapes that are theirs."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from lerobot_serve.policies.base import PolicyError

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from support.policies import exported_rig, recurrent_rig, tiny_policies  # noqa: E402
from torch import nn  # noqa: E402

from lerobot_serve.policies.exported.export import write_onnx  # noqa: E402
from lerobot_serve.policies.exported.onnx_file import checked_model  # noqa: E402
from lerobot_serve.policies.exported.program_operators import (  # noqa: E402
    aten,
    CHECKED,
    is_allowed,
    NAMES,
    use_checked_operators,
)

zeros = torch.zeros


def lstm(width: int = 8, *, state: int = 8, bias: int = 32, batch: int = 1) -> tuple[Any, ...]:
    weights = [zeros(4 * width, 4), zeros(4 * width, width), zeros(bias), zeros(bias)]
    hidden = [zeros(1, batch, state), zeros(1, batch, state)]
    return zeros(1, 1, 4), hidden, weights, True, 1, 0.0, False, False, True


def attention(
    *, queries: int = 4, keys: int = 4, values: int = 4, heads: int = 1
) -> tuple[Any, ...]:
    return zeros(1, heads, queries, 8), zeros(1, 1, keys, 8), zeros(1, 1, values, 8)


def batch_norm(channels: int, statistics: int) -> tuple[Any, ...]:
    own = zeros(statistics)
    return zeros(1, channels, 2, 2), own, own, own, own, 0.1, 1e-5


# torch reads or writes past these tensors, or ends the process
HARM = {
    'more keys than values': (aten.scaled_dot_product_attention.default, attention(keys=1 << 16)),
    'more heads': (aten.scaled_dot_product_attention.default, attention(heads=64)),
    'a small state': (aten.lstm.input, lstm(state=1)),
    'a state of another batch': (aten.lstm.input, lstm(batch=9)),
    'small biases': (aten.lstm.input, lstm(bias=1)),
    'few statistics': (
        aten._native_batch_norm_legit_no_training.default,
        batch_norm(1 << 20, 1),
    ),
    'classes of a value': (aten.one_hot.default, (torch.tensor([1 << 40]),)),
    'a text of any length': (operator.mod, ('%99999999999d', 1)),
    'a list of any length': (operator.mul, ([1], 1 << 50)),
    'a number of any length': (operator.mul, (1 << 62, 4)),
}


@pytest.mark.parametrize(('target', 'arguments'), HARM.values(), ids=HARM)
def test_shapes_that_no_export_has_are_refused(target, arguments):
    with pytest.raises(PolicyError, match='the program has'):
        CHECKED[target](*arguments)


@pytest.mark.parametrize('divide', [aten.div, aten.div_])
@pytest.mark.parametrize(
    ('overload', 'divisor'), [('Tensor_mode', torch.tensor([-1])), ('Scalar_mode', -1)]
)
def test_a_truncated_division_of_whole_numbers_is_refused(divide, overload, divisor):
    checked = CHECKED[getattr(divide, overload)]
    with pytest.raises(PolicyError, match='rounding_mode trunc'):
        checked(torch.tensor([-(1 << 63)]), divisor, rounding_mode='trunc')
    assert checked(torch.tensor([7.5]), divisor, rounding_mode='trunc').tolist() == [-7]


def test_every_overload_of_a_checked_operator_is_checked_or_refused():
    names = {
        target._schema.name.split('::')[1] for target in CHECKED if hasattr(target, '_schema')
    }
    admitted = {
        getattr(getattr(aten, name), overload)
        for name in names
        for overload in getattr(aten, name).overloads()
        if is_allowed(f'torch.ops.aten.{name}.{overload}')
    }
    # a division that does not round gives fractions of whole numbers too
    plain = {each for each in admitted if each not in CHECKED and 'div' in each.__name__}
    assert not [each for each in plain if 'rounding_mode' in str(each._schema)]
    assert admitted - plain == CHECKED.keys() & admitted


@pytest.mark.parametrize('name', ['lstm.data', 'gru.data', 'remainder.int', 'remainder.default'])
def test_an_overload_that_reads_past_its_tensors_or_ends_the_process_is_refused(name):
    assert not is_allowed(f'torch.ops.aten.{name}')


RIGHT = {
    'attention': (aten.scaled_dot_product_attention.default, attention(queries=9)),
    'lstm': (aten.lstm.input, lstm()),
    'batch_norm': (aten._native_batch_norm_legit_no_training.default, batch_norm(4, 4)),
    'mul': (operator.mul, (3, 4)),
    'one_hot': (aten.one_hot.default, (torch.tensor([2]), 4)),
}


@pytest.mark.parametrize(('target', 'arguments'), RIGHT.values(), ids=RIGHT)
def test_the_shapes_of_exports_give_what_torch_gives(target, arguments):
    checked, plain = CHECKED[target](*arguments), target(*arguments)
    assert torch.utils._pytree.tree_all(
        lambda pair: torch.equal(torch.as_tensor(pair[0]), torch.as_tensor(pair[1])),
        [*zip(*map(torch.utils._pytree.tree_leaves, (checked, plain)), strict=True)],
        is_leaf=lambda each: isinstance(each, tuple),
    )


@pytest.mark.parametrize('kind', [nn.LSTM, nn.GRU])
def test_a_program_that_is_loaded_calls_the_checked_operators(kind):
    network = kind(4, 8, 2, batch_first=True, bidirectional=True).eval()
    state = zeros(4, 2, 8)
    states = (state, state) if kind is nn.LSTM else state
    program = torch.export.export(network, (zeros(2, 3, 4), states)).module(check_guards=False)
    expected = network(zeros(2, 3, 4), states)[0]
    use_checked_operators(program)
    assert torch.equal(program(zeros(2, 3, 4), states)[0], expected)
    targets = [node.target for node in program.graph.nodes if node.op == 'call_function']
    assert CHECKED[aten.lstm.input if kind is nn.LSTM else aten.gru.input] in targets


def operators(program: torch.export.ExportedProgram) -> set[str]:
    """Return the operators of a program, by the names in its file."""
    return {
        f'torch.ops.{node.target}'
        if isinstance(node.target, torch._ops.OpOverload)
        else f'{node.target.__module__}.{node.target.__name__}'
        for graph in program.graph_module.modules()
        if isinstance(graph, torch.fx.GraphModule)
        for node in graph.graph.nodes
        if node.op == 'call_function'
    }


def used(network: nn.Module, *inputs: Any) -> set[str]:
    """Return the operators of a network, as exported and in terms of torch's core operators."""
    with torch.no_grad():
        program = torch.export.export(network.eval(), inputs)
        return operators(program) | operators(program.run_decompositions())


class Wrapped(nn.Module):
    """Calls a network with what it takes."""

    def __init__(self, network: nn.Module, call: Any) -> None:
        super().__init__()
        self.network, self.call = network, call

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.call(self.network, *inputs)


def act_network(folder: Any) -> tuple[Any, ...]:
    """Return the network of ACT and its inputs."""
    from lerobot_serve.policies.lerobot.compat import lerobot

    lerobot()
    from lerobot.policies.factory import get_policy_class

    act = get_policy_class('act').from_pretrained(tiny_policies.build('act', folder / 'act'))
    picture = zeros(2, 3, 48, 64)
    return (
        Wrapped(
            act.eval().model,
            lambda net, state, *images: net(
                {'observation.state': state, 'observation.images': [*images]}
            )[0],
        ),
        *(zeros(2, 6), picture, picture),
    )


def lerobot_networks(folder: Any) -> dict[str, set[str]]:
    """Return the operators of LeRobot's networks that take no text."""
    from lerobot_serve.policies.lerobot.compat import lerobot

    lerobot()
    from lerobot.policies.factory import get_policy_class

    diffusion, vqbet = (
        get_policy_class(kind).from_pretrained(tiny_policies.build(kind, folder / kind)).eval()
        for kind in ('diffusion', 'vqbet')
    )
    state, image = 'observation.state', 'observation.images'
    history = zeros(1, 3, 1, 3, 48, 64)
    return {
        'act': used(*act_network(folder)),
        # its loop over noise is the user's: a step of it, and what sees the images
        'diffusion': used(
            diffusion.diffusion.unet, zeros(1, 8, 6), zeros(1), zeros(1, unet_width(diffusion))
        )
        | used(diffusion.diffusion.rgb_encoder, zeros(1, 3, 48, 64)),
        'vqbet': used(
            Wrapped(vqbet.vqbet, lambda net, s, i: net({state: s, image: i}, rollout=True)),
            *(zeros(1, 3, 6), history),
        ),
    }


def unet_width(diffusion: Any) -> int:
    """Return the values of the observations that its network takes."""
    network, config = diffusion.diffusion.unet, diffusion.config
    encoded = network.down_modules[0][0].cond_encoder[1].in_features
    return int(encoded - config.diffusion_step_embed_dim)


@pytest.mark.slow
@pytest.mark.long
def test_exports_of_policies_call_no_other_operator(tmp_path):
    pytest.importorskip('lerobot', reason='LeRobot is not installed')
    import torchvision
    import tqdm

    # its progress bar would leave a thread behind
    tqdm.tqdm.monitor_interval = 0
    hidden = zeros(2, 1, recurrent_rig.HIDDEN)
    picture = zeros(2, 3, 64, 64)
    found = lerobot_networks(tmp_path) | {
        'exported': used(exported_rig.Network(), *exported_rig.inputs()),
        'lstm': used(recurrent_rig.Lstm(), zeros(2, recurrent_rig.JOINTS), hidden, hidden),
        'mlp': used(recurrent_rig.Mlp(), zeros(2, recurrent_rig.JOINTS)),
        'gru': used(nn.GRU(4, 8, batch_first=True), zeros(2, 3, 4), zeros(1, 2, 8)),
        'transformer': used(
            nn.Transformer(8, 2, 1, 1, 16, batch_first=True), zeros(2, 3, 8), zeros(2, 3, 8)
        ),
        'resnet': used(torchvision.models.resnet18(), picture),
        'efficientnet': used(torchvision.models.efficientnet_b0(), picture),
        'vit': used(torchvision.models.vit_b_16(image_size=32), zeros(2, 3, 32, 32)),
    }
    refused = {
        kind: sorted(name for name in names if not is_allowed(name))
        for kind, names in found.items()
    }
    assert not any(refused.values()), refused


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('kind', ['act', 'resnet', 'vit', 'lstm', 'gru'])
def test_exports_of_networks_as_onnx_pass(kind, tmp_path):
    pytest.importorskip('onnxscript', reason='onnxscript is not installed')
    pytest.importorskip('lerobot', reason='LeRobot is not installed')
    import torchvision
    import tqdm

    # its progress bar would leave a thread behind
    tqdm.tqdm.monitor_interval = 0
    hidden = zeros(2, 1, recurrent_rig.HIDDEN)
    networks: dict[str, Any] = {
        'act': lambda: act_network(tmp_path),
        'resnet': lambda: (torchvision.models.resnet18(), zeros(2, 3, 64, 64)),
        'vit': lambda: (
            torchvision.models.VisionTransformer(32, 16, 1, 2, 16, 32),
            zeros(2, 3, 32, 32),
        ),
        'lstm': lambda: (recurrent_rig.Lstm(), zeros(2, recurrent_rig.JOINTS), hidden, hidden),
        'gru': lambda: (nn.GRU(4, 8, batch_first=True), zeros(2, 3, 4), zeros(1, 2, 8)),
    }
    network, *inputs = networks[kind]()
    with torch.no_grad():
        program = torch.export.export(network.eval(), tuple(inputs))
        write_onnx(program, tmp_path / 'program.onnx')
    assert checked_model(memoryview((tmp_path / 'program.onnx').read_bytes())).nodes


def test_every_name_is_one_of_torch():
    assert not {name for name in NAMES if not hasattr(aten, name)}

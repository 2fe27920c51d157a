# SPDX-License-Identifier: Apache-2.0
"""Weights of a LeRobot directory: exactly those of the network, or refused."""

from dataclasses import replace
from pathlib import Path
import shutil

import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from safetensors.torch import save_file  # noqa: E402
from support.policies.lerobot_rig import (  # noqa: E402
    change_tensors,
    folder_of,
    LEROBOT,
    loading,
    refused,
)

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot import network  # noqa: E402
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402
from lerobot_serve.policies.lerobot.network import SkipRandomValues  # noqa: E402

FILLERS = (
    torch.nn.init.normal_,
    torch.nn.init.uniform_,
    lambda weight: weight.normal_(),
    lambda weight: weight.uniform_(),
)


@pytest.fixture
def copied(tmp_path):
    """A directory of an ACT policy that a test may damage."""
    return Path(shutil.copytree(folder_of('act'), tmp_path / 'act'))


def rename(held):
    held['model.renamed'] = held.pop('model.action_head.bias')


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (rename, 'model.action_head.bias'),
        (rename, 'model.renamed'),
        (lambda held: held.update(extra=torch.zeros(2)), 'extra'),
        (lambda held: held.pop('model.action_head.bias'), 'model.action_head.bias'),
        (
            lambda held: held.update({'model.action_head.bias': torch.zeros(7)}),
            'model.action_head.bias is 7 in the file and 6 in the network',
        ),
        (
            lambda held: held.update({'normalize_inputs.mean': torch.zeros(2)}),
            'migrate_policy_normalization.py',
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(copied, change, said):
    change_tensors(copied / 'model.safetensors', change)
    text = refused(copied)
    assert 'model.safetensors does not fit the act policy' in text
    assert said in text


@pytest.mark.parametrize('content', [b'', b'version https://git-lfs.github.com', b'\xff' * 64])
def test_a_damaged_file_of_weights_is_refused(copied, content):
    (copied / 'model.safetensors').write_bytes(content)
    assert 'is not a readable safetensors file' in refused(copied)


def test_weights_that_are_not_finite_are_refused(copied):
    def spoil(held):
        held['model.action_head.bias'][0] = float('nan')

    change_tensors(copied / 'model.safetensors', spoil)
    assert 'is not finite' in refused(copied)


class Careless(torch.nn.Module):
    """A network whose own loader may have gone on without the file."""

    def __init__(self):
        super().__init__()
        self.config = None
        self.model = torch.nn.ModuleDict(
            {'one': torch.nn.Linear(2, 2), 'tied': torch.nn.Linear(2, 2, bias=False)}
        )
        self.model['tied'].weight = self.model['one'].weight


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda held: None, None),
        (lambda held: held.update(nothing=torch.zeros(1)), 'unknown weights model.nothing'),
        (lambda held: held.pop('one.bias'), 'missing weights model.one.bias'),
        (lambda held: held['one.bias'].add_(1), 'not loaded model.one.bias'),
        (lambda held: held.update({'one.bias': torch.zeros(3)}), 'not loaded model.one.bias'),
    ],
)
def test_a_loader_that_goes_on_without_the_file_is_found_out(copied, change, said):
    careless = Careless()
    # as another project writes it: without the prefix, and a tied weight only once
    held = {
        name.removeprefix('model.'): tensor.clone()
        for name, tensor in careless.state_dict().items()
        if 'tied' not in name
    }
    change(held)
    save_file(held, copied / 'model.safetensors')
    folder = read_checkpoint(str(copied))
    if said is None:
        network.check_weights(folder, careless)
        return
    with pytest.raises(PolicyError, match=said):
        network.check_weights(folder, careless)


class NeverReads(LEROBOT.get_policy_class('act')):
    config_class, name = LEROBOT.get_policy_class('act').config_class, 'never_reads'

    @classmethod
    def from_pretrained(cls, path, *, config, strict):
        return cls(config)


class ReadsNoTensors(LEROBOT.get_policy_class('act')):
    config_class, name = LEROBOT.get_policy_class('act').config_class, 'reads_no_tensors'

    @classmethod
    def _load_as_safetensor(cls, model, *_):
        return model


class ReadsNoTensorsAtAll(LEROBOT.get_policy_class('act')):
    config_class, name = LEROBOT.get_policy_class('act').config_class, 'reads_no_tensors_at_all'

    @staticmethod
    def _load_as_safetensor(model, *_):
        return model


@pytest.mark.parametrize('careless', [NeverReads, ReadsNoTensors, ReadsNoTensorsAtAll])
def test_every_loader_that_is_not_lerobots_common_one_is_checked(copied, careless):
    config = LEROBOT.config_class.from_pretrained(str(copied))
    folder = read_checkpoint(str(copied))
    with pytest.raises(PolicyError, match='not loaded model'):
        network.load_network(folder, careless, config)


def test_a_load_draws_no_random_values_that_the_file_replaces():
    load(loading(folder_of('act')))
    before = torch.get_rng_state()
    load(loading(folder_of('act')))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_of_another_package_gets_its_random_values(copied):
    config = LEROBOT.config_class.from_pretrained(str(copied))
    folder = read_checkpoint(str(copied))
    act = LEROBOT.get_policy_class('act')
    before = torch.get_rng_state()
    network.load_network(folder, act, config)
    assert torch.equal(torch.get_rng_state(), before)
    network.load_network(replace(folder, policy_type='of_a_package'), act, config)
    assert not torch.equal(torch.get_rng_state(), before)


def test_buffers_are_filled_at_random_and_parameters_are_not():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('table', torch.zeros(64), persistent=False)
            for fill in (
                torch.nn.init.normal_,
                torch.nn.init.uniform_,
                torch.nn.init.trunc_normal_,
            ):
                self.table.zero_()
                fill(self.table)
                assert self.table.abs().sum() > 0
            self.layers = torch.nn.ModuleList(
                [
                    torch.nn.Linear(8, 8),
                    torch.nn.Conv2d(3, 3, 3),
                    torch.nn.MultiheadAttention(8, 2),
                ]
            )
            self.weight = torch.nn.Parameter(torch.zeros(64))
            for fill in FILLERS:
                fill(self.weight)
            assert self.weight.abs().sum() == 0

    state = torch.get_rng_state()
    with SkipRandomValues():
        torch.nn.Linear(8, 8)
        assert torch.equal(torch.get_rng_state(), state)
        Network()

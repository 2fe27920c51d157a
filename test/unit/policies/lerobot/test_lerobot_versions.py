# SPDX-License-Identifier: Apache-2.0
"""Which LeRobot reads which checkpoint, and what is said of one that needs another."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from support.paths import REPOSITORY

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.checkpoint import version_rules
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from lerobot_serve.policies.lerobot.checkpoint.version_rules import (
    check_known,
    check_registered_step,
    check_version,
    installed_version,
)

GOLDEN = REPOSITORY / 'test' / 'golden'
# written by the real releases: a tiny policy and its chunk, and the settings of another
EARLIER, LATER = GOLDEN / 'lerobot-0.4.4-tdmpc', GOLDEN / 'lerobot-0.6.1-act'
FIRST, SECOND, THIRD = (0, 4, 4), (0, 6, 1), (0, 6, 2)


@pytest.fixture
def installed(monkeypatch):
    """Make the installed LeRobot and the Python others than they are."""

    def change(version, python=(3, 12)):
        monkeypatch.setattr(version_rules, 'installed_version', lambda: version)
        monkeypatch.setattr(sys, 'version_info', (*python, 0, 'final', 0))

    return change


def later_folder(tmp_path):
    """Return a folder with the settings that 0.6.1 wrote; its weights are not looked at."""
    shutil.copy(LATER / 'config.json', tmp_path)
    for name in ('policy_preprocessor.json', 'policy_postprocessor.json'):
        (tmp_path / name).write_text('{"steps": []}')
    (tmp_path / 'model.safetensors').write_bytes(b'')
    return str(tmp_path)


def test_a_checkpoint_of_0_6_is_refused_by_0_4_with_the_python_to_use(tmp_path, installed):
    folder = later_folder(tmp_path)
    installed(FIRST, (3, 11))
    with pytest.raises(PolicyError) as refusal:
        read_checkpoint(folder)
    assert str(refusal.value) == (
        f'{folder}/config.json: this checkpoint was written by LeRobot 0.6.0 or newer (it has '
        "'pretrained_revision'), and the installed LeRobot 0.4.4 cannot read it; serve it with "
        'Python 3.12: PYTHON=python3.12 make shell'
    )


@pytest.mark.parametrize('version', [SECOND, THIRD, None])
def test_a_checkpoint_of_0_6_is_read_by_0_6_and_where_there_is_no_lerobot(
    tmp_path, installed, version
):
    installed(version)
    assert read_checkpoint(later_folder(tmp_path)).policy_type == 'act'


@pytest.mark.parametrize(
    ('policy_type', 'config', 'needed', 'name'),
    [
        ('act', {}, (0, 0, 0), ''),
        ('act', {'pretrained_revision': None}, (0, 6, 0), 'pretrained_revision'),
        ('of_a_package', {'pretrained_revision': 'main'}, (0, 6, 0), 'pretrained_revision'),
        ('diffusion', {'gradient_checkpointing': False}, (0, 6, 1), 'gradient_checkpointing'),
        ('pi0', {'gradient_checkpointing': False}, (0, 0, 0), ''),
        ('pi0', {'use_relative_actions': False}, (0, 5, 1), 'use_relative_actions'),
        ('smolvla', {'rtc_config': None}, (0, 0, 0), ''),
        ('smolvla', {'rtc_config': {'enabled': True}}, (0, 0, 0), ''),
        ('smolvla', {'rtc_config': {'mode': 'guided'}}, (0, 6, 2), 'mode'),
        (
            'pi05',
            {'pretrained_revision': None, 'rtc_training_max_delay': 0},
            (0, 6, 2),
            'rtc_training_max_delay',
        ),
    ],
)
def test_the_setting_that_needs_the_latest_version_decides(
    installed, policy_type, config, needed, name
):
    for version in (FIRST, SECOND, THIRD):
        installed(version)
        if version >= needed:
            check_version(policy_type, config, 'a file')
            continue
        text = rf'written by LeRobot {".".join(map(str, needed))} or newer \(it has {name!r}\)'
        with pytest.raises(PolicyError, match=text):
            check_version(policy_type, config, 'a file')


def test_with_the_right_python_a_newer_lerobot_is_the_remedy(installed):
    installed(SECOND)
    with pytest.raises(PolicyError, match=r'0\.6\.1 cannot read it; install LeRobot 0\.6\.2 or'):
        check_known('a file', 'mode', THIRD)


def test_a_step_of_a_later_version_is_refused_where_it_is_not_registered(installed):
    installed(FIRST, (3, 11))
    check_registered_step('relative_actions_processor', is_registered=True)
    check_registered_step('of_a_package', is_registered=False)
    with pytest.raises(PolicyError, match=r'LeRobot 0\.6\.0 or newer.*PYTHON=python3\.12'):
        check_registered_step('relative_actions_processor', is_registered=False)


def test_a_tokenizer_of_later_libraries_is_refused(tmp_path, installed):
    from lerobot_serve.policies.files.assets import Asset
    from lerobot_serve.policies.lerobot.checkpoint.asset_rules import check_asset

    (tmp_path / 'tokenizer_config.json').write_text('{"tokenizer_class": "TokenizersBackend"}')
    installed(SECOND)
    check_asset(Asset('a', tmp_path))
    installed(FIRST, (3, 11))
    with pytest.raises(PolicyError, match=r"it has 'TokenizersBackend'.*PYTHON=python3\.12"):
        check_asset(Asset('a', tmp_path))


def test_the_installed_version_is_read_from_its_metadata():
    pytest.importorskip('lerobot', reason='LeRobot is not installed')
    import lerobot

    assert '.'.join(map(str, installed_version())) == lerobot.__version__
    assert installed_version() == (SECOND if sys.version_info >= (3, 12) else FIRST)


def test_a_checkpoint_of_0_4_gives_the_chunk_that_it_gave_there():
    """The file is of 0.4.4 with Python 3.11 and torch 2.13; each later combination is compared."""
    np = pytest.importorskip('numpy')
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    pytest.importorskip('lerobot', reason='LeRobot is not installed')
    from support.policies.lerobot_rig import loading, requests_for

    from lerobot_serve.policies.lerobot.loader import load

    policy = load(loading(EARLIER))
    chunk = policy.predict(requests_for(policy, 1))[0].robot
    expected = np.array(json.loads((EARLIER / 'chunk.json').read_text()), np.float32)
    np.testing.assert_allclose(chunk, expected, atol=1e-5)


def test_a_real_checkpoint_of_0_6_is_refused_or_read_by_the_installed_lerobot(tmp_path):
    pytest.importorskip('lerobot', reason='LeRobot is not installed')
    folder = later_folder(tmp_path)
    if installed_version() >= SECOND:
        assert read_checkpoint(folder).config['pretrained_revision'] is None
        return
    with pytest.raises(PolicyError, match=r'PYTHON=python3\.12 make shell'):
        read_checkpoint(folder)

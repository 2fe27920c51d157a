# SPDX-License-Identifier: Apache-2.0
"""Folders that try to run code, or to reach the network, when they are loaded."""

from __future__ import annotations

import http.server
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import threading

import pytest

pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.attack_rig import ATTACKS, evil_asset, with_step
from support.policies.lerobot_rig import (
    change_json,
    copy_of,
    folder_of,
    loaded,
    loading,
    refused,
    set_json,
)

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.checkpoint import asset_rules
from lerobot_serve.policies.lerobot.checkpoint import checkpoint as folder_module
from lerobot_serve.policies.lerobot.loader import load
from lerobot_serve.policies.lerobot.prediction import processors

LOADERS = {
    'AutoConfig': 'AutoConfig.from_pretrained(folder, trust_remote_code=True)',
    'AutoTokenizer': 'AutoTokenizer.from_pretrained(folder, trust_remote_code=True)',
    'AutoProcessor': 'AutoProcessor.from_pretrained(folder, trust_remote_code=True)',
}


@pytest.fixture
def marker(tmp_path):
    return tmp_path / 'marker'


@pytest.fixture
def asset(tmp_path, marker):
    return evil_asset(tmp_path / 'asset', marker)


@pytest.mark.parametrize('attack', ATTACKS)
def test_a_folder_that_attacks_is_refused_and_nothing_runs(tmp_path, asset, marker, attack):
    text = refused(ATTACKS[attack](tmp_path / 'policy', asset))
    assert not marker.exists()
    assert text


@pytest.mark.parametrize('attack', ['action tokenizer', 'tokenizer', 'language model'])
def test_the_seal_holds_where_the_lists_would_not(tmp_path, asset, marker, monkeypatch, attack):
    monkeypatch.setattr(folder_module, 'check_step', lambda *_: None)
    monkeypatch.setattr(folder_module, 'check_asset', lambda *_: None)
    monkeypatch.setattr(
        'lerobot_serve.policies.lerobot.prediction.processors._check_owner', lambda *_: None
    )
    text = refused(ATTACKS[attack](tmp_path / 'policy', asset))
    assert not marker.exists()
    assert 'requests Python code beside a tokenizer' in text


# the lists are switched off: they refuse what follows before it could run
UNGUARDED = """
from lerobot_serve.policies.lerobot import compat, hardening
from lerobot_serve.policies.lerobot.checkpoint import checkpoint
from lerobot_serve.policies.lerobot.prediction import processors
checkpoint.check_step = checkpoint.check_asset = processors._check_owner = lambda *_: None
if not sealed:
    hardening.refuse_code = lambda: None
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.lerobot.loader import load
try:
    load({options})
except PolicyError as error:
    print(error)
compat.import_torchvision()
hardening.disable_network()
hardening.refuse_code()
"""
# to import LeRobot takes seconds: once, then a fork for each
EACH = """
import os, sys
from lerobot_serve.policies.lerobot import compat
compat.import_torchvision()
compat._import_parts()
from transformers import AutoTokenizer
for name, code in {codes!r}.items():
    child = os.fork()
    if not child:
        print(name, flush=True)
        exec(code, {{'sealed': name == 'sealed'}})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
DOWNLOAD = """
from transformers import AutoTokenizer
try:
    AutoTokenizer.from_pretrained("lab/words")
except Exception:
    pass
"""


@pytest.mark.slow
def test_without_us_attacks_run_and_the_hub_receives_requests(tmp_path, hub):
    """In our loader and in those of transformers; the other tests would see nothing without."""
    endpoint, asked = hub
    code, markers = {'download': DOWNLOAD}, {}
    for seal in ('open', 'sealed'):
        home = tmp_path / seal
        code[seal], markers[seal] = attacks_of(home)
    # transformers copies the code that it imports below HF_HOME
    said = '\n'.join(run_beside(endpoint, tmp_path, EACH.format(codes=code)))
    assert asked
    opened, sealed = said.partition('open\n')[2].split('sealed\n')
    for seal, text in (('open', opened), ('sealed', sealed)):
        ran = {name for name, marker in markers[seal].items() if marker.exists()}
        assert ran == (set() if seal == 'sealed' else set(markers[seal])), said
        refusals = [line for line in text.splitlines() if 'requests Python code' in line]
        assert len(refusals) == (len(markers[seal]) if seal == 'sealed' else 0), said


def attacks_of(home: Path) -> tuple[str, dict[str, Path]]:
    """Return the code of all attacks below a folder, and the marker of each."""
    markers = {name: home / f'{name}.marker' for name in ('ours', *LOADERS)}
    asset = evil_asset(home / 'asset', markers['ours'])
    folder = ATTACKS['action tokenizer'](home / 'policy', asset)
    code = [UNGUARDED.format(options=repr(loading(folder)))]
    for name, load_it in LOADERS.items():
        theirs = evil_asset(home / name, markers[name])
        code += [f'from transformers import {name}', f'folder = {str(theirs)!r}']
        code += ['try:', f'    {load_it}', 'except Exception as error:', '    print(repr(error))']
    return '\n'.join(code), markers


class Counting(http.server.BaseHTTPRequestHandler):
    """The hub, which counts who asks."""

    asked: list[str]

    def _count(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    do_GET = do_HEAD = do_POST = _count

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub():
    handler = type('Hub', (Counting,), {'asked': []})
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f'http://127.0.0.1:{server.server_port}', handler.asked
        server.shutdown()
        thread.join()


LOAD = """
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.lerobot.loader import load
for options in {options}:
    try:
        print(load(options).describe().fingerprint)
    except PolicyError as error:
        print("refused", error)
"""


def run_beside(hub: str, home: Path, code: str) -> list[str]:
    """Run code in a fresh process that would download from `hub`; return the lines it prints."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(('HF_', 'TRANSFORMERS'))
    }
    environment |= {'HF_ENDPOINT': hub, 'HF_HOME': str(home / 'hf')}
    environment |= {'TORCH_HOME': str(home / 'torch'), 'https_proxy': hub}
    done = subprocess.run(
        [sys.executable, '-c', code],
        env=environment,
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=240,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_hub_receives_no_request(tmp_path, hub):
    """In a fresh process, which also finds the steps of a policy type by itself."""
    endpoint, asked = hub
    plain, worded, backbone = (
        copy_of(kind, tmp_path / name)
        for name, kind in (('plain', 'smolvla'), ('worded', 'smolvla'), ('backbone', 'act'))
    )
    set_json(worded / 'config.json', vlm_model_name='lab/words')
    weights = 'ResNet18_Weights.IMAGENET1K_V1'
    set_json(backbone / 'config.json', pretrained_backbone_weights=weights)
    options = [loading(folder) for folder in (plain, worded, backbone)]
    first, second, third = run_beside(endpoint, tmp_path, LOAD.format(options=repr(options)))
    assert asked == []
    assert first == loaded('smolvla').describe().fingerprint
    assert second.startswith('refused')
    assert third.startswith('act@')


def test_weights_that_could_be_pickled_are_refused(tmp_path):
    folder = copy_of('smolvla', tmp_path)
    vlm = Path(shutil.copytree(folder_of('smolvla') / 'vlm', tmp_path / 'vlm'))
    (vlm / 'pytorch_model.bin').write_bytes(b'cos\nsystem\n(S"true"\ntR.')
    set_json(folder / 'config.json', vlm_model_name=str(vlm), load_vlm_weights=True)
    assert 'has no weights in model.safetensors' in refused(folder)
    # one of another name is not what transformers reads
    shutil.copy(folder / 'model.safetensors', vlm / 'other.safetensors')
    assert 'has no weights in model.safetensors' in refused(folder)
    (vlm / 'model.safetensors.index.json').write_text('{"weight_map": {"w": "../x.bin"}}')
    assert 'must name only .safetensors files of its folder' in refused(folder)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'model_type': 'bert'}, 'model_type must be'),
        ({'model_type': 'gemma'}, 'must describe a model of the type smolvlm'),
        ({'quantization_config': {'quant_method': 'hqq'}}, "has 'quantization_config'"),
        ({'attn_implementation': 'lab/kernel'}, 'attn_implementation must be'),
        ({'text_config': {'auto_map': {'AutoModel': 'evil.Model'}}}, "has 'auto_map'"),
        ({'text_config': {'model_type': ['llama']}}, 'model_type must be'),
        ({'text_config': {'num_hidden_layers': 129}}, 'num_hidden_layers must be at most 128'),
        ({'text_config': {'hidden_size': 1 << 21}}, 'hidden_size must be at most 1048576'),
        ({'vision_config': 3}, 'its parts must be of the types'),
    ],
)
def test_a_language_model_is_looked_at(tmp_path, change, said):
    vlm = Path(shutil.copytree(folder_of('smolvla') / 'vlm', tmp_path / 'vlm'))
    set_json(vlm / 'config.json', **change)
    asset = folder_module.Asset('vlm', vlm, is_model=True)
    with pytest.raises(PolicyError, match=said):
        asset_rules.check_asset(asset)


@pytest.mark.parametrize(
    ('file', 'change'),
    [
        ('tokenizer_config.json', {'vocab_file': '/etc/passwd'}),
        ('tokenizer_config.json', {'tokenizer_file': '/etc/passwd'}),
        ('tokenizer_config.json', {'init_inputs': ['/etc/passwd']}),
        ('special_tokens_map.json', {'merges_file': '/etc/passwd'}),
        ('processor_config.json', {'audio_tokenizer': {'audio_tokenizer_name_or_path': '/x'}}),
        ('audio_tokenizer.json', {'audio_tokenizer_name_or_path': '/x'}),
    ],
)
def test_an_asset_names_no_files_outside_of_its_folder(tmp_path, file, change):
    asset = folder_module.Asset('words', tmp_path)
    (tmp_path / file).write_text(json.dumps(dict.fromkeys(change)))
    asset_rules.check_asset(asset)
    (tmp_path / file).write_text(json.dumps(change))
    with pytest.raises(PolicyError, match='names files outside of its folder'):
        asset_rules.check_asset(asset)


def test_an_asset_that_is_a_part_of_another_is_refused(tmp_path):
    (tmp_path / 'adapter_config.json').write_text('{"base_model_name_or_path": "/elsewhere"}')
    with pytest.raises(PolicyError, match='names another model to load'):
        asset_rules.check_asset(folder_module.Asset('words', tmp_path))


def test_a_known_step_of_another_package_is_refused(monkeypatch):
    step = folder_module.ProcessorStepSpec('device_processor', {}, None)
    processors._check_owner(step, ())
    foreign = type('Foreign', (), {'__module__': 'somewhere.steps'})
    registry = processors.lerobot().step_registry._registry
    monkeypatch.setitem(registry, 'device_processor', foreign)
    with pytest.raises(PolicyError, match='device_processor'):
        processors._check_owner(step, ('other',))
    processors._check_owner(step, ('somewhere',))


def test_statistics_come_from_state_files_alone(tmp_path):
    folder = copy_of('act', tmp_path)

    def add(held):
        for step in held['steps']:
            if step['registry_name'] == 'unnormalizer_processor':
                step['config']['stats'] = {'action': {'mean': [9.0] * 6, 'std': [9.0] * 6}}

    change_json(folder / 'policy_postprocessor.json', add)
    assert "'stats' is not a setting that the step unnormalizer_processor may have" in refused(
        folder
    )


def test_a_policy_that_is_as_it_was_loads(tmp_path):
    assert load(loading(folder_of('smolvla'))).describe().policy_type == 'smolvla'
    assert 'is refused' in refused(with_step('time_limit_processor')(tmp_path, tmp_path))

# SPDX-License-Identifier: Apache-2.0
"""The contract file of a remote policy: each mistake is refused with what is allowed."""

from __future__ import annotations

import os
import re

import pytest
from support.policies.remote_peers import CONTRACTS
import yaml

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyError

URLS = {
    'openpi': 'ws://127.0.0.1:9',
    'http': 'http://127.0.0.1:9',
    'groot': 'tcp://127.0.0.1:9',
    'lerobot_async': 'grpc://127.0.0.1:9',
}
# its text is part of the names of tests, which are the same in each process
GONE = '(missing)'


def refusal(folder, kind: str, changes: dict[str, object], **options: object) -> str:
    """Return the text with which a changed contract file is refused."""
    values = {**yaml.safe_load(CONTRACTS[kind]), 'url': URLS[kind], **changes}
    file = folder / 'contract.yaml'
    file.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not GONE}))
    with pytest.raises(PolicyError) as refused:
        registry.load(kind, LoadOptions(str(file), **options))
    text = str(refused.value)
    assert '\n' not in text
    return text


# further ones of each field are in test/golden/refusals/contract_file.txt
MISTAKES = [
    ({'name': 'a@b'}, 'name must be 1 to 64 characters without @'),
    ({'chunk_steps': 0}, 'chunk_steps must be a whole number from 1'),
    ({'timeout_s': 3}, "unknown field 'timeout_s'; did you mean predict_timeout_s\\?"),
    ({'predict_timeout_s': 0}, 'predict_timeout_s must be seconds above 0'),
    ({'url': 'ftp://host:1'}, "got 'ftp://host:1'"),
    ({'url': 'host:1'}, "got 'host:1'"),
    ({'url': 'x://[::1'}, r"got 'x://\[::1'"),
    ({'api_key_file': 'none.txt'}, 'cannot read api_key_file'),
    ({'api_key_file': '/etc/shadow'}, 'api_key_file must be the name of a file beside'),
    ({'api_key_file': '../other/key.txt'}, 'api_key_file must be the name of a file beside'),
    ({'api_key_file': '.hidden'}, 'api_key_file must be the name of a file beside'),
    ({'tls_key_file': '/etc/key.pem'}, 'tls_key_file must be the name of a file beside'),
    ({'tls_key_file': 'k.pem'}, 'tls_certificate_file and tls_key_file need each other'),
    ({'tls_ca_file': 'ca.pem'}, 'tls_'),
]


OF_MAPPINGS = [
    ({'actions': {'arm': ['a', 'b']}}, 'actions must name each of action_names once'),
    ({'actions': {'arm': ['a', 'd']}}, "actions: arm names 'd'; allowed are a, b, c"),
    ({'state': {'arm': ['z']}}, "state: arm names 'z'; allowed are a, b, c"),
    ({'images': {'front_view': 'side'}}, r"images must name each of the cameras \['front'\] once"),
]


@pytest.mark.parametrize(('changes', 'text'), OF_MAPPINGS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize('kind', ['openpi', 'groot'])
def test_a_mistake_in_the_keys_is_refused(tmp_path, kind, changes, text):
    assert re.search(text, refusal(tmp_path, kind, changes))


@pytest.mark.parametrize(('changes', 'text'), MISTAKES, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize('kind', ['http', 'lerobot_async'])
def test_a_mistake_is_refused_with_what_is_allowed(tmp_path, kind, changes, text):
    assert re.search(text, refusal(tmp_path, kind, changes))


def test_fields_of_one_protocol_are_not_those_of_another(tmp_path):
    assert 'image_layout' in refusal(tmp_path, 'http', {'image_layout': 'chw'})
    text = refusal(tmp_path, 'openpi', {'image_layout': 'xyz'})
    assert "image_layout must be 'hwc' or 'chw'" in text
    assert 'needs task' in refusal(tmp_path, 'groot', {'task': GONE})
    assert "unknown field 'actions'" in refusal(tmp_path, 'lerobot_async', {'actions': {}})
    gone = {'policy_type': GONE}
    assert 'needs policy_type: the server loads' in refusal(tmp_path, 'lerobot_async', gone)


def test_a_key_that_is_given_twice_is_refused(tmp_path):
    file = tmp_path / 'contract.yaml'
    file.write_text('name: a\nname: b\n')
    with pytest.raises(PolicyError, match="duplicate 'name'"):
        registry.load('http', LoadOptions(str(file)))


NO_MAPPINGS = {
    'list': '- a\n',
    'cut off': 'a: [',
    'binary': '\x00',
    'deep': 'a: ' + '[' * 1000,
    'odd key': '? [a]\n: b\n',
}


@pytest.mark.parametrize('content', NO_MAPPINGS.values(), ids=NO_MAPPINGS)
def test_what_is_no_mapping_is_refused(tmp_path, content):
    file = tmp_path / 'contract.yaml'
    file.write_text(content)
    with pytest.raises(PolicyError, match=r'contract\.yaml: (must be a group of|not YAML)'):
        registry.load('http', LoadOptions(str(file)))


def test_a_missing_file_is_named_with_the_form_of_the_path(tmp_path):
    with pytest.raises(PolicyError, match=r'FILE or FILE,url=URL.*No such file'):
        registry.load('http', LoadOptions(f'{tmp_path}/none.yaml'))


def test_options_that_only_torch_knows_are_refused(tmp_path):
    assert "runs only on the device 'cpu'" in refusal(tmp_path, 'http', {}, device='cuda:0')


def test_a_missing_library_is_named(monkeypatch):
    from importlib.metadata import EntryPoint

    def missing() -> object:
        raise ModuleNotFoundError("No module named 'zmq.asyncio'", name='zmq.asyncio')

    entry = EntryPoint('groot', 'x:load', registry.GROUP)
    monkeypatch.setattr(registry, 'entry_points', lambda group: [entry])
    monkeypatch.setattr(EntryPoint, 'load', lambda self: missing())
    with pytest.raises(PolicyError, match='pip install pyzmq'):
        registry.load('groot', LoadOptions())


@pytest.mark.parametrize('path', ['@evil', ':80@evil', '//evil/a', '/act?x', '/a#', 'act'])
@pytest.mark.parametrize('field', ['act_path', 'config_path'])
def test_a_path_cannot_change_the_host(tmp_path, field, path):
    assert f'{field} must be a path that begins with /' in refusal(tmp_path, 'http', {field: path})


@pytest.mark.parametrize(
    'url',
    ['http://a:80@evil:80', 'http://@evil:80', 'http://a:80?', 'http://a:80/#x', 'http://a%:1'],
)
def test_a_url_names_one_host_alone(tmp_path, url):
    assert 'the url' in refusal(tmp_path, 'http', {'url': url})


def test_a_key_that_is_a_link_away_is_refused(tmp_path):
    secret = tmp_path / 'secret.txt'
    secret.write_text('key')
    secret.chmod(0o600)
    folder = tmp_path / 'policy'
    folder.mkdir()
    (folder / 'key.txt').symlink_to(secret)
    text = refusal(folder, 'http', {'api_key_file': 'key.txt'})
    assert 'is a link to' in text
    (folder / 'key.txt').unlink()
    os.mkfifo(folder / 'key.txt')
    assert 'is a device or a pipe' in refusal(folder, 'http', {'api_key_file': 'key.txt'})

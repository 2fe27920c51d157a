# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve versions`: what it prints, its exit statuses, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from support.gateway.certificates import certificate_files
from support.paths import REPOSITORY
from support.tools.completion import completed
from support.versions.version_rig import damage, rewritten_manifest

from lerobot_serve.access.token_file import Tokens, write_private
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.tools.versions import size_text
from lerobot_serve.versions.errors import Interrupted, VersionInUse
from lerobot_serve.versions.layout import VersionLock
from lerobot_serve.versions.store import check, VersionStore
from lerobot_serve.versions.transfer.http_files import HttpSource, ServerAddress
from lerobot_serve.versions.transfer.serving import HttpSettings, StoreHttpServer

REACH = REPOSITORY / 'config' / 'policies' / 'reach'
REACH_V1 = REPOSITORY / 'config' / 'policies' / 'reach_v1'
COMMAND = [sys.executable, '-c', 'from lerobot_serve.tools.cli.main import main; exit(main())']
LIMIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    return tmp_path / 'store'


@pytest.fixture
def run(store, capsys):
    """Run the verb on the store; return its exit status, output and errors."""

    def call(action: str, *words: object, at=None) -> tuple[int, str, str]:
        status = main(['versions', action, *map(str, words), '--store', str(at or store)])
        out, err = capsys.readouterr()
        assert 'Traceback' not in out + err
        return status, out, err

    return call


@pytest.fixture
def ids(run):
    """The ids of two versions: reach_v1, and reach that was trained from it."""
    first = json.loads(run('publish', REACH_V1, '--json')[1])['id']
    second = json.loads(run('publish', REACH, '--parent', first, '--json')[1])['id']
    return first, second


def test_a_version_is_published_once(run, store, tmp_path):
    dataset = tmp_path / 'dataset'
    dataset.mkdir()
    (dataset / 'info.json').write_text('{}')
    words = ('--note', 'better', '--dataset', dataset, '--source', 'http://gpu-1:8320')
    status, out, _ = run('publish', REACH, *words)
    assert status == 0
    assert out.startswith('published as reach@')
    assert f'serve it: lerobot-serve serve {store}/reach@' in out
    assert run('publish', REACH)[1].startswith('there already: reach@')
    status, out, _ = run('show', 'reach')
    assert status == 0
    for text in ('better', 'http://gpu-1:8320', 'model.safetensors', 'pinned    no', '570 kB'):
        assert text in out
    found = json.loads(run('show', 'reach', '--json')[1])
    assert len(found['manifest']['dataset_sha256']) == 64
    (dataset / 'more.json').write_text('{}')
    other = json.loads(run('publish', REACH_V1, '--dataset', dataset, '--json')[1])
    assert other['manifest']['dataset_sha256'] != found['manifest']['dataset_sha256']


def test_versions_are_listed_with_their_states(run, ids, store):
    run('pin', ids[0], '--note', 'the one in production')
    damage_manifest = ids[1]
    rewritten_manifest(VersionStore.open(store), damage_manifest, '"note"', '"not"')
    status, out, _ = run('list')
    assert status == 0
    head, damaged, whole = out.splitlines()
    assert head.split()[:3] == ['VERSION', 'KIND', 'SIZE']
    assert damaged.split()[:2] == [ids[1], 'damaged'] and 'unknown field' in damaged
    assert whole.split()[:4] == [ids[0], 'builtin', '228', 'kB'] and 'pinned' in whole
    found = json.loads(run('list', '--json')[1])['versions']
    assert [(each['id'], each['is_pinned']) for each in found] == [(ids[1], False), (ids[0], True)]
    assert found[1]['pin'] == 'the one in production'
    status, out, _ = run('show', ids[1])
    assert status == 1 and 'damaged' in out


def test_an_empty_store_says_what_comes_next(run, store):
    VersionStore.make(store)
    assert run('list') == (0, f'{store}: no versions; lerobot-serve versions publish FOLDER adds '
                              'one\n', '')  # fmt: skip
    assert run('verify')[1] == 'no versions\n'
    assert json.loads(run('list', '--json')[1]) == {'versions': []}


@pytest.mark.parametrize('action', ['list', 'show x', 'verify', 'compare x y', 'pin x', 'unpin x'])
def test_a_folder_that_is_no_store_is_refused(run, action, tmp_path):
    status, out, err = run(*action.split(), at=tmp_path / 'typo')
    assert (status, out) == (1, '')
    assert 'is not a store of versions; name one with --store' in err
    assert not (tmp_path / 'typo').exists()


def test_every_hash_is_verified_again(run, ids, store):
    assert run('verify')[:2] == (0, f'{ids[0]}: whole\n{ids[1]}: whole\n')
    damage(VersionStore.open(store), ids[1])
    status, out, _ = run('verify')
    assert status == 1
    assert f'{ids[1]}: damaged\n  model.safetensors has another SHA-256' in out
    assert run('verify', ids[0])[0] == 0
    found = json.loads(run('verify', '--json')[1])['versions']
    assert {each['id']: each['is_whole'] for each in found} == {ids[0]: True, ids[1]: False}


def test_two_versions_are_compared(run, ids):
    status, out, _ = run('compare', *ids)
    assert status == 0
    assert f'{ids[0]} is the parent of {ids[1]}' in out
    assert 'model.safetensors  other content (228 kB | 570 kB)' in out
    found = json.loads(run('compare', *ids, '--json')[1])
    assert [each['path'] for each in found['files']] == ['model.safetensors', 'policy.json']


def test_what_is_kept_is_not_deleted(run, ids, store):
    first, second = ids
    status, _, err = run('delete', first, '--yes')
    assert status == 1 and f'is the parent of {second}; add --also-parent' in err
    run('pin', second)
    status, _, err = run('delete', second, '--yes')
    assert status == 1 and f'is pinned; `lerobot-serve versions unpin {second}`' in err
    assert run('unpin', second)[1] == f'{second} is not pinned\n'
    assert run('unpin', second)[1] == f'{second} was not pinned\n'
    lock = VersionLock(store / second)
    status, _, err = run('delete', second, '--yes')
    assert status == 1 and 'a policy server serves it' in err
    lock.release()
    assert run('delete', second, '--yes')[:2] == (0, f'{second} is deleted\n')
    assert run('delete', first, '--also-parent', '--yes')[0] == 0
    assert run('list')[1].endswith('adds one\n')


def test_deleting_is_asked_for_once(run, ids, store, monkeypatch):
    status, _, err = run('delete', ids[1])
    assert status == 2 and 'add --yes. Nothing was changed' in err
    monkeypatch.setattr(sys.stdin, 'isatty', lambda: True, raising=False)
    for answer, expected in (('n\n', 1), ('\n', 1), ('y\n', 0)):
        monkeypatch.setattr(sys.stdin, 'readline', lambda answer=answer: answer, raising=False)
        status, _, err = run('delete', ids[1])
        assert status == expected
        assert f'Delete {ids[1]} of {store}? [y/N]' in err


def test_a_version_is_fetched_from_a_folder(run, ids, store, tmp_path):
    target = tmp_path / 'second'
    status, out, _ = run('fetch', ids[1], '--from', store, at=target)
    assert status == 0
    assert out == (f'{ids[1]} fetched (570 kB)\nserve it: lerobot-serve serve {target}/{ids[1]}\n')
    assert run('fetch', ids[1], '--from', store / ids[1], at=target)[1].startswith(
        f'{ids[1]} is there\n'
    )
    found = json.loads(run('fetch', ids[0], '--from', store, '--json', at=target)[1])
    assert found['is_new'] and found['transferred_bytes'] == found['size_bytes']


def test_a_fetched_version_of_another_policy_is_refused(run, ids, store, tmp_path):
    """Its hashes are right; its id is that of other files."""
    other = f'reach@{"0" * 16}'
    shutil.copytree(store / ids[1], store / other)
    rewritten_manifest(VersionStore.open(store), other, ids[1], other)
    target = tmp_path / 'second'
    status, _, err = run('fetch', other, '--from', store, at=target)
    assert status == 1 and 'is that of another policy' in err
    assert not VersionStore.open(target).ids()
    assert not list(VersionStore.open(target).incoming.iterdir())


@pytest.mark.parametrize(
    ('words', 'status', 'said'),
    [
        (('publish', '/nowhere'), 1, 'is not a directory'),
        (('publish', REACH, '--name', 'a/b'), 1, 'give another --name'),
        (('publish', REACH, '--parent', 'v1'), 1, "'v1' is not in"),
        (('publish', REACH, '--parent', 'v1@0'), 1, "'v1@0' is not in"),
        (('publish', REACH, '--dataset', 'abc'), 1, '--dataset must be a folder or 64'),
        (('publish', REACH, '--note', 'a\nb'), 1, 'note must be one line'),
        (('publish', REACH, '--source', 'gpu-1'), 1, 'sources[0] must be http'),
        (('fetch', 'x', '--from', '/nowhere'), 1, '/nowhere is not a store'),
        (('fetch', 'x', '--from', '/nowhere', '--tls-ca', 'x'), 2, 'not a folder'),
        (('fetch', 'x', '--from', 'http://a b'), 1, 'the address must be'),
        (('fetch', 'x', '--from', 'http://127.0.0.1:1', '--tls-ca', 'x'), 1, 'is not encrypted'),
        (('fetch', 'x', '--from', 'https://127.0.0.1:1', '--tls-ca', '/x'), 1, 'cannot be used'),
        (('pin', 'x', '--note', '\n'), 2, '--note must be one line'),
        (('serve', '--port', '70000'), 2, '--port must be in [0, 65535], got 70000'),
        (('serve', '--address', '0.0.0.0'), 1, 'give --token-file FILE'),
        (('serve', '--tls-key', 'x'), 1, 'belong together'),
    ],
    ids=lambda value: ' '.join(map(str, value[:3])) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_said(run, store, words, status, said):
    VersionStore.make(store)
    found, out, err = run(*words)
    assert (found, out) == (status, '')
    assert said in err
    assert err.startswith('lerobot-serve versions: ') or 'warning: ' in err
    assert not VersionStore.open(store).ids()


def test_a_token_comes_from_a_private_file(run, ids, store, tmp_path):
    token = 't' * 32
    server = StoreHttpServer(
        VersionStore.open(store), HttpSettings(tokens=Tokens({'gpu_2': token}))
    )
    target, file = tmp_path / 'second', tmp_path / 'tokens'
    write_private(file, f'gpu_2 {token}\n'.encode())
    fetch = ('fetch', ids[0], '--from', server.url)
    try:
        status, _, err = run(*fetch, at=target)
        assert status == 1 and 'give --token-file FILE' in err
        file.chmod(0o644)
        status, _, err = run(*fetch, '--token-file', file, at=target)
        assert status == 1 and 'others may read it' in err
        file.chmod(0o600)
        status, out, err = run(*fetch, '--token-file', file, at=target)
        assert status == 0 and token not in out + err
    finally:
        server.close()


def test_a_store_is_served_until_a_signal(run, ids, store, tmp_path):
    command = [*COMMAND, 'versions', 'serve', '--port', '0', '--store', str(store)]
    with subprocess.Popen(end_with_parent(command), stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith(f'{store}: 2 versions at http://127.0.0.1:')
            url = line.split()[-1]
            assert run('fetch', ids[0], '--from', url, at=tmp_path / 'second')[0] == 0
            process.terminate()
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
        assert f'127.0.0.1 GET /{ids[0]}/version.json 200' in process.stdout.read()


def test_a_store_is_served_encrypted_with_a_token_to_who_knows_its_authority(
    run, ids, store, tmp_path
):
    authority, certificate, key = certificate_files(tmp_path)
    other = tmp_path / 'other'
    other.mkdir()
    other_authority, *_ = certificate_files(other)
    tokens, token, wrong = (tmp_path / name for name in ('tokens', 'token', 'wrong'))
    write_private(tokens, f'gpu_2 {"t" * 32}\n'.encode())
    write_private(token, f'gpu_2 {"t" * 32}\n'.encode())
    write_private(wrong, f'gpu_2 {"w" * 32}\n'.encode())
    command = [*COMMAND, 'versions', 'serve', '--port', '0', '--store', str(store)]
    command += ['--tls-certificate', certificate, '--tls-key', key, '--token-file', str(tokens)]
    with subprocess.Popen(end_with_parent(command), stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[-1]
            assert url.startswith('https://127.0.0.1:')

            def fetch(name: str, *words: object, at: str = url) -> tuple[int, str, str]:
                return run('fetch', ids[1], '--from', at, *words, at=tmp_path / name)

            known = ('--tls-ca', authority)
            status, _, err = fetch('a', '--token-file', token)
            assert status == 1 and 'its certificate is not trusted' in err
            status, _, err = fetch('b', '--token-file', token, '--tls-ca', other_authority)
            assert status == 1 and 'its certificate is not trusted' in err
            status, _, err = fetch('c', *known)
            assert status == 1 and 'give --token-file FILE' in err
            status, _, err = fetch('d', *known, '--token-file', wrong)
            assert status == 1 and 'does not know the token of --token-file' in err
            # an encrypted port is not spoken to without encryption
            with pytest.raises(Interrupted, match='give https://'):
                HttpSource(ServerAddress(url.replace('https', 'http'), 't' * 32)).ids()
            status, out, err = fetch('f', *known, '--token-file', token)
            assert status == 0, err
            assert f'{ids[1]} fetched' in out
        finally:
            process.kill()
    assert check(tmp_path / 'f' / ids[1]).id == ids[1]
    # nothing of a version is left where none was given
    assert not [path for name in 'abcd' for path in (tmp_path / name).glob('*@*')]


def test_neither_torch_nor_ros_is_imported(store):
    code = (
        'import sys; from lerobot_serve.tools.cli.main import main; '
        'status = main(sys.argv[1:]); '
        "print(status, sorted({'torch', 'lerobot', 'rclpy'} & {*sys.modules}))"
    )
    command = [
        sys.executable,
        '-c',
        code,
        'versions',
        'publish',
        str(REACH),
        '--store',
        str(store),
    ]
    done = subprocess.run(command, timeout=LIMIT_S, capture_output=True, text=True, check=True)
    assert done.stdout.endswith('0 []\n')


def test_actions_and_versions_are_completed(run, ids, store, tmp_path):
    found = completed('lerobot-serve versions ', tmp_path)
    assert {'list', 'publish', 'fetch', 'serve', 'delete'} <= set(found)
    line = f'lerobot-serve versions show --store {store} rea'
    assert {word.replace('\\', '') for word in completed(line, tmp_path)} == set(ids)


@pytest.mark.parametrize(
    ('size', 'text'),
    [(0, '0 B'), (999, '999 B'), (1500, '1.5 kB'), (999_600, '1 MB'), (7.2e9, '7.2 GB')],
)
def test_a_size_is_readable(size, text):
    assert size_text(size) == text


def test_in_use_is_an_error_of_the_user():
    assert VersionInUse('x').exit_status == 1

# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve keys`: folders that only their owner reads, access files, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
import errno
import json
import os
from pathlib import Path
import subprocess
import sys

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
import pytest
from support.refusals import answer, refusals

from lerobot_serve.access import token_file
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.keys import site as site_module
from lerobot_serve.tools.keys.site import opened_site


@pytest.fixture
def folder(tmp_path):
    return tmp_path / 'keys'


@pytest.fixture
def run(folder, capsys):
    """Run the verb; return its exit status, output and errors."""

    def call(*words: str) -> tuple[int, str, str]:
        status = main(['keys', *words, '--folder', str(folder)])
        out, err = capsys.readouterr()
        assert 'PRIVATE' not in out + err
        return status, out, err

    return call


@pytest.fixture
def site(run, folder):
    assert run('init', '--site', 'lab')[0] == 0
    return folder


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / 'certificate.pem').read_bytes())


def subjects(folder: Path) -> set[str]:
    return {each['id'] for each in json.loads((folder / 'access.json').read_text())['subjects']}


def purposes(folder: Path) -> list[x509.ObjectIdentifier]:
    return list(
        certificate(folder).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    )


def test_one_call_makes_the_keys_of_a_fleet(run, site):
    run('router', '/policy_router', '--host', 'localhost')
    names = [f'robot_{number}' for number in range(1, 6)]
    status, out, _ = run('robot', *names)
    assert status == 0
    for name in names:
        assert (site / f'robot.{name}' / 'key.pem').stat().st_mode & 0o777 == 0o600
        assert f'robot.{name}: key of robot {name}' in out
    assert subjects(site / 'router.policy_router') == {f'robot.{name}' for name in names}
    # the router's folder is named once
    assert out.count('router.policy_router') == 1


def test_each_key_says_who_it_is_and_what_for(run, site):
    run('robot', 'robot_1')
    run('server', '/a/policy_server', '--host', '10.0.0.5', 'gpu.lab')
    robot, server = site / 'robot.robot_1', site / 'server.a.policy_server'
    assert certificate(robot).subject.rfc4514_string() == 'CN=robot.robot_1'
    assert purposes(robot) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert ExtendedKeyUsageOID.SERVER_AUTH in purposes(server)
    names = certificate(server).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert [str(name.value) for name in names.value] == ['10.0.0.5', 'gpu.lab']
    assert not (robot / 'access.json').exists()


def test_only_the_owner_reads_whatever_the_mask(run, folder):
    before = os.umask(0)
    try:
        run('init')
        run('robot', 'robot_1')
        run('router', '/policy_router', '--host', 'localhost')
    finally:
        os.umask(before)
    paths = [folder, *folder.rglob('*')]
    assert len(paths) > 10
    for path in paths:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_file_is_private_before_it_has_content(tmp_path, monkeypatch):
    modes = []
    write = os.fdopen

    def spy(handle: int, mode: str):
        modes.append(os.fstat(handle).st_mode & 0o777)
        return write(handle, mode)

    before = os.umask(0)
    monkeypatch.setattr(token_file.os, 'fdopen', spy)
    try:
        token_file.write_private(tmp_path / 'key.pem', b'secret')
    finally:
        os.umask(before)
    assert modes == [0o600]


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        (('init',), 'nothing is overwritten'),
        (('robot', 'robot_1'), 'nothing is overwritten'),
        (('robot', '../x'), 'allowed are at most 64 letters'),
        (('robot', 'Lab 3/arm #2'), 'such as Lab_3_arm_2-'),
        (('robot', 'x' * 60), 'give a shorter name'),
        (('server', '/a b'), 'full name of its node'),
        (('server', '/s'), 'needs --host'),
        (('server', '/s', '--host', 'tls/x:1'), 'without protocol and port'),
        (('robot', 'r', '--days', '0'), '--days must be in'),
        (('robot', 'r', '--days', '20000'), 'ends after the authority'),
        (('robot', 'r', 'robot_1'), 'nothing is overwritten'),
        (('robot', 'r', 'r'), "'r' is given twice"),
        (('robot', 'r', 'a b'), 'is not a name of a key'),
        (('revoke', 'nobody'), 'is not a key of this site; give one of robot.robot_1'),
        (('rotate', 'twice'), 'is the name of several keys'),
    ],
)
def test_what_is_refused_changes_nothing(run, site, words, reason):
    run('robot', 'robot_1')
    run('robot', 'twice')
    run('operator', 'twice')
    before = {path: path.read_bytes() for path in site.rglob('*') if path.is_file()}
    status, _, said = run(*words)
    assert status == (2 if reason == '--days must be in' else 1)
    assert reason in said
    assert said.count('\n') == 1
    assert {path: path.read_bytes() for path in site.rglob('*') if path.is_file()} == before


def test_a_folder_without_a_site_is_named(run, folder):
    assert 'keys init' in run('robot', 'robot_1')[2]
    assert not folder.exists()


def test_a_revoked_key_leaves_all_access_files_and_its_name_gets_another(run, site):
    run('router', '/policy_router', '--host', 'localhost')
    run('server', '/policy_server', '--host', 'localhost')
    run('robot', 'robot_1')
    router, server = site / 'router.policy_router', site / 'server.policy_server'
    assert subjects(router) == {'robot.robot_1', 'server.policy_server'}
    assert subjects(server) == {'router.policy_router'}
    _, out, _ = run('revoke', 'robot_1')
    assert str(router) in out
    assert str(server) not in out
    assert 'restart' in out
    assert subjects(router) == {'server.policy_server'}
    run('robot', 'robot_1')
    assert subjects(router) == {'robot.robot_1~2', 'server.policy_server'}
    assert certificate(site / 'robot.robot_1').subject.rfc4514_string() == 'CN=robot.robot_1~2'


def test_a_revocation_that_was_interrupted_is_run_again(run, site, monkeypatch):
    """The list is written first: what is listed as revoked must not stay admitted."""
    for name in ('one', 'two'):
        run('router', f'/{name}/policy_router', '--host', 'localhost')
    run('robot', 'robot_1')
    routers = [site / f'router.{name}.policy_router' for name in ('one', 'two')]
    write = site_module.write_private

    def full_disk(path: Path, content: bytes) -> None:
        if path.parent == routers[0] and path.name == 'access.json':
            raise OSError(errno.ENOSPC, 'No space left on device')
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(site_module, 'write_private', full_disk)
        status, _, said = run('revoke', 'robot_1')
    assert status == 1
    assert f'{routers[0]}/access.json: No space left on device' in said
    # the second folder is written, and must be copied
    assert 'run `lerobot-serve keys revoke` again' in said
    assert f'Written: {routers[1].name};' in said
    assert [subjects(each) for each in routers] == [{'robot.robot_1'}, set()]
    assert 'revoked' in run('list')[1]
    status, out, _ = run('revoke', 'robot_1')
    assert status == 0 and str(routers[0]) in out
    assert subjects(routers[0]) == set()


def test_a_revoked_name_leaves_the_key_of_its_successor_alone(run, site):
    for _ in range(2):
        run('robot', 'robot_1')
        run('revoke', 'robot_1')
    run('robot', 'robot_1')
    status, out, _ = run('revoke', 'robot.robot_1~2')
    assert status == 0 and 'robot.robot_1~2 is revoked' in out
    assert certificate(site / 'robot.robot_1').subject.rfc4514_string() == 'CN=robot.robot_1~3'


def test_a_server_made_with_direct_knows_robots(run, site):
    run('server', '/policy_server', '--host', 'localhost', '--direct')
    run('robot', 'robot_1')
    assert subjects(site / 'server.policy_server') == {'robot.robot_1'}


def test_rotate_makes_a_new_key_and_changes_no_access_file(run, site):
    run('router', '/policy_router', '--host', 'localhost')
    run('robot', 'robot_1')
    robot, access = site / 'robot.robot_1', site / 'router.policy_router' / 'access.json'
    before = certificate(robot), (robot / 'key.pem').read_bytes(), access.read_bytes()
    _, out, _ = run('rotate', 'robot_1', '--days', '20')
    assert certificate(robot).subject == before[0].subject
    assert certificate(robot).serial_number != before[0].serial_number
    assert (robot / 'key.pem').read_bytes() != before[1]
    assert access.read_bytes() == before[2]
    assert 'copy these folders again' not in out


def test_list_shows_state_and_expiry(run, site):
    run('robot', 'old', '--days', '20')
    run('robot', 'gone')
    run('revoke', 'gone')
    run('robot', 'good')
    found = json.loads(run('list', '--json')[1])
    assert found['site'] == 'lab'
    assert {each['name']: each['state'] for each in found['keys']} == {
        'old': 'expires soon',
        'gone': 'revoked',
        'good': 'valid',
    }
    day = (datetime.now(timezone.utc) + timedelta(days=20)).date().isoformat()
    assert day in run('list')[1] or day in found['keys'][0]['expires']


LISTED = {
    'site': 'lab',
    'keys': [
        {
            'expires': '2031-01-01T00:00:00+00:00',
            'hosts': ['10.0.0.5'],
            'direct': True,
            'is_revoked': True,
            'role': 'server',
            'name': 'a.policy_server',
            'generation': 2,
        }
    ],
}


NO_LISTS = (
    *('', '[]', '{"site": "lab", "site": "lab", "keys": []}'),
    json.dumps(LISTED).replace('a.policy_server', 'a/../../home'),
    json.dumps(LISTED).replace('+00:00', ''),
)


@pytest.mark.golden
def test_a_damaged_list_is_refused_with_its_place(site, golden):
    def read(text: str) -> None:
        (site / 'site.json').write_text(text)
        with opened_site(site):
            pass

    found = [*refusals(LISTED, json.dumps, read), *(f'{answer(read, t)}\n' for t in NO_LISTS)]
    wrong = [each for each in found if not each.endswith(': accepted\n')]
    assert all('restore it from a backup' in each or 'zenoh_site' in each for each in wrong)
    golden.holds('keys_list.txt', ''.join(found).replace(f'{site}/', ''))


def test_the_list_of_an_earlier_release_is_read_and_written_as_it_was(run, site):
    file = site / 'site.json'
    text = json.dumps(LISTED, indent=1)
    file.write_text(text)
    assert 'server.a.policy_server~2  revoked  2031-01-01  10.0.0.5 (direct)' in run('list')[1]
    assert run('revoke', 'server.a.policy_server')[0] == 0
    assert file.read_text() == text


def test_an_authority_that_others_read_signs_nothing(run, site):
    (site / 'authority' / 'key.pem').chmod(0o644)
    assert 'chmod 600' in run('robot', 'robot_1')[2]
    assert not (site / 'robot.robot_1').exists()


def test_a_missing_library_is_one_line_with_the_remedy(tmp_path):
    code = (
        'import sys; sys.modules["cryptography"] = None\n'
        'from lerobot_serve.tools.cli.main import main\n'
        f'sys.exit(main(["keys", "init", "--folder", {str(tmp_path / "keys")!r}]))'
    )
    ended = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert 'python3 -m pip install cryptography==' in ended.stderr
    assert 'Traceback' not in ended.stderr

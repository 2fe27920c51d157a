# SPDX-License-Identifier: Apache-2.0
"""One module starts the processes of this package, and none of them runs what lies around it."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
import subprocess
import sys

import pytest
from support.paths import REPOSITORY
from support.processes import trap_folder

from lerobot_serve import child_process
from lerobot_serve.child_process import Limits

PACKAGE = REPOSITORY / 'lerobot_serve'
# a program of its own, started with -I: it imports no other module of the package
OWN_PROGRAMS = {'learner/trainers/guard.py'}
FORBIDDEN = {
    *('subprocess', 'multiprocessing', 'pty', 'runpy'),
    *('sys.executable', 'sys.orig_argv', 'os.system', 'os.popen', 'os.fork', 'os.forkpty'),
    *('os.posix_spawn', 'os.posix_spawnp', 'concurrent.futures.ProcessPoolExecutor'),
    *('asyncio.create_subprocess_exec', 'asyncio.create_subprocess_shell'),
    *(f'os.{kind}{form}' for kind in ('exec', 'spawn') for form in ('l', 'le', 'lp', 'lpe')),
    *(f'os.{kind}{form}' for kind in ('exec', 'spawn') for form in ('v', 've', 'vp', 'vpe')),
}
# each is what a user of this package does in a folder from elsewhere; what they raise is not asked
CHILDREN = """
import os, sys, pathlib, contextlib
from lerobot_serve import child_process
folder = pathlib.Path.cwd()
for name in child_process.PATH_VARIABLES[1:3]:
    os.environ[name] = sys.argv[1].format(os.environ.get(name, '/nowhere'))
def attempt(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return error
from lerobot_serve.policies.runtime.trial import try_in_child
given = {'data_bytes': 0, 'limit_s': 60.0}
assert try_in_child('json', 'loads', None, b'', **given).startswith('TypeError')
from lerobot_serve.policies.lerobot.hub import local_folder
print(attempt(local_folder, 'user/repository'))
from lerobot_serve.learner.trainers.contract import read_contract
print(attempt(read_contract, folder, folder, lambda: None))
from lerobot_serve.tools.processes import verb_command
with child_process.start(verb_command(['--version'])) as process:
    process.wait(60)
child_process.replace_process(sys.executable, child_process.python('-c', 'import json, numpy'))
"""


def names_in(file: Path) -> set[str]:
    """Return what a file imports or reads as an attribute of a module, in full."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f'{node.module}.{alias.name}' for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f'{node.value.id}.{node.attr}')
    return found


def test_no_other_module_starts_a_process():
    wrong = {
        f'{file.relative_to(PACKAGE)}: {name}'
        for file in PACKAGE.rglob('*.py')
        if str(file.relative_to(PACKAGE)) not in {'child_process.py', *OWN_PROGRAMS}
        for name in names_in(file) & FORBIDDEN
    }
    assert not wrong


def test_the_list_finds_what_it_forbids(tmp_path):
    file = tmp_path / 'module.py'
    for text in ('import subprocess', 'from subprocess import run', 'import os; os.execv(a, b)'):
        file.write_text(text)
        assert names_in(file) & FORBIDDEN
    file.write_text('import sys\nstart([sys.executable])')
    assert names_in(file) & FORBIDDEN


def test_children_run_no_module_of_the_folder_they_are_started_in(tmp_path):
    folder, log = tmp_path / 'policy', tmp_path / 'sprung'
    folder.mkdir()
    trap_folder.fill(folder, log)
    done = subprocess.run(
        # an empty entry, as `export PYTHONPATH=$PYTHONPATH:/x` leaves it, and a relative one
        [sys.executable, '-P', '-c', CHILDREN, ':{}:.'],
        cwd=folder,
        env={**os.environ, 'HF_HUB_OFFLINE': '1', 'ROS_HOME': str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert 'PolicyError' not in done.stdout, done.stdout
    assert trap_folder.sprung(log) == []
    # the traps work
    subprocess.run([sys.executable, '-c', 'import resource'], cwd=folder, capture_output=True)
    assert trap_folder.sprung(log) == ['resource']


def report(words: str, limits: Limits | None = None, **given: object) -> object:
    done = child_process.run_reader(
        ['-c', f'import json, os, resource, sys; print(json.dumps({words}))'],
        limits or Limits(30.0),
        **given,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.returncode


def test_a_reader_gets_no_token_and_an_empty_folder(monkeypatch):
    for name in ('HF_TOKEN', 'PGPASSWORD', 'AWS_SECRET_ACCESS_KEY', 'ROS_DOMAIN_ID', 'GPG_KEY'):
        monkeypatch.setenv(name, 'secret')
    monkeypatch.setenv('HF_HOME', '/cache')
    assert 'secret' not in report('dict(os.environ)').values()
    assert report('os.environ["HF_HOME"]') == '/cache'
    folder, content = report('[os.getcwd(), os.listdir()]')
    assert content == []
    assert not os.path.exists(folder)


def test_a_download_gets_the_token_of_the_hub_alone(monkeypatch):
    for name in ('HF_TOKEN', 'HTTPS_PROXY', 'PGPASSWORD', 'WANDB_API_KEY'):
        monkeypatch.setenv(name, name)
    from lerobot_serve.policies.lerobot import hub

    found = hub._hub_environment()
    assert {'HF_TOKEN', 'HTTPS_PROXY'} <= found.keys()
    assert not {'PGPASSWORD', 'WANDB_API_KEY'} & found.keys()


def test_a_reader_is_limited_before_it_reads():
    limits = Limits(30.0, memory_bytes=1 << 30, cpu_s=20, open_files=50)
    names = ('DATA', 'CPU', 'NOFILE', 'CORE')
    words = f'[resource.getrlimit(getattr(resource, "RLIMIT_" + n))[1] for n in {names}]'
    found = report(f'(sys.stdin.read(), {words})[1]', limits, data=b'x')
    assert found == [1 << 30, 20, 50, 0]
    assert report('len(bytearray(1 << 31))', limits) != 1 << 31


def test_a_reader_that_does_not_end_is_killed():
    with pytest.raises(child_process.TimeoutExpired):
        report('list(iter(int, 1))', Limits(1.0))


def test_a_variable_of_empty_entries_alone_is_left_out():
    given = {'PYTHONPATH': ':', 'LD_LIBRARY_PATH': '.:lib', 'PATH': '/bin::bin', 'A': ':'}
    assert child_process.safe_environment(given) == {'PATH': '/bin', 'A': ':'}

# SPDX-License-Identifier: Apache-2.0
"""Where a view goes: files, viewers that run, and what is said where there is none."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
import socket
import subprocess
import sys
import time

import pytest
import rerun as rr
from support.network.ports import free_port
from support.tools.bag_rig import write
from support.tools.rerun_rig import ROBOT, Scene
from support.tools.rrd_file import RrdFile

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.tools.rerun_view import destinations
from lerobot_serve.tools.rerun_view.entries import Entry, Scalar, Times, ViewLayout

LIMIT_S = 60.0
ROOM = 'lerobot_serve.tools.rerun_view'
RECORDING = rr.RecordingStream('test')


@pytest.fixture
def bag(tmp_path) -> Path:
    scene = Scene()
    scene.session()
    for number in range(20):
        scene.execute([float(number), 1.0])
    return write(tmp_path / 'bag', scene.messages)


@contextmanager
def viewer(file: Path):
    """Run Rerun without a window: it receives as a viewer does and writes a file."""
    port = free_port()
    # the program itself: what is on the PATH is its parent
    found = find_spec('rerun_cli')
    assert found and found.origin
    program = str(Path(found.origin).with_name('rerun'))
    command = [program, '--bind', '127.0.0.1', '--port', str(port), '--save', str(file)]
    with open(file.with_suffix('.log'), 'w') as log:
        process = subprocess.Popen(end_with_parent(command), stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while not _answers(port):
            assert time.monotonic() < deadline_s, file.with_suffix('.log').read_text()
            assert process.poll() is None, file.with_suffix('.log').read_text()
            time.sleep(0.05)
        yield f'rerun+http://127.0.0.1:{port}/proxy', process
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(('127.0.0.1', port), 1.0).close()
    except OSError:
        return False
    return True


def test_a_viewer_that_runs_gets_the_bag(bag, tmp_path, capsys):
    received = tmp_path / 'received.rrd'
    with viewer(received) as (url, _):
        assert main(['rerun', str(bag), '--viewer', url]) == 0
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            try:
                found = RrdFile(received)
                if found.values('robots', ROBOT, 'joints', 'gripper.pos', 'wanted') == [1.0] * 20:
                    break
            except (ValueError, RuntimeError, OSError):
                # not written yet
                pass
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
    assert f'{url}: 21 of 21 messages shown' in capsys.readouterr().out


def test_a_viewer_that_ends_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(destinations, 'CHECK_S', 0.05)
    with viewer(tmp_path / 'received.rrd') as (url, process):
        sink = destinations.open_sink('x', save=None, viewer=url, window_s=0.0, is_live=True)
        layout = ViewLayout()
        path = ('robots', 'a', 'queue', 'x')
        layout.add(path)
        sink.show([Entry(path, Scalar(1.0), Times(1))], layout)
        sink.flush(layout)
        process.kill()
        process.wait(LIMIT_S)
        with pytest.raises(OSError, match=r'the viewer is gone|Rerun stopped'):
            for number in range(1000):
                sink.show([Entry(path, Scalar(1.0), Times(number))], layout)
                sink.flush(layout)
                time.sleep(0.02)
        sink.abort()


def test_no_viewer_is_one_sentence(bag, capsys):
    url = f'rerun+http://127.0.0.1:{free_port()}/proxy'
    assert main(['rerun', str(bag), '--viewer', url]) == 1
    told = capsys.readouterr().err
    assert f'no viewer answers at {url} (Connection refused); start one there: rerun' in told
    assert told.count('\n') == 1


@pytest.mark.parametrize(
    'url',
    [
        *('127.0.0.1:9876', 'http://127.0.0.1:9876', 'rerun+http://127.0.0.1:9876', ''),
        *('rerun+http://127.0.0.1:0/proxy', 'rerun+http://127.0.0.1:99999/proxy'),
        *('rerun+http://a b:1/proxy', 'rerun+http://[::1:1/proxy', 'tcp/127.0.0.1:7447'),
    ],
)
def test_what_is_no_address_is_refused_with_one(url):
    with pytest.raises(UserError, match='is not an address of a viewer; give one such as rerun'):
        destinations.viewer_address(url)


@pytest.mark.parametrize(
    ('url', 'address'),
    [
        (destinations.DEFAULT_URL, ('127.0.0.1', 9876)),
        ('rerun://gpu.lab:1/proxy', ('gpu.lab', 1)),
        ('rerun+https://[::1]:65535/proxy', ('::1', 65535)),
    ],
)
def test_addresses(url, address):
    assert destinations.viewer_address(url) == address


def test_without_a_display_the_remedy_is_said(monkeypatch):
    monkeypatch.setattr(destinations, 'DEFAULT_URL', f'rerun+http://127.0.0.1:{free_port()}/proxy')
    with pytest.raises(UserError, match=r'has no display; write a file with --save FILE.rrd'):
        destinations.local_viewer(RECORDING, {'PATH': '/usr/bin'})
    monkeypatch.setenv('PATH', '/nowhere')
    with pytest.raises(UserError, match='`rerun` is not on the PATH; write a file with --save'):
        destinations.local_viewer(RECORDING, {'DISPLAY': ':0'})


def test_the_viewer_of_this_machine_is_found(monkeypatch):
    with socket.create_server(('127.0.0.1', 0)) as server:
        url = f'rerun+http://127.0.0.1:{server.getsockname()[1]}/proxy'
        monkeypatch.setattr(destinations, 'DEFAULT_URL', url)
        assert destinations.local_viewer(RECORDING, {}) == url


@pytest.mark.parametrize(
    ('name', 'said'),
    [
        ('view.mcap', 'the name must end with .rrd'),
        ('missing/view.rrd', 'cannot be created: No such file'),
        ('old.rrd', 'exists already; name a new file'),
        ('folder.rrd', 'exists already; name a new file'),
    ],
)
def test_a_file_that_cannot_be_made_is_one_sentence(bag, tmp_path, capsys, name, said):
    (tmp_path / 'old.rrd').write_text('kept')
    (tmp_path / 'folder.rrd').mkdir()
    assert main(['rerun', str(bag), '--save', str(tmp_path / name)]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert told.count('\n') == 1
    assert (tmp_path / 'old.rrd').read_text() == 'kept'
    assert (tmp_path / 'folder.rrd').is_dir()


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (['bag', '--connect', 'tcp/127.0.0.1:1'], 'are of a live view; leave BAG out'),
        (['bag', '--site', 'lab'], 'are of a live view; leave BAG out'),
        (['--keys', 'keys'], '--keys and --site are of --connect'),
        (['--connect', 'rerun+http://h:1/proxy'], 'give a viewer as --viewer rerun+http://h:1'),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, options, said):
    assert main(['rerun', *options]) == 1
    assert said in capsys.readouterr().err


def test_a_file_and_a_viewer_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        main(['rerun', 'bag', '--save', 'x.rrd', '--viewer', destinations.DEFAULT_URL])
    assert 'not allowed with' in capsys.readouterr().err


def test_without_the_package_its_requirement_is_said(bag, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'rerun', None)
    for name in ('destinations', 'rerun_sink', 'blueprint'):
        monkeypatch.delitem(sys.modules, f'{ROOM}.{name}', raising=False)
    assert main(['rerun', str(bag), '--save', str(tmp_path / 'view.rrd')]) == 1
    told = capsys.readouterr().err
    assert told == (
        'lerobot-serve: the Python package rerun is missing; '
        'python3 -m pip install rerun-sdk==0.41.0\n'
    )
    assert not (tmp_path / 'view.rrd').exists()


def test_help_and_a_wrong_command_line_import_nothing_slow():
    code = (
        'import sys; from lerobot_serve.tools.cli.main import main\n'
        'try: main(["rerun", "--help"])\n'
        'except SystemExit: pass\n'
        'assert main(["rerun", "bag", "--site", "lab"]) == 1\n'
        'assert not {"rerun", "rclpy", "numpy", "pyarrow"} & set(sys.modules), sys.modules.keys()'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

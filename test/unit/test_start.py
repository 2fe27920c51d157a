"""A package that is missing at start is one line with its remedy, and status 1."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lerobot_serve.start import FROM_ROS, remedy, REQUIREMENTS

STARTED = "from lerobot_serve.start import start as run; arguments = 'lerobot_serve.{}'"
COMMAND = "from lerobot_serve.cli.main import main as run; arguments = ['{}']"
SOURCE = 'rclpy is not found; source the setup.bash of ROS 2 and of this workspace'


def without(package: str, code: str) -> subprocess.CompletedProcess:
    """Run a start in a Python in which a package cannot be imported."""
    code = f'import sys; sys.modules[{package!r}] = None; {code}; sys.exit(run(arguments))'
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ('package', 'code', 'said'),
    [
        (
            'simplejpeg',
            STARTED.format('wire.images'),
            'error: the Python package simplejpeg is missing; '
            f'python3 -m pip install {REQUIREMENTS["simplejpeg"]}',
        ),
        ('rclpy', STARTED.format('sim.node'), f'error: {SOURCE}'),
        ('rclpy', COMMAND.format('bench'), f'lerobot-serve: {SOURCE}'),
    ],
)
def test_a_missing_package_is_one_line_and_status_1(package, code, said):
    result = without(package, code)
    assert (result.returncode, result.stderr, result.stdout) == (1, f'{said}\n', '')


def test_help_needs_no_ros():
    result = without('rclpy', COMMAND.format('--help'))
    assert (result.returncode, result.stderr) == (0, '')
    assert 'doctor' in result.stdout


def test_a_missing_module_of_our_own_is_a_fault_and_not_explained_away():
    result = without('nothing', STARTED.format('nothing'))
    assert result.returncode == 1
    assert "ModuleNotFoundError: No module named 'lerobot_serve.nothing'" in result.stderr


def test_an_unknown_package_is_named():
    error = ModuleNotFoundError("No module named 'what.ever'", name='what.ever')
    assert remedy(error) == 'the Python package what is missing; install it'


def test_the_messages_of_this_workspace_come_from_its_setup_bash():
    error = ModuleNotFoundError(name='lerobot_serve_interfaces.msg')
    assert remedy(error).startswith('lerobot_serve_interfaces is not found; source the setup')
    assert remedy(ModuleNotFoundError(name='cv2')).endswith(REQUIREMENTS['cv2'])


def test_the_versions_are_those_of_the_requirements(repository):
    lines = (repository / 'requirements.txt').read_text().splitlines()
    pins = {line.partition(' ')[0] for line in lines}
    assert set(REQUIREMENTS.values()) <= pins
    assert not set(REQUIREMENTS) & set(FROM_ROS)


# asleep with the lock of the interpreter held
HANG = 'import ctypes; ctypes.PyDLL(None).sleep(60)'


def test_a_process_that_hangs_at_its_end_is_ended_and_says_where():
    code = f'from lerobot_serve.start import ends_within; ends_within(0.2); {HANG}'
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 1
    assert result.stderr.startswith('Timeout (0:00:00.200000)!')
    assert 'File "<string>", line 1 in <module>' in result.stderr


def test_the_end_of_an_executable_has_that_bound():
    code = (
        'import atexit, ctypes, sys, types; from lerobot_serve import start; start.END_S = 0.2; '
        'atexit.register(ctypes.PyDLL(None).sleep, 60); '
        "sys.modules['done'] = types.SimpleNamespace(main=lambda: 0); "
        "sys.exit(start.start('done'))"
    )
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=30
    )
    assert (result.returncode, 'Timeout' in result.stderr) == (1, True)

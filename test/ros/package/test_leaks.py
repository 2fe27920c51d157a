# SPDX-License-Identifier: Apache-2.0
"""The fixture that looks for leftovers, tried on tests that leave something."""

from __future__ import annotations

import pytest

LEAVES_THREAD = """
import threading
def test_it():
    threading.Thread(target=threading.Event().wait, args=(20,), daemon=True, name='left').start()
"""
LEAVES_PROCESS = """
import subprocess
def test_it():
    global kept
    kept = subprocess.Popen(['sleep', '20'])
def teardown_module():
    kept.kill(); kept.wait()
"""
LEAVES_CONTEXT = """
import rclpy
def test_it():
    global kept
    kept = rclpy.Context()
    kept.init()
def teardown_module():
    kept.shutdown()
"""
CLEAN = """
import threading
def test_it():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
"""


@pytest.fixture
def inner(pytester, repository):
    """A test session with our conftest and a short grace."""
    pytester.mkpydir('support')
    tests = repository / 'test'
    for path in [tests / 'conftest.py', *tests.glob('support/*.py')]:
        text = path.read_text().replace('GRACE_S = 5.0', 'GRACE_S = 0.2')
        pytester.path.joinpath(path.relative_to(tests)).write_text(text)

    def run(source: str):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess('-p', 'no:cacheprovider')

    return run


@pytest.mark.parametrize(
    ('source', 'left'),
    [
        (LEAVES_THREAD, 'thread left'),
        (LEAVES_PROCESS, 'sleep 20'),
        (LEAVES_CONTEXT, 'an open ROS context'),
    ],
)
def test_a_leftover_fails_the_test(inner, source, left):
    result = inner(source)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f'*left behind*{left}*'])


def test_a_clean_test_passes(inner):
    inner(CLEAN).assert_outcomes(passed=1)

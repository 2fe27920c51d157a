# SPDX-License-Identifier: Apache-2.0
"""
What every test gets: a ROS domain of its own, a limit of time, and a look at what it left behind.
"""

from __future__ import annotations

import faulthandler
import gc
import os
from pathlib import Path
import shutil
import signal
import tempfile
from typing import TextIO

from hypothesis import settings
import pytest
from support import leaks
from support.golden import Golden, OPTION

from lerobot_serve.edge.decisions import Decision
from lerobot_serve.ros.process import private_domain
from lerobot_serve.shared_memory import segments as shared_memory

pytest_plugins = ['pytester']

TEST_LIMIT_S = float(os.environ.get('TEST_LIMIT_S', '300'))
# multiples of it, less their whole part, lie apart from each other however many there are
GOLDEN_RATIO = (5**0.5 - 1) / 2
STDERR = pytest.StashKey[TextIO]()

# a busy machine is slow, not wrong
settings.register_profile('here', deadline=None, derandomize=True, max_examples=50)
settings.load_profile('here')

# a shell ignores SIGINT in what it starts in the background, and processes inherit that: a test
# that interrupts one would wait for ever
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# a run that was killed leaves 9 MB for each of its processes
shared_memory.remove_dead_segments()
# torch computes the small policies of the tests in one thread, here and in every process: with
# more, most of the CPU goes to threads that spin until the next step
os.environ.setdefault('OMP_NUM_THREADS', '1')
# what nodes and verbs keep for the next start: nothing of the user's, or of a run before
ROS_HOME = Path(tempfile.mkdtemp(prefix='ros_home_'))
os.environ['ROS_HOME'] = str(ROS_HOME)
# before anything starts ROS, so that all tests and their processes share it and nobody else does
private_domain.reserve_domain()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action='store_true', help='rewrite the files of test/golden')


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error as it is before a test's is captured, for what ends a worker."""
    config.stash[STDERR] = os.fdopen(os.dup(2), 'w')


def pytest_unconfigure() -> None:
    shutil.rmtree(ROS_HOME, ignore_errors=True)


def pytest_xdist_auto_num_workers() -> int:
    """Return two more than there are cores: half of the time of all tests is waiting."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Spread the files of each folder over the whole run: neighbours are alike, and at no time shall
    all workers wait, or all compute. The long ones come in the first half, so that none of them is
    left alone at the end. A browser is slow.
    """
    place = {
        file: (index * GOLDEN_RATIO) % 1
        for index, file in enumerate(dict.fromkeys(item.path for item in items))
    }
    for item in items:
        if 'browser' in getattr(item, 'fixturenames', ()):
            item.add_marker('slow')
        if item.get_closest_marker('long') or item.get_closest_marker('slow'):
            place[item.path] = min(place[item.path], place[item.path] % 0.5)
    items.sort(key=lambda item: place[item.path])


def pytest_collection() -> None:
    """Search for no garbage among what stays: a sixth of the CPU of the collection."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare the modules and the 12,000 tests each search for garbage: a tenth of the CPU."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, pytestconfig: pytest.Config):
    """Fail a test that leaves a thread, a process or a ROS context (hence a node) behind."""
    log = pytestconfig.stash[STDERR]
    given = request.node.get_closest_marker('limit_s')
    limit_s = float(given.args[0]) if given else TEST_LIMIT_S
    faulthandler.dump_traceback_later(limit_s, exit=True, file=log)
    before = leaks.take_stock()
    yield
    shutil.rmtree(ROS_HOME / 'lerobot_serve' / 'known_nodes', ignore_errors=True)
    # a robot of the next test may have the name of one that was paused, latched or so
    for decision in Decision:
        for file in (ROS_HOME / 'lerobot_serve').glob(f'*/{decision.file}'):
            file.unlink()
    left = leaks.left_behind(before)
    faulthandler.cancel_dump_traceback_later()
    assert not left, 'this test left behind: ' + ', '.join(left)


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Golden:
    return Golden(writes=pytestconfig.getoption(OPTION))


@pytest.fixture(scope='session')
def repository() -> Path:
    """The top of the source tree."""
    return Path(__file__).resolve().parent.parent

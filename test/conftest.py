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
import tempfile
from typing import TextIO

from hypothesis import settings
import pytest
from support import leaks

from lerobot_serve import shared_memory
from lerobot_serve.ros.process import private_domain

pytest_plugins = ['pytester']

TEST_LIMIT_S = float(os.environ.get('TEST_LIMIT_S', '300'))
ROS = Path(__file__).with_name('ros')
STDERR = pytest.StashKey[TextIO]()

# a busy machine is slow, not wrong
settings.register_profile('here', deadline=None, derandomize=True, max_examples=50)
settings.load_profile('here')

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


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error as it is before a test's is captured, for what ends a worker."""
    config.stash[STDERR] = os.fdopen(os.dup(2), 'w')


def pytest_unconfigure() -> None:
    shutil.rmtree(ROS_HOME, ignore_errors=True)


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are cores: tests of real nodes wait a third of their time."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Spread the files with real nodes evenly among the others: they wait, the others compute. The
    long ones come in the first half, so that none of them is left alone at the end.
    """
    files = list(dict.fromkeys(item.path for item in items))
    long = {
        item.path
        for item in items
        if item.get_closest_marker('long') or item.get_closest_marker('slow')
    }
    place = {}
    for group, share in (
        ([file for file in files if file in long], 0.5),
        ([file for file in files if file not in long and has_nodes(file)], 1.0),
        ([file for file in files if file not in long and not has_nodes(file)], 1.0),
    ):
        place |= {file: share * (index + 0.5) / len(group) for index, file in enumerate(group)}
    items.sort(key=lambda item: place[item.path])


def pytest_collection_finish() -> None:
    """Spare the modules and the 8,000 tests each search for garbage: a tenth of the CPU."""
    gc.collect()
    gc.freeze()


def has_nodes(file: Path) -> bool:
    return ROS in file.parents


@pytest.fixture(autouse=True)
def nothing_left_behind(pytestconfig: pytest.Config):
    """Fail a test that leaves a thread, a process or a ROS context (hence a node) behind."""
    log = pytestconfig.stash[STDERR]
    faulthandler.dump_traceback_later(TEST_LIMIT_S, exit=True, file=log)
    before = leaks.take_stock()
    yield
    shutil.rmtree(ROS_HOME / 'lerobot_serve' / 'known_nodes', ignore_errors=True)
    left = leaks.left_behind(before)
    faulthandler.cancel_dump_traceback_later()
    assert not left, 'this test left behind: ' + ', '.join(left)


@pytest.fixture(scope='session')
def repository() -> Path:
    """The top of the source tree."""
    return Path(__file__).resolve().parent.parent

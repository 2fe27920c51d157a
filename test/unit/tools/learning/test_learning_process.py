# SPDX-License-Identifier: Apache-2.0
"""A step as a real process: its priority, its bags, its end, and the learner's end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
import select
import signal
import subprocess
import sys
import time

from msgspec import structs
import pytest
from support.learner.learner_rig import episode
from support.learner.tiny_dataset import Episode, write_dataset
from support.learner.trainer_rig import training_job
from support.paths import module_environment
from support.processes.alive import is_alive
from support.versions.version_rig import policy_folder
from support.waiting import wait_until

from lerobot_serve.experience.bag_files import MAGIC
from lerobot_serve.learner.step_process import StepProcess
from lerobot_serve.learner.steps import (
    BagToConvert,
    ConvertDone,
    ConvertJob,
    decoded_job,
    decoded_report,
    Done,
    encoded,
    Failed,
    FoundEpisode,
    Job,
    PublishJob,
    RefusedBag,
    Report,
    ScanDone,
    ScanJob,
    StageJob,
    TrainJob,
)
from lerobot_serve.learner.trainers.base import Progress
from lerobot_serve.tools.learning.convert import CHANGED, UNREADABLE, whole_bags

# a step gives way to all other work of the machine
LIMIT_S = 240.0
BAG = BagToConvert(Path('/b'), 'f' * 64, 'r', 'e', (Path('/c'),))
JOBS = [
    ScanJob((Path('/a'), Path('/b')), None),
    ConvertJob((BAG,), Path('/d'), ('success',), 'png', (('r', 'x'),)),
    StageJob((BAG,), Path('/d'), ('success',), 'png'),
    TrainJob(
        trainer='builtin',
        **{name: Path(name) for name in ('parent', 'dataset', 'output', 'work')},
        new_episodes=frozenset({1, 2}),
        seed=3,
        budget_s=4.0,
    ),
    PublishJob(Path('/s'), Path('/p'), 'p@1', 'p@0', '', 'note', ('http://a',)),
]
# trains for ever, and starts a process of its own
TRAINER = """
command: [sh, -c, 'sleep 1000 & echo $! > "$1"; wait', sh, '{work}/child']
result: '{output}'
"""


def result_of(step: StepProcess, limit_s: float = LIMIT_S) -> list[Report]:
    """Return all reports of a step until it ends."""
    found: list[Report] = []
    deadline_s = time.monotonic() + limit_s
    while not (found and isinstance(found[-1], Done | Failed)):
        assert time.monotonic() < deadline_s, found
        select.select([step], [], [], 1.0)
        found += step.poll()
    return found


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(job: Job) -> StepProcess:
            step = StepProcess(job, tmp_path / 'logs' / 'log.txt')
            stack.callback(step.kill)
            return step

        yield start


@pytest.mark.parametrize('job', JOBS)
def test_a_job_survives_its_line(job):
    assert decoded_job(encoded(job)) == job


def test_a_line_that_is_no_report_is_refused():
    for line in (b'', b'{}', b'[]', b'{"type": "StageDone"}', b'{"type": "x"}'):
        with pytest.raises(ValueError, match=r'.'):
            decoded_report(line)


def test_a_search_finds_nothing_and_says_which_folder_is_missing(start, tmp_path):
    step = start(ScanJob((tmp_path / 'none',), policy_folder(tmp_path / 'policy')))
    *_, done = result_of(step)
    assert isinstance(done, ScanDone)
    parent, missing = sorted(done.faults, reverse=True)
    assert 'the parent' in parent and 'cannot be used' in parent
    assert 'none is not a folder' in missing
    wait_until(step.has_ended, 'it has ended', LIMIT_S)


def test_a_failure_is_one_sentence(start, tmp_path):
    step = start(PublishJob(tmp_path / 's', tmp_path / 'none', 'p@1', '', '', '', ()))
    (failed,) = result_of(step)
    assert isinstance(failed, Failed)
    assert str(tmp_path / 'none') in failed.text and 'Traceback' not in failed.text


def training(tmp_path: Path) -> TrainJob:
    file = tmp_path / 'trainer.yaml'
    file.write_text(TRAINER)
    if not (tmp_path / 'data').exists():
        write_dataset(tmp_path / 'data', [Episode(['person'] * 3)])
    job = training_job(tmp_path, output=tmp_path / 'output', budget_s=1000.0)
    return TrainJob(trainer=str(file), **structs.asdict(job))


def child_of(tmp_path: Path) -> int:
    file = tmp_path / 'work' / 'child'
    return int(wait_until(lambda: file.is_file() and file.read_text().strip(), 'a child', LIMIT_S))


def niceness_of_session(pid: int) -> int:
    """Return the niceness of the session of a process; 19 where the kernel has none."""
    try:
        return int(Path(f'/proc/{pid}/autogroup').read_text().split()[-1])
    except OSError:
        return 19


@pytest.mark.slow
def test_it_has_the_lowest_priority_and_ends_on_request_with_its_children(start, tmp_path):
    step = start(training(tmp_path))
    child = child_of(tmp_path)
    assert os.getpriority(os.PRIO_PROCESS, step.pid) == 19
    assert os.getpriority(os.PRIO_PROCESS, child) == 19
    # the kernel shares the CPU among sessions first
    assert niceness_of_session(step.pid) == 19
    wait_until(lambda: niceness_of_session(child) == 19, 'the child gives way', LIMIT_S)
    assert Path(f'/proc/{step.pid}/oom_score_adj').read_text().strip() == '1000'
    step.request_end()
    wait_until(step.has_ended, 'it has ended', LIMIT_S)
    wait_until(lambda: not is_alive(child), 'its child is gone', LIMIT_S)
    assert not (tmp_path / 'output').exists()


@pytest.mark.slow
def test_a_step_that_does_not_end_is_killed(start, tmp_path):
    step = start(training(tmp_path))
    child_of(tmp_path)
    os.kill(step.pid, signal.SIGSTOP)
    step.request_end(0.2)
    assert not step.has_ended()
    wait_until(step.has_ended, 'it has ended', LIMIT_S)
    assert not is_alive(step.pid)


@pytest.mark.slow
def test_a_killed_step_is_a_failure_with_its_signal(start, tmp_path):
    step = start(training(tmp_path))
    child_of(tmp_path)
    os.kill(step.pid, signal.SIGKILL)
    failed = result_of(step)[-1]
    assert 'SIGKILL; the kernel does so when memory runs out' in failed.text


PARENT = """
import sys, time
from pathlib import Path
from lerobot_serve.learner.steps import decoded_job
from lerobot_serve.learner.step_process import StepProcess
step = StepProcess(decoded_job(sys.stdin.buffer.readline()), Path(sys.argv[1]))
print(step.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_step_ends_with_a_killed_learner_and_so_does_what_it_started(tmp_path):
    with subprocess.Popen(
        [sys.executable, '-c', PARENT, str(tmp_path / 'log.txt')],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=module_environment(),
    ) as learner:
        learner.stdin.write(encoded(training(tmp_path)))
        learner.stdin.flush()
        pid = int(learner.stdout.readline())
        child = child_of(tmp_path)
        learner.kill()
    wait_until(lambda: not (is_alive(pid) or is_alive(child)), 'both are gone', LIMIT_S)
    assert not (tmp_path / 'output').exists()


@pytest.mark.parametrize(
    'report',
    [
        FoundEpisode(episode(1, Path('/tmp'))),
        ConvertDone(('f' * 64,), (1,), 2, 'd' * 64, (('robot', 'e1'),)),
        Progress(0.5),
    ],
)
def test_reports_survive_their_lines(report):
    assert decoded_report(encoded(report)) == report


@pytest.mark.parametrize('change', [{'sha256': 'x'}, {'outcome': 'nice'}, {'size_bytes': -1}])
def test_an_episode_that_no_message_can_have_is_refused(change):
    line = json.loads(encoded(FoundEpisode(episode(1, Path('/tmp')))))
    line['episode'] |= change
    with pytest.raises(ValueError, match=next(iter(change))):
        decoded_report(json.dumps(line).encode())


CONTENT = MAGIC + b'messages' + MAGIC


def bag(folder: Path, content: bytes | None) -> Path:
    folder.mkdir()
    if content is not None:
        (folder / 'bag.mcap').write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ('first', 'reason'),
    [
        (MAGIC + b'a flipped bit' + MAGIC, CHANGED),
        (CONTENT[:-3], UNREADABLE),
        (None, UNREADABLE),
    ],
)
def test_a_damaged_copy_hides_no_good_one(tmp_path, capsys, first, reason):
    damaged, good = bag(tmp_path / 'first', first), bag(tmp_path / 'second', CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    refusals: dict[str, RefusedBag] = {}
    (found,) = whole_bags([BagToConvert(damaged, sha256, 'r', 'e', (good,))], refusals)
    assert found.path == good and not refusals
    assert f'{damaged}' in capsys.readouterr().out
    assert whole_bags([BagToConvert(damaged, sha256, 'r', 'e')], refusals) == []
    assert refusals[sha256].reason == reason

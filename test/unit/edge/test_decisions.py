# SPDX-License-Identifier: Apache-2.0
"""What a restart leaves of what was decided: all of it, and where in doubt the decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import errno
import os
from pathlib import Path
import threading

import pytest
from support.waiting import wait_until

from lerobot_serve.edge import decisions as module
from lerobot_serve.edge.decisions import Decision, RobotDecisions

EVERY = pytest.mark.parametrize('decision', Decision, ids=lambda each: each.file)


@contextlib.contextmanager
def begun(folder: Path) -> Iterator[RobotDecisions]:
    """The decisions of one process."""
    decisions = RobotDecisions(folder)
    decisions.start()
    try:
        yield decisions
    finally:
        decisions.close()


def found(folder: Path) -> dict[Decision, str]:
    """Return what a restart finds, with its reasons."""
    decisions = RobotDecisions(folder)
    return {each: decisions.reason(each) for each in Decision if decisions.holds(each)}


@EVERY
def test_a_decision_survives_with_its_reason_and_its_end_does_too(tmp_path, decision):
    folder = tmp_path / 'made' / 'later'
    with begun(folder) as decisions:
        decisions.decide(decision, 'the first reason')
        decisions.decide(decision, 'another one')
        assert decisions.settle(decision) == decisions.warning == ''
        assert found(folder) == {decision: 'the first reason'}
        text = decisions.path(decision).read_text()
        assert f'The service {decision.lifted_by} removes this file' in text
        for _ in range(2):
            decisions.lift(decision)
            assert decisions.settle(decision) == ''
            assert not decisions.holds(decision)
            assert found(folder) == {}


def test_what_is_decided_last_before_an_orderly_end_is_written(tmp_path):
    with begun(tmp_path) as decisions:
        decisions.decide(Decision.LATCHED, 'in the last control step')
    assert found(tmp_path) == {Decision.LATCHED: 'in the last control step'}


DAMAGES: dict[str, Callable[[Path], object]] = {
    'empty': Path.touch,
    'bytes': lambda file: file.write_bytes(b'\0\xff' * 9999),
    'text': lambda file: file.write_text('no'),
    'control': lambda file: file.write_text('a\nb\x1b[2J'),
    'pipe': os.mkfifo,
    'link': lambda file: file.symlink_to('nowhere'),
    'folder': Path.mkdir,
}


@EVERY
@pytest.mark.parametrize('damage', DAMAGES)
def test_damage_lifts_nothing(tmp_path, decision, damage):
    DAMAGES[damage](tmp_path / decision.file)
    assert found(tmp_path) == {decision: ''}


def test_a_reason_is_bounded_and_one_line(tmp_path):
    with begun(tmp_path) as decisions:
        decisions.decide(Decision.LATCHED, 'ä' * 9999)
        decisions.decide(Decision.STOPPED, 'two\nlines')
        decisions.settle(Decision.LATCHED)
        decisions.settle(Decision.STOPPED)
    assert found(tmp_path) == {Decision.LATCHED: 'ä' * 1000, Decision.STOPPED: ''}


def test_where_it_cannot_be_read_it_is_decided(tmp_path, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, 'lstat', refuse)
    assert set(found(tmp_path)) == set(Decision)


# every decision, and each failure of the disk


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# the call of the operating system that fails while it is decided, and while it is lifted
FAILURES = {
    'full': (('os.open', errno.ENOSPC), ('sync_folder', errno.ENOSPC)),
    'read-only': (('os.open', errno.EROFS), ('Path.unlink', errno.EROFS)),
    'broken': (('os.fsync', errno.EIO), ('Path.unlink', errno.EIO)),
    'not synced': (('sync_folder', errno.EIO), ('sync_folder', errno.EIO)),
}


@EVERY
@pytest.mark.parametrize('failure', FAILURES)
def test_a_disk_that_fails_is_said_and_tried_again(tmp_path, monkeypatch, decision, failure):
    monkeypatch.setattr(module, 'RETRY_S', 0.02)
    (begins, begin_code), (ends, end_code) = FAILURES[failure]
    file = tmp_path / decision.file
    with begun(tmp_path) as decisions:
        with monkeypatch.context() as patch:
            patch.setattr(f'{module.__name__}.{begins}', failing(begin_code))
            decisions.decide(decision, 'why')
            warning = decisions.settle(decision)
            assert decisions.holds(decision)
            assert warning == decisions.warning
        assert warning == (
            f'A restart of the edge controller ends it: {file} is not written '
            f'({os.strerror(begin_code)})'
        )
        wait_until(lambda: not decisions.warning, 'it is written in the end')
        assert found(tmp_path) == {decision: 'why'}
        with monkeypatch.context() as patch:
            patch.setattr(f'{module.__name__}.{ends}', failing(end_code))
            decisions.lift(decision)
            warning = decisions.settle(decision)
            assert not decisions.holds(decision)
            assert warning == decisions.warning
        assert warning == (
            f'After a restart of the edge controller it is {decision} again: '
            f'{file} is not removed ({os.strerror(end_code)})'
        )
        wait_until(lambda: not decisions.warning, 'it is removed in the end')
        assert found(tmp_path) == {}


@EVERY
def test_a_full_disk_that_takes_the_file_loses_only_the_reason(tmp_path, monkeypatch, decision):
    monkeypatch.setattr('os.pwrite', failing(errno.ENOSPC))
    with begun(tmp_path) as decisions:
        decisions.decide(decision, 'why')
        assert decisions.settle(decision) == ''
    assert found(tmp_path) == {decision: ''}


@EVERY
def test_a_disk_that_hangs_holds_nothing_up_and_the_newest_decision_stays(
    tmp_path, monkeypatch, decision
):
    monkeypatch.setattr(module, 'DISK_LIMIT_S', 0.05)
    answers = threading.Event()
    sync = module.sync_folder
    monkeypatch.setattr(module, 'sync_folder', lambda path: answers.wait(60) and sync(path))
    late = 'the disk has not responded yet'
    with begun(tmp_path) as decisions:
        decisions.decide(decision, 'one')
        assert late in decisions.settle(decision)
        # what is decided in the control step returns while the disk hangs
        decisions.lift(decision)
        assert late in decisions.settle(decision)
        decisions.decide(decision, 'two')
        assert late in decisions.warning
        # neither a file that is there nor one that is removed by then is the newest decision
        answers.set()
        wait_until(lambda: not decisions.warning, 'it is settled')
    assert found(tmp_path) == {decision: 'two'}


def test_without_a_folder_nothing_is_kept():
    decisions = RobotDecisions()
    decisions.decide(Decision.PAUSED)
    assert decisions.settle(Decision.PAUSED) == decisions.warning == ''
    assert decisions.holds(Decision.PAUSED)

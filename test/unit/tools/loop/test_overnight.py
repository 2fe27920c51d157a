# SPDX-License-Identifier: Apache-2.0
"""
The loop is left alone for a night of eight hours with faults, and asked in the morning.

What holds at every moment is in `support.night.checks`, what goes wrong in `support.night.faults`.
A night is one of a seed, and takes half a minute of CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import re
import shutil
import tempfile
from types import SimpleNamespace

import pytest

from lerobot_serve.contract.fingerprint import digest_of

pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('pyarrow', reason='reads datasets (TORCH=none)')

from support.night.faults import NIGHT_S
from support.night.loop_process import run_in_process
from support.night.night import Night
from support.night.world import Fate, FIRST_RATE

from lerobot_serve.learner.versions import lineage
from lerobot_serve.tools.cli import rollout_steps
from lerobot_serve.tools.loop import journal
from lerobot_serve.tools.loop.journal import read_journal

# a night writes through ten thousand times, which a busy disk makes slow
MEMORY = Path('/dev/shm')
# what a seed must have done, by the words of its notes
FAULTS = (
    *('loop killed', 'router killed', 'learner killed for', 'learner killed in a publication'),
    *('disk of the store full', 'disk of the store has room', 'stepped by -3600', 'damaged'),
    *('stepped by 3600', 'robots silent', 'a poisoned version was refused'),
)
VIOLATED, INCOMPLETE = 3, 5


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix='night_', dir=MEMORY if MEMORY.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.mark.release
@pytest.mark.limit_s(1800)
@pytest.mark.parametrize('seed', [1, 2, 3, 4, 5])
def test_a_night_alone_and_its_story_in_the_morning(folder, monkeypatch, seed):
    night = Night(folder, seed)
    try:
        night.run(NIGHT_S)
        check_episodes(night)
    finally:
        night.close()
    check_night(night)
    wall = night.clock.wall()
    monkeypatch.setattr(journal, 'utc_now', lambda: wall)
    monkeypatch.setattr(rollout_steps, 'time', SimpleNamespace(time=wall.timestamp))
    check_loop_history(night)
    check_rollout_history(night)
    check_audit(night)


def check_episodes(night: Night) -> None:
    """Each episode is known to the learner, also one that it was away for; none is new twice."""
    night.clock.pass_time(60.0)
    memory = night.learner.memory
    if memory is None:
        night.learner.start()
        night.clock.pass_time(60.0)
        memory = night.learner.memory
    known = {each.sha256 for each in memory.episodes()}
    assert known == {each.sha256 for each in night.recorder.announced}
    versions = memory.versions()
    for version in versions:
        rounds = [each.round for each in lineage(version.id, versions)]
        used = [sha256 for each in rounds for sha256 in memory.used_by([each])]
        assert len(used) == len(set(used)) > 0


def check_night(night: Night) -> None:
    """The faults of the seed happened, and the loop brought the fleet forward in spite of them."""
    happened = [what for _, what in night.faults.happened]
    assert [fault for fault in FAULTS if not any(fault in what for what in happened)] == []
    checks, world = night.checks, night.world
    assert world.rate(checks.champion) >= FIRST_RATE
    assert digest_of(checks.champion) != digest_of(night.first)
    # the first one of each: a later one may still be on trial
    fates = {fate: digest for digest, fate in reversed(world.fates.items())}
    assert fates[Fate.FALLS] in checks.promoted and fates[Fate.FALLS] in checks.rolled_back
    assert fates[Fate.WORSE] in checks.rolled_back and fates[Fate.WORSE] not in checks.promoted
    driven = {digest_of(policy) for policies in checks.placed.values() for policy in policies}
    assert not driven & night.refused()


def check_loop_history(night: Night) -> None:
    """Each end of a version is there with its reason, and what the loop is now."""
    shown = run_in_process(
        ['loop', 'history', '--hours', '12', '--folder', str(night.journal)]
    ).output
    events = list(read_journal(night.journal))
    names = {digest_of(each.version): each.version for each in events if each.version}
    for digest in night.checks.rolled_back:
        (line,) = lines_with(shown, f'rolled back {names[digest]}: ')
        assert 'the candidate is worse' in line
    for digest in night.refused():
        (line,) = lines_with(shown, f'gate refused {names[digest]}: ')
        assert 'cage: ' in line
    for version in night.damaged:
        assert 'has another SHA-256' in lines_with(shown, f'gate failed {version}: ')[0]
    for digest in night.checks.promoted:
        ends = ('promoted', 'watched', 'finished', 'rolled back')
        assert any(f'  {end} {names[digest]}' in shown for end in ends)
    starts = [what for _, what in night.faults.happened if what == 'loop started']
    assert len(lines_with(shown, '  loop started: ')) == 1 + len(starts)
    assert f'{len(starts)} times after an end that it did not record' in shown
    assert f'champion: {night.checks.champion}; before: {night.first}' in shown
    assert 'the clock of this machine was set back' in shown
    assert 'for a person:' in shown


def check_rollout_history(night: Night) -> None:
    """Each promotion and rollback is there once, with its reason; so is each policy that drove."""
    done = run_in_process(['rollout', 'history', str(night.traces), '--hours', '12'])
    shown, checks = done.output, night.checks
    promoted = versions_of(shown, 'rollout promoted, 100 % to slot b')
    assert sorted(promoted) == sorted(checks.promoted)
    assert sorted(versions_of(shown, 'rollout rolled back, 0 % to slot b')) == sorted(
        checks.rolled_back
    )
    back = lines_with(shown, 'rollout rolled back')
    assert all('worse' in line for line in back)
    for policy in {policy for policies in checks.placed.values() for policy in policies}:
        assert f'  {policy}  ' in shown


def check_audit(night: Night) -> None:
    """The audit finds nothing but the ends that were missed, and an episode before its gate."""
    done = run_in_process(['audit', str(night.traces)])
    assert done.status == INCOMPLETE, done.output
    assert 'process killed or still running' in done.output
    for trace in night.traces.iterdir():
        content = trace.read_text().splitlines(keepends=True)
        trace.write_text(
            ''.join(
                line
                for line in content
                if '"kind": "gate"' not in line and '"kind":"gate"' not in line
            )
        )
    done = run_in_process(['audit', str(night.traces)])
    assert done.status == VIOLATED
    assert 'drives, and no gate has admitted it' in done.output


def versions_of(text: str, event: str) -> list[str]:
    """Return the digests of the versions that had an event."""
    return [digest_of(each) for each in re.findall(rf'  {re.escape(event)} \((\S+)\): ', text)]


def lines_with(text: str, part: str) -> list[str]:
    return [line for line in text.splitlines() if part in line]

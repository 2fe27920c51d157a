# SPDX-License-Identifier: Apache-2.0
"""Announced episodes become versions, in real processes: with their parents, kills and pauses."""

from __future__ import annotations

from pathlib import Path
import shutil
import signal

import pytest
from support.waiting import wait_until

from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.versions.layout import store_lock
from lerobot_serve.versions.manifest import read_manifest

pytest.importorskip('lerobot')
pytest.importorskip('torch')
# each round imports LeRobot and torch in processes of the lowest priority
pytestmark = [pytest.mark.alone, pytest.mark.long, pytest.mark.limit_s(900)]


def test_announced_episodes_become_a_version_with_its_files_and_sources(learner_rig):
    rig = learner_rig
    rig.gate.touch()
    rig.start(sources='["http://desk:8710"]')
    first, second = rig.record('a', 'b')
    rig.announce(first)
    (version,) = rig.wait(lambda: rig.versions, 'a version is announced')
    assert rig.ids() == [version.id]
    manifest = read_manifest(rig.folder / 'store' / version.id)
    assert version.policy_kind == 'builtin'
    assert version.parent == manifest.parent and version.parent.startswith('reach@')
    assert [(f.path, f.size_bytes, f.sha256) for f in version.files] == [
        (f.path, f.size_bytes, f.sha256) for f in manifest.files
    ]
    assert list(version.sources) == [str(rig.folder / 'store'), 'http://desk:8710']
    assert version.note == 'round 1: 2 new episodes, 2 with a person; 2 in all'
    assert version.dataset_sha256 == manifest.dataset_sha256 != ''
    rig.wait_for(Phase.WAITING)
    state = rig.state
    # it is not a champion yet
    assert (state.round, state.latest, state.parent) == (1, version.id, version.parent)
    assert (state.episodes, state.episodes_new, state.episodes_wanted) == (2, 0, 2)
    assert {each.reason: each.count for each in state.dropped} == {'repeated': 1}
    # the bags stay as they were, and their copy in another folder is no new episode
    shutil.copytree(second.path, rig.bags / 'copy')
    assert rig.call('start_round').success
    rig.wait(lambda: 'there is no new episode' in rig.log, 'the search ends')
    rig.wait_for(Phase.WAITING)
    assert len(rig.ids()) == 1


@pytest.mark.parametrize('phase', [Phase.CONVERTING, Phase.TRAINING, Phase.PUBLISHING])
def test_killed_in_each_state_and_started_again_there_is_one_version(learner_rig, phase):
    rig = learner_rig
    rig.start()
    rig.record('a', 'b')
    if phase is Phase.CONVERTING:
        rig.wait(lambda: rig.state and 'makes a data set' in rig.state.text, 'it converts')
        rig.kill()
    else:
        rig.wait_for_training()
        if phase is Phase.TRAINING:
            rig.kill()
        else:
            # the store is locked, so that the publication lasts
            with store_lock(rig.folder / 'store' / '.store' / 'lock'):
                rig.gate.touch()
                rig.wait_for(Phase.PUBLISHING)
                rig.kill()
    assert rig.versions == []
    rig.states.clear()
    rig.gate.touch()
    rig.start()
    rig.wait(lambda: rig.versions, 'a version is announced')
    rig.wait_for(Phase.WAITING)
    assert rig.state.round == 1
    assert [each.id for each in rig.announced()] == rig.ids() == [rig.state.latest]
    assert rig.state.episodes == 2 and rig.state.episodes_new == 0
    # nothing of the round is left but its logs
    left = {path.name for path in (rig.folder / 'learner' / 'rounds').glob('*/*')}
    assert {name for name in left if not name.endswith('.txt')} <= {'work'}
    assert not list((rig.folder / 'store' / '.store' / 'incoming').iterdir())


def test_a_rolled_back_version_is_not_built_upon_also_after_a_restart(learner_rig):
    rig = learner_rig
    rig.gate.touch()
    rig.start(episodes_per_round=1)
    rig.record('a')
    rig.wait(lambda: rig.announced(), 'a version is announced')
    rig.wait_for(Phase.WAITING)
    (first,) = rig.announced()
    rig.promote(first.id)
    rig.wait(lambda: rig.state.parent == first.id, 'rounds may build on it')
    rig.gate.unlink()
    rig.training.unlink()
    rig.record('b')
    rig.wait_for_training()
    assert rig.state.parent == first.id
    # the parent of the round that runs
    rig.roll_back(first.id)
    rig.wait(lambda: rig.state.parent == first.parent, 'the round is begun again')
    rig.wait_for_training()
    rig.kill()
    rig.gate.touch()
    rig.start(episodes_per_round=1, router='""')
    rig.wait(lambda: len(rig.announced()) == 2, 'a second version is announced')
    _, second = rig.announced()
    assert second.parent == first.parent


def test_pause_gives_the_machine_back_and_resume_begins_again(learner_rig):
    rig = learner_rig
    rig.start()
    rig.record('a', 'b')
    rig.wait_for_training()
    assert rig.call('pause').success
    rig.wait_for(Phase.PAUSED)
    assert not rig.call('start_round').success
    rig.kill()
    rig.states.clear()
    rig.gate.touch()
    rig.start()
    rig.wait_for(Phase.PAUSED, 'it is paused after a restart')
    rig.record('c')
    assert rig.call('resume').success
    rig.wait(lambda: rig.versions, 'a version is announced')
    assert rig.versions[0].note == 'round 1: 3 new episodes, 3 with a person; 3 in all'


def test_the_builtin_trainer_shows_its_progress_and_gives_the_next_version(learner_rig):
    rig = learner_rig
    trainer = rig.folder / 'builtin.yaml'
    trainer.write_text('builtin: {steps: 400, batch_size: 8, cpu_threads: 1}\n')
    rig.start(trainer=trainer)
    rig.record('a', 'b')
    rig.wait(lambda: rig.versions, 'a version is announced')
    assert rig.ids() == [rig.versions[0].id]
    # the state comes once a second
    losses = [each.loss for each in rig.states if each.state == Phase.TRAINING.value]
    assert any(loss > 0 for loss in losses)


def test_an_orderly_end_ends_the_trainer_too(learner_rig):
    rig = learner_rig
    process = rig.start()
    rig.record('a', 'b')
    rig.wait_for_training()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0, rig.log
    wait_until(lambda: not commands_with(str(rig.folder)), 'no process of the round is left')
    assert rig.ids() == []


def commands_with(text: str) -> list[str]:
    """Return the command lines of running processes that name a path."""
    found = []
    for file in Path('/proc').glob('[0-9]*/cmdline'):
        try:
            line = file.read_bytes().replace(b'\0', b' ').decode(errors='replace')
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found

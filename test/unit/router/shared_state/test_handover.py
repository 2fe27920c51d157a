# SPDX-License-Identifier: Apache-2.0
"""From a file to a shared state and back: decisions come along, or the start is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
import os
from pathlib import Path

import pytest
from support.router.episodes import accept, FAILURE, request
from support.router.router_core_rig import RoutingRig, TWO_SLOTS
from support.router.site_rig import SiteRouter

from lerobot_serve.errors import UserError
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS
from lerobot_serve.router.shared_state.opening import LAST_STATE
from lerobot_serve.router.storage.store import StoreRefused
from lerobot_serve.state_folder import FolderLock
from lerobot_serve.tools.cli.main import main
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
PLAN = ('50:1000', '100')
NAME = '/policy_router'


class Places:
    """One router that changes its state; it is killed before it starts again."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.rig: RoutingRig | None = None

    def start(self, site: str = '', *, folder: str = 'own', **more: object) -> RoutingRig:
        """Start with the state of a site, or with the file."""
        self.end()
        place = self.folder / folder
        place.mkdir(exist_ok=True)
        if site:
            self.rig = SiteRouter(place, self.url, NAME, state_site=site, **more)
        else:
            self.rig = RoutingRig(place, **TWO_SLOTS, **more)
        return self.rig

    def refused(self, site: str = '', **more: object) -> str:
        """Return why a start is refused."""
        self.end()
        with pytest.raises(StoreRefused) as refusal:
            self.start(site, **more)
        return str(refusal.value)

    def end(self) -> None:
        if self.rig:
            self.rig.core.writer.flush()
            self.rig.close()
        self.rig = None

    def begin_rollout(self) -> None:
        core = self.rig.core
        core.change_parameters(replace(core.parameters, canary_plan=PLAN))
        for _ in range(3):
            self.rig.now_ns += 10**9
            core.update_canary()
            core.writer.flush()
            if core.follower:
                self.rig.step()

    def decide(self) -> None:
        """Bar the candidate, drain slot a, set the split and a plan."""
        self.begin_rollout()
        core = self.rig.core
        self.rig.command(R.CANARY_ROLLBACK, '', 'arm hit the table')
        core.change_parameters(replace(core.parameters, split_percent=80))
        self.rig.command(R.DRAIN, 'a', 'repair')

    def assert_decided(self) -> None:
        core = self.rig.core
        assert core.slots['b'].verdict_record.verdict in BARRING_VERDICTS
        assert 'arm hit the table' in core.slots['b'].verdict_record.text
        assert 'repair' in core.slots['a'].drain.text
        assert core.parameters.split_percent == 80
        assert core.parameters.canary_plan == PLAN
        assert core.canary.canary.state.word == 'rolled_back'

    def is_barred(self) -> bool:
        return self.rig.core.slots['b'].verdict_record.verdict in BARRING_VERDICTS

    def split(self, percent: int) -> None:
        """Set the split by hand."""
        core = self.rig.core
        with core.decisions.authored('test'):
            core.change_parameters(replace(core.parameters, split_percent=percent))

    def said(self, words: str) -> list[str]:
        return [line for line in self.rig.told if words in line]


@pytest.fixture
def places(tmp_path, url) -> Iterator[Places]:
    made = Places(tmp_path, url)
    yield made
    made.end()


@pytest.mark.parametrize('second', ['', 'north', 'south'])
@pytest.mark.parametrize('first', ['', 'north'])
def test_a_folder_has_one_router_whatever_state_it_has(places, first, second):
    places.start(first)
    other = Places(places.folder, places.url)
    owner = rf'in use by {NAME} \(process {os.getpid()} .*set another state_folder'
    for _ in range(2):
        with pytest.raises(UserError, match=owner):
            other.start(second)
    places.end()
    other.start(second)
    other.end()


def test_a_router_that_is_refused_keeps_no_folder(places):
    (places.folder / 'own').mkdir()
    (places.folder / 'own' / LAST_STATE).write_text('{}')
    assert LAST_STATE in places.refused('north')
    FolderLock(places.folder / 'own', '/other', 'state_folder').release()


def test_from_a_file_into_an_empty_state_everything_comes_along_once(places):
    places.start()
    request(places.rig, 'running')
    places.decide()
    places.start('north')
    places.assert_decided()
    assert places.rig.core.table.placements.find('running')
    (line,) = places.said('from now on')
    assert 'arm hit the table' in line and 'split_percent is 80' in line
    # what is lifted there does not come back
    places.rig.command(R.LIFT_VERDICT, 'b', 'it was the gripper')
    places.start('north')
    assert not places.said('from now on')
    assert not places.is_barred()
    # for the other router of the site, too, whose folder is another
    places.start('north', folder='other')
    assert 'repair' in places.rig.core.slots['a'].drain.text


def test_accepted_outcomes_that_no_counts_have_come_along(places):
    places.start()
    places.begin_rollout()
    names = [name for name in map(str, range(40)) if request(places.rig, name) == 'b']
    for name in names:
        assert accept(places.rig, name, FAILURE) == ''
    places.start('north')
    for _ in range(4):
        places.rig.step()
    assert places.rig.core.shared.leads
    totals = places.rig.core.canary.canary.record.trial.totals
    assert totals['candidate'].failure == len(names) > 5
    # the rest was for the champion, and runs
    assert totals['champion'].begun == 40 - len(names)


def test_placements_come_along_also_where_nothing_is_decided(places):
    places.start()
    request(places.rig, 'running')
    places.start('north')
    assert places.rig.core.table.placements.find('running')


def test_what_is_decided_in_both_is_asked_for(places):
    places.start('north', folder='other')
    places.split(30)
    places.start()
    places.decide()
    why = places.refused('north')
    for words in ('router.sqlite', "site 'north'", 'arm hit the table', 'state_import', 'none'):
        assert words in why
    # nothing was changed: the same again is the same
    assert places.refused('north') == why
    places.start()
    places.assert_decided()
    places.start('north', state_import='last')
    places.assert_decided()
    places.start('north', state_import='last')
    assert 'remove it' in places.said('state_import is last')[0]


def test_none_leaves_it_behind_and_says_so(places):
    places.start('north', folder='other')
    places.split(30)
    places.start()
    places.decide()
    places.start('north', state_import='none')
    assert places.rig.core.parameters.split_percent == 30
    assert not places.is_barred()
    assert places.said('state_import is none')
    # that was answered
    places.start('north')
    assert places.rig.core.parameters.split_percent == 30


def test_a_bar_of_the_new_state_holds_whatever_comes_along(places):
    places.start('north', folder='other')
    core = places.rig.core
    core.decisions.bar(core.slots['b'], 'act@b', 'arm hit the table', at_once=True)
    places.rig.command(R.DRAIN, 'a', 'repair')
    places.start()
    places.rig.core.decisions.promote('act@b')
    places.split(30)
    places.start('north', state_import='last')
    assert places.rig.core.parameters.split_percent == 30
    assert places.is_barred()
    assert 'repair' in places.rig.core.slots['a'].drain.text


@pytest.mark.parametrize('file', ['new', 'older'])
def test_back_to_a_file_is_asked_for(places, file):
    if file == 'older':
        places.start()
        places.split(10)
    places.start('north')
    places.decide()
    why = places.refused()
    assert "site 'north'" in why and 'arm hit the table' in why and 'state_import' in why
    places.start(state_import='last')
    places.assert_decided()
    # and is the state from now on
    places.start()
    places.assert_decided()
    # the site has it, too, until something is decided here
    places.split(20)
    assert 'split_percent is 20' in places.refused('north')


def test_a_mistyped_site_is_refused(places):
    places.start('north')
    places.decide()
    why = places.refused('nroth')
    assert "site 'nroth'" in why and "site 'north'" in why and 'correct state_url' in why
    places.start('north')
    places.assert_decided()


def test_a_new_site_beside_others_is_named(places):
    places.start('north')
    places.start('nroth', folder='other')
    (line,) = places.said('correct state_site')
    assert 'north' in line and "site 'nroth'" in line
    places.split(20)
    places.start('nroth', folder='third')
    assert not places.said('correct state_site')


def test_a_last_state_that_is_away_is_no_empty_one(places, server):
    places.start('north')
    places.decide()
    places.end()
    note = places.folder / 'own' / LAST_STATE
    # nothing listens there
    note.write_text(note.read_text().replace(f':{server.port}/', ':1/'))
    why = places.refused()
    assert 'what was decided there is not known' in why and 'state_import' in why
    places.start(state_import='none')
    assert not places.is_barred()


def test_a_kill_between_the_import_and_its_note_asks_for_nothing(places):
    places.start()
    places.decide()
    places.start('north')
    places.end()
    (places.folder / 'own' / LAST_STATE).unlink()
    places.start('north')
    places.assert_decided()


def test_a_note_that_cannot_be_read_is_refused(places):
    places.start('north')
    places.end()
    (places.folder / 'own' / LAST_STATE).write_text('{}')
    assert LAST_STATE in places.refused('north')


class TestMove:
    """`lerobot-serve router store move`, while the router is stopped."""

    def move(self, places: Places, capsys, *words: str, site: str = '') -> tuple[int, str]:
        places.end()
        to = ['--state-url', places.url, '--state-site', site] if site else []
        own = ['--state-folder', str(places.folder / 'own')]
        status = main(['router', 'store', 'move', *own, *to, *words])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    def test_a_file_becomes_a_site_of_two_and_comes_back(self, places, capsys):
        places.start()
        request(places.rig, 'running')
        places.decide()
        status, said = self.move(places, capsys, site='north')
        assert status == 0 and 'arm hit the table' in said and '1 placements' in said
        places.start('north')
        places.assert_decided()
        assert places.rig.core.table.placements.find('running')
        assert not places.said('from now on')
        places.split(20)
        places.start('north', folder='other', split_percent=33)
        assert places.rig.core.parameters.split_percent == 20
        status, said = self.move(places, capsys)
        assert status == 0 and 'split_percent is 20' in said
        # also where its file says something else: what an operator has set holds
        places.start(split_percent=33)
        assert places.rig.core.parameters.split_percent == 20
        assert places.is_barred()
        assert places.rig.core.table.placements.find('running')
        # and until that file changes, as everywhere
        places.start(split_percent=34)
        assert places.rig.core.parameters.split_percent == 34

    def test_the_last_state_is_left_as_it_is(self, places, capsys):
        places.start()
        places.decide()
        places.end()
        before = (places.folder / 'own' / 'router.sqlite').read_bytes()
        assert self.move(places, capsys, site='north')[0] == 0
        assert (places.folder / 'own' / 'router.sqlite').read_bytes() == before

    def test_what_cannot_be_moved_is_refused(self, places, capsys):
        places.start()
        places.decide()
        places.rig.core.writer.flush()
        running, places.rig = places.rig, None
        status, said = self.move(places, capsys, site='north')
        assert status == 1 and f'in use by {NAME}' in said
        places.rig = running
        status, said = self.move(places, capsys)
        assert status == 1 and 'router.sqlite is what this router used last' in said
        status, said = self.move(places, capsys, '--state-folder', str(places.folder / 'none'))
        assert status == 1 and 'no router has a state in' in said
        url = places.url.replace('@', ':secret@')
        status, said = self.move(places, capsys, '--state-url', url)
        assert status == 1 and 'must not contain a password' in said
        status, said = self.move(places, capsys, '--state-url', f'{places.url}x')
        assert status == 1 and 'does not exist' in said
        assert main(['router', 'store', 'mvoe']) == 2
        assert "'store mvoe' is not a step" in capsys.readouterr().err
        # nothing was changed
        places.start()
        places.assert_decided()

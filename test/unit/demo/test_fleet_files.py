# SPDX-License-Identifier: Apache-2.0
"""The files that the demo starts with `up`: what they plan, and that they are whole."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.paths import REPOSITORY

from lerobot_serve.demo import fleet_names
from lerobot_serve.demo.tour import learning_fleet
from lerobot_serve.demo.tour.act_order import LEARNING, ordered_acts, SERVING, tour_of, TOURS
from lerobot_serve.demo.tour.fleet_files import (
    CANDIDATE_FILE,
    FLEET_FILE,
    fleet_texts,
    write_fleet_files,
    write_policies,
)
from lerobot_serve.demo.tour.learning_fleet import LEARNING_FILE, write_learning_files
from lerobot_serve.demo.tour.link import DemoLink, zenoh_link
from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.builtin.settings import ReachSettings
from lerobot_serve.policies.files.policy_json import read_policy_json
from lerobot_serve.tools.fleet.plan import fleet_plan
from lerobot_serve.tools.fleet.process import FleetProcess

POLICIES = REPOSITORY / 'config' / 'policies'


def planned(folder, link: DemoLink) -> dict[str, FleetProcess]:
    """Return the processes of both files by name, as `up` plans them."""
    write_policies(POLICIES, folder)
    write_fleet_files(folder, ['robot_1', 'robot_2'], 7, link)
    processes: Iterable[FleetProcess] = (
        process
        for name in (FLEET_FILE, CANDIDATE_FILE)
        for process in fleet_plan((folder / name).read_text(), name, folder)
    )
    return {process.name: process for process in processes}


def test_up_accepts_both_files(tmp_path, golden):
    plan = planned(tmp_path, DemoLink())
    robots = ('robot_1', 'robot_1.sim', 'robot_2', 'robot_2.sim')
    assert set(plan) == {*fleet_names.SERVERS, 'router', *robots}
    texts = fleet_texts(['robot_1', 'robot_2'], 7, DemoLink())
    golden.holds('demo_fleet_files.txt', '\n'.join(texts.values()))


def plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else getattr(value, 'value', value)


def test_each_policy_has_the_name_of_its_version_and_its_weights(tmp_path):
    write_policies(POLICIES, tmp_path)
    for version, shipped in fleet_names.VERSIONS.items():
        settings = read_policy_json(ReachSettings, tmp_path / 'policies' / version / 'policy.json')
        original = read_policy_json(ReachSettings, POLICIES / shipped / 'policy.json')
        assert (settings.id, settings.chunk_size) == (version, 30)
        assert settings.network == original.network
        weights = (tmp_path / 'policies' / version / 'model.safetensors').read_bytes()
        assert weights == (POLICIES / shipped / 'model.safetensors').read_bytes()


def test_over_zenoh_every_request_has_an_endpoint_to_go_to(tmp_path):
    link = zenoh_link(fleet_names.LISTENING)
    at = link.endpoints
    assert len(set(at.values())) == len(fleet_names.LISTENING) == 5
    assert all(endpoint.startswith('tcp/127.0.0.1:') for endpoint in at.values())
    plan = planned(tmp_path, link)
    servers = [at[name] for name in fleet_names.SERVERS]
    for name in fleet_names.SERVERS:
        assert plain(plan[name].values['zenoh_listen']) == [at[name]]
    router = {name: plain(value) for name, value in plan['router'].values.items()}
    assert (router['zenoh_listen'], router['zenoh_connect']) == ([at['router']], servers)
    assert router['slot_a'] == ['zenoh:/a1/policy_server', 'zenoh:/a2/policy_server']
    assert router['slot_b'] == ['zenoh:/b1/policy_server']
    assert router['shadow_server'] == 'zenoh:/shadow/policy_server'
    edge = plan['robot_1'].values
    assert edge['link'] == 'zenoh' and plain(edge['zenoh_connect']) == [at['router']]


def test_the_weights_are_small():
    files = [POLICIES / folder / 'model.safetensors' for folder in fleet_names.VERSIONS.values()]
    assert sum(file.stat().st_size for file in files) < 2_000_000


@pytest.mark.parametrize(
    ('names', 'played'),
    [
        ([], ['serve']),
        (['kill'], ['serve', 'kill']),
        (['canary'], ['serve', 'shadow', 'canary']),
        (['broken'], ['serve', 'shadow', 'canary', 'broken']),
        (['broken', 'kill'], list(TOURS[SERVING])),
        (['learn'], ['learn']),
        (['regress'], ['learn', 'regress']),
        (['regress', 'poison'], list(TOURS[LEARNING])),
    ],
)
def test_an_act_brings_those_that_it_needs(names, played):
    assert ordered_acts(names) == played
    assert tour_of(played) == (LEARNING if 'learn' in played else SERVING)


def test_acts_of_two_fleets_do_not_mix():
    with pytest.raises(ParameterError, match='kill and learn belong to two fleets; run one after'):
        ordered_acts(['kill', 'learn'])


def learning_plan(folder, link: DemoLink) -> dict[str, FleetProcess]:
    write_learning_files(folder, POLICIES, ['robot_1', 'robot_2'], 7, '50:10,100', link)
    text = (folder / LEARNING_FILE).read_text()
    assert str(folder) not in text
    plan = fleet_plan(text, LEARNING_FILE, folder)
    return {process.name: process for process in plan}


def test_up_accepts_the_file_of_the_learning_acts_and_each_part_knows_the_others(tmp_path):
    plan = learning_plan(tmp_path, DemoLink())
    assert set(plan) == {
        *('a', 'b', 'router', 'robot_1', 'robot_1.sim', 'robot_2', 'robot_2.sim'),
        *('record', 'learner', 'loop'),
    }
    store, parent = str(tmp_path / 'versions'), str(tmp_path / 'policies' / 'reach')
    assert [str(plan[name].values['policy_root']) for name in ('a', 'b')] == [store] * 2
    learner = {name: str(value) for name, value in plan['learner'].values.items()}
    assert (learner['store'], learner['parent']) == (store, parent)
    assert learner['episodes_per_round'] == '40'
    words = plan['loop'].command
    for word in (f'--store={store}', f'--champion={parent}', f'--gates={tmp_path / "gates"}'):
        assert word in words
    for name in ('robot_1.sim', 'robot_2.sim'):
        assert plan[name].values['leader']


def test_the_learning_acts_run_over_zenoh_too(tmp_path):
    link = zenoh_link(learning_fleet.LISTENING)
    plan = learning_plan(tmp_path, link)
    assert plain(plan['router'].values['slot_a']) == ['zenoh:/a/policy_server']
    assert plain(plan['a'].values['zenoh_listen']) == [link.endpoints['a']]
    assert plan['robot_1'].values['link'] == 'zenoh'

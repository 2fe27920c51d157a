# SPDX-License-Identifier: Apache-2.0
"""Where a trace is missing nothing is said that only it can tell."""

from __future__ import annotations

import pytest
from support.tools.diagnosis_rig import ROLES, scene, story_of

from lerobot_serve.tools.diagnosis.report import diagnosis_report, outcome
from lerobot_serve.tools.diagnosis.rules import RULES, RuleStatus

NAMES = [rule.name for rule in RULES]
# without the traces of these roles a rule must not say yes
NEEDS = {
    'server_overloaded': ('router', 'server'),
    'superseded_requests': ('router', 'server'),
    'router': ('router',),
    'network': ('edge',),
    'request_lost': ('edge',),
    'reply_lost': ('edge',),
    'session_lost': ('edge',),
    'cage': ('edge',),
    'control_steps_missed': ('edge',),
    'requests_start_late': ('edge',),
}


# a router that stands still and leaves no trace looks like a link that is cut
LOST_OTHERWISE = {'router_stopped': ('request_lost',)}


@pytest.mark.parametrize('trouble', NAMES)
@pytest.mark.parametrize('missing', ['edge', 'router', 'server', 'all but the edge'])
def test_nothing_is_said_without_the_trace_that_tells_it(trouble, missing, tmp_path):
    made = scene(trouble)
    for node, role in ROLES.items():
        is_kept = node == 'robot_1' if missing == 'all but the edge' else role != missing
        if not is_kept:
            del made.told[node]
    story = story_of(made, tmp_path, at='2026-07-30T14:00:26Z')
    there = {ROLES[node] for node in made.told}
    for result in story.causes:
        needs = NEEDS.get(result.rule.name, ())
        assert not needs or there & set(needs), result
        # another cause than the planted one is not invented where its witness is gone
        assert result.rule.name in (trouble, 'own_queue_wait', *LOST_OTHERWISE.get(trouble, ()))
    diagnosis_report(story).as_text()


def test_of_the_queue_of_others_nothing_is_told_without_a_server(tmp_path):
    made = scene('server_overloaded')
    del made.told['router'], made.told['server'], made.told['robot_2']
    story = story_of(made, tmp_path)
    says = {result.rule.name: result.status for result in story.results}
    assert says['server_overloaded'] is says['own_queue_wait'] is RuleStatus.NO_EVIDENCE
    assert outcome(story) == 'no_evidence'
    text = diagnosis_report(story).as_text()
    assert 'set trace_folder of policy_server' in text
    assert 'set trace_folder of policy_router' in text

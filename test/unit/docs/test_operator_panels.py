# SPDX-License-Identifier: Apache-2.0
"""
What operators open in rqt and Foxglove: every topic, field, service and panel named there exists,
and the files are what these programs read. Needs neither of them, and no ROS.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator
import json
from pathlib import Path
import re
import runpy
from typing import Any, NamedTuple

import pytest
import setuptools
from support.docs.operator_panels_rig import (
    CONSTANT,
    EDGE,
    field,
    fields_of,
    INTERFACES,
    NUMBERS,
    of_rqt_plot,
    ROOT,
    ROUTER,
    SERVICES,
    TOPICS,
    WORDS,
)

PERSPECTIVE = 'config/rqt/lerobot_serve.perspective'
LAYOUT = 'config/foxglove/lerobot_serve.json'
# of rqt_common_plugins, which every desktop installation has, with the name of its dock: where one
# plugin is missing rqt restores the settings of none
RQT = {
    'rqt_console/Console': 'ConsoleWidget',
    'rqt_image_view/ImageView': 'ImageViewWidget',
    'rqt_plot/Plot': 'DataPlotWidget',
    'rqt_reconfigure/Param': '_plugincontainer_top_widget',
    'rqt_service_caller/ServiceCaller': 'ServiceCallerWidget',
    'rqt_topic/TopicPlugin': 'TopicWidget',
}
FOXGLOVE = {
    'CallService': {'serviceName', 'requestPayload', 'buttonText'},
    'DiagnosticSummary': {'topicToRender', 'minLevel', 'pinnedIds', 'hardwareIdFilter'},
    'Image': {'imageMode'},
    'Parameters': set(),
    'Plot': {'paths', 'xAxisVal', 'isSynced', 'showLegend'},
    'RawMessages': {'topicPath', 'diffEnabled', 'diffMethod', 'diffTopicPath'},
    'StateTransitions': {'paths', 'isSynced'},
}


@pytest.mark.parametrize(('name', 'made'), [*TOPICS.items(), *SERVICES.items()])
def test_the_names_are_those_of_the_nodes(name, made):
    _, file, words = made
    source = (ROOT / 'lerobot_serve' / file).read_text()
    assert words in re.sub(r'\(\s+', '(', re.sub(r'\s+', ' ', source)), name
    launched = (ROOT / 'launch' / 'fleet.launch.py').read_text()
    assert "f'robot_{index + 1}'" in launched
    assert "'edge_controller'" in launched


@pytest.mark.parametrize(
    'path',
    [
        f'{EDGE}/state.nothing',
        f'{EDGE}/nothing.state',
        f'{EDGE}/state.drops.count',
        f'{EDGE}/state.rung[0]',
        f'{ROUTER}/state.slots[:]{{state=="a"}}.share_percent',
        f'{ROUTER}/state.slots[:].share_percent!',
    ],
)
def test_a_path_that_leads_nowhere_is_found(path):
    with pytest.raises((AssertionError, KeyError)):
        field(path)


def test_both_files_are_installed(monkeypatch):
    given: dict[str, Any] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, 'setup', lambda **words: given.update(words))
    runpy.run_path('setup.py')
    installed = {
        f'{target}/{Path(file).name}' for target, files in given['data_files'] for file in files
    }
    assert {f'share/lerobot_serve/{file}' for file in (PERSPECTIVE, LAYOUT)} <= installed


# rqt


class Group(NamedTuple):
    keys: dict[str, Any]
    groups: dict[str, Group]


def imported(node: dict[str, Any]) -> Group:
    """Return what rqt would make of a group: it evaluates the text of each value."""
    assert set(node) == {'keys', 'groups'}
    assert not any('/' in name for part in node.values() for name in part)
    keys = {name: value_of(value) for name, value in node['keys'].items()}
    return Group(keys, {name: imported(below) for name, below in node['groups'].items()})


def value_of(value: dict[str, str]) -> Any:
    kind = value['type']
    assert kind in ('repr', 'repr(QByteArray.hex)')
    if kind == 'repr':
        return literal_eval(value['repr'])
    data = re.fullmatch(r"QtCore\.QByteArray\((b'[0-9a-f]*')\)", value[kind])
    return bytes.fromhex(literal_eval(data[1]).decode())


@pytest.fixture(scope='module')
def perspective() -> Group:
    return imported(json.loads((ROOT / PERSPECTIVE).read_text()))


@pytest.fixture(scope='module')
def plugins(perspective) -> dict[str, list[int]]:
    """Return the panels that rqt opens, with the numbers of each kind."""
    return perspective.groups['pluginmanager'].keys['running-plugins']


def tidy(plugin: str, number: int) -> str:
    return f'{plugin.replace("/", "__")}__{number}'


def settings(perspective: Group, plugin: str) -> Iterator[dict[str, Any]]:
    """Return what each panel of a kind is told."""
    name = plugin.replace('/', '__')
    for key, group in perspective.groups['pluginmanager'].groups.items():
        if re.fullmatch(rf'plugin__{name}__\d+', key):
            yield group.groups['plugin'].keys


def test_the_perspective_is_two_groups(perspective):
    assert perspective.keys == {}
    assert set(perspective.groups) == {'mainwindow', 'pluginmanager'}


def test_every_panel_of_rqt_is_one_that_everybody_has(perspective, plugins):
    assert set(plugins) <= set(RQT)
    running = {f'plugin__{tidy(name, n)}' for name, numbers in plugins.items() for n in numbers}
    assert set(perspective.groups['pluginmanager'].groups) <= running


def test_the_window_has_a_place_for_every_panel(perspective, plugins):
    state = perspective.groups['mainwindow'].keys['state']
    for name, numbers in plugins.items():
        for number in numbers:
            # as Qt writes texts
            dock = f'{tidy(name, number)}__{RQT[name]}'.encode('utf-16-be')
            assert len(dock).to_bytes(4, 'big') + dock in state


def test_every_plot_of_rqt_is_a_number(perspective, plugins):
    plots = list(settings(perspective, 'rqt_plot/Plot'))
    assert len(plots) == len(plugins['rqt_plot/Plot']) > 0
    for plot in plots:
        assert isinstance(plot['autoscroll'], bool)
        assert len(plot['x_limits']) == 2
        for topic in plot['topics']:
            found = field(of_rqt_plot(topic))
            assert found.type in NUMBERS
            assert not found.is_list


def test_rqt_asks_for_what_there_is(perspective):
    (image,) = settings(perspective, 'rqt_image_view/ImageView')
    assert TOPICS[image['topic']][0] == 'sensor_msgs/Image'
    (caller,) = settings(perspective, 'rqt_service_caller/ServiceCaller')
    assert caller['current_service_name'] in SERVICES
    (nodes,) = settings(perspective, 'rqt_reconfigure/Param')
    assert set(nodes['selected_nodes']) == {EDGE, ROUTER}


# Foxglove


@pytest.fixture(scope='module')
def layout() -> dict[str, Any]:
    return json.loads((ROOT / LAYOUT).read_text())


def kind(panel: str) -> str:
    return panel.partition('!')[0]


def panels(layout: dict[str, Any], *kinds: str) -> Iterator[dict[str, Any]]:
    for panel, config in layout['configById'].items():
        if kind(panel) in kinds:
            yield config


def leaves(node: Any) -> Iterator[str]:
    """Return the panels of a tree, whose knots are halves."""
    if isinstance(node, str):
        yield node
        return
    assert set(node) == {'direction', 'first', 'second', 'splitPercentage'}
    assert node['direction'] in ('row', 'column')
    assert 0 < node['splitPercentage'] < 100
    for half in ('first', 'second'):
        yield from leaves(node[half])


def test_the_layout_shows_every_panel_once(layout):
    assert set(layout) == {
        'configById',
        'globalVariables',
        'userNodes',
        'playbackConfig',
        'layout',
    }
    assert sorted(leaves(layout['layout'])) == sorted(layout['configById'])


def test_every_panel_of_foxglove_is_known_and_told_what_it_needs(layout):
    for panel, config in layout['configById'].items():
        assert re.fullmatch(r'\w+!\w+', panel)
        assert FOXGLOVE[kind(panel)] <= set(config), panel
        # Lichtblick, its open fork, calls it by its own name
        assert config['foxglovePanelTitle'] == config['lichtblickPanelTitle'] != ''


def test_every_path_leads_to_something_to_see(layout):
    allowed = {'Plot': NUMBERS, 'StateTransitions': NUMBERS | WORDS}
    for name, types in allowed.items():
        for config in panels(layout, name):
            for path in config['paths']:
                assert path['timestampMethod'] == 'receiveTime'
                found = field(path['value'])
                assert found.type in types, path
                assert not found.is_list, path


def test_the_other_panels_have_topics_of_their_type(layout):
    for config in panels(layout, 'RawMessages'):
        field(config['topicPath'])
    for config in panels(layout, 'DiagnosticSummary'):
        assert TOPICS[config['topicToRender']][0] == 'diagnostic_msgs/DiagnosticArray'
    for config in panels(layout, 'Image'):
        assert TOPICS[config['imageMode']['imageTopic']][0] == 'sensor_msgs/Image'


def test_every_button_calls_a_service_as_it_wants_to_be_called(layout):
    for config in panels(layout, 'CallService'):
        service = SERVICES[config['serviceName']][0]
        request = json.loads(config['requestPayload'])
        if service == 'std_srvs/Trigger':
            assert request == {}
            continue
        asked = (INTERFACES / 'srv' / f'{service}.srv').read_text().partition('---')[0]
        assert set(request) == set(fields_of(asked))
        constants = {int(value): name for name, value in CONSTANT.findall(asked)}
        # what the button says is what it does
        assert constants[request['command']].lower() == config['buttonText'].split()[0]
        assert config['buttonText'].split()[-1] == request['slot']

# SPDX-License-Identifier: Apache-2.0
"""The pages: lines, diagrams, pictures, their places in the site, and what they list."""

from __future__ import annotations

import importlib.util
from pathlib import Path
import re

import pytest
from support.docs.docs_rig import REPOSITORY
import yaml

from lerobot_serve.edge.decisions import Decision
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.learner.memory import PAUSED
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.storage import postgres, records, sqlite_rows
from lerobot_serve.tools.reference.diagrams import DIAGRAMS, with_diagrams
from lerobot_serve.tools.reference.pages import DURABLE_STATES, EDGE, LEARNER, ROUTER

LINE_LENGTH = 100
DOCS = REPOSITORY / 'docs'
PAGES = sorted(page.name for page in DOCS.glob('*.md'))
# tables with a row for each parameter or field
GENERATED = {'parameters.md', 'messages.md', 'durable_state.md'}
# rows of tables that cannot be broken; fewer are welcome
LONG_ROWS = {'decisions.md': 13}
# what a diagram begins with
KINDS = ('flowchart', 'sequenceDiagram', 'stateDiagram-v2')
MERMAID = {name: re.findall(r'```mermaid\n(.*?)```', (DOCS / name).read_text(), re.DOTALL)
           for name in PAGES}  # fmt: skip


def long_lines(page: str) -> tuple[int, int]:
    """Return the counts of long rows of tables and of other long lines; output is as printed."""
    text = re.sub(r'^```console\n.*?^```', '', page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if len(line) > LINE_LENGTH]
    rows = sum(line.startswith('|') for line in lines)
    return rows, len(lines) - rows


@pytest.mark.parametrize('name', ['../README.md', *(n for n in PAGES if n not in GENERATED)])
def test_lines_have_at_most_100_characters(name):
    rows, others = long_lines((DOCS / name).read_text())
    assert rows <= LONG_ROWS.get(name, 0)
    assert not others


@pytest.mark.parametrize('name', ['new_version.md', 'operate.md', 'quick_start.md'])
def test_pages_of_operators_need_verbs_alone(name):
    """No service, topic or parameter by hand, and no number of a command."""
    assert name == 'operate.md' or 'ros2 ' not in read(name)
    assert not re.findall(r'ros2 (?:service|topic|param|lifecycle) \w+ /', read(name))
    assert not re.findall(r'command: \d|outcome: \d', read(name))


def test_a_long_line_is_found_and_output_is_not_counted():
    line = 'x' * (LINE_LENGTH + 1)
    assert long_lines(f'|{line}\n{line}\n```\n{line}\n```\n```console\n$ a\n{line}\n```') == (1, 2)


@pytest.mark.parametrize('name', PAGES)
def test_diagrams_of_tables_are_those_of_the_code(name):
    page = (DOCS / name).read_text()
    assert with_diagrams(page) == page, 'run `make docs`'


def test_each_generated_diagram_is_in_one_page():
    marked = [name for page in PAGES for name in re.findall('<!-- diagram: (.*?) -->', read(page))]
    assert sorted(marked) == sorted(DIAGRAMS)


@pytest.mark.parametrize(
    ('name', 'states'), [('connection', ConnectionState), ('canary', CanaryPhase)]
)
def test_a_diagram_has_every_state(name, states):
    drawn = DIAGRAMS[name]()
    assert set(re.findall(r'^    (\w+) --> ', drawn, re.MULTILINE)) | set(
        re.findall(r'--> (\w+):', drawn)
    ) == {state.name for state in states}


@pytest.mark.parametrize(
    ('page', 'name'), [('edge_controller.md', 'connection'), ('canary.md', 'canary')]
)
def test_every_event_of_a_diagram_is_explained(page, name):
    drawn = re.findall(r'^    \w+ --> \w+: (.*)$', DIAGRAMS[name](), re.MULTILINE)
    assert drawn
    for event in {event for label in drawn for event in label.split(', ')}:
        assert f'| {event} |' in read(page), event


@pytest.mark.parametrize('name', [n for n in PAGES if n not in GENERATED])
def test_modules_and_tests_that_a_page_names_exist(name):
    for path in re.findall(r'`((?:[\w*]+/)*[\w*]+\.py)`', read(name)):
        folders = (REPOSITORY, REPOSITORY / 'lerobot_serve')
        if '/' in path:
            assert any(next(folder.glob(path), None) for folder in folders), path
        else:
            folders = (REPOSITORY / 'test', REPOSITORY / 'lerobot_serve')
            assert any(next(folder.rglob(path), None) for folder in folders), path


def test_an_unknown_diagram_is_an_error():
    with pytest.raises(KeyError):
        with_diagrams('<!-- diagram: nothing -->\n```mermaid\nflowchart\n```\n')


def test_diagrams_are_of_kinds_that_the_site_can_draw():
    assert sum(map(len, MERMAID.values())) >= 5
    for name, diagrams in MERMAID.items():
        for diagram in diagrams:
            assert diagram.startswith(KINDS), name


def test_the_site_has_every_page_and_is_strict():
    text = (REPOSITORY / 'mkdocs.yml').read_text()
    # names of Python objects are for mkdocs
    config = yaml.safe_load(text.replace('!!python/name:', ''))
    assert config['strict'] is True
    # without `offline` the search of out/site/index.html has no index
    assert config['plugins'] == ['search', 'offline']
    assert set(config['validation'].values()) == {'warn'}
    listed = [page for group in config['nav'] for page in flat(next(iter(group.values())))]
    assert len(listed) == len(set(listed))
    assert set(PAGES) <= set(listed)
    tops = {page.upper().replace('.MD', '.md') for page in set(listed) - set(PAGES)}
    # docs/ has a security.md of its own
    tops = {top.replace('SECURITY_POLICY', 'SECURITY') for top in tops}
    assert tops - {'INDEX.md'} <= {file.name for file in REPOSITORY.glob('*.md')}


@pytest.mark.parametrize('script', ['@mermaid-js/tiny', 'iframe-worker'])
def test_the_scripts_of_the_site_are_pinned(script):
    pins = (REPOSITORY / 'requirements.txt').read_text().partition('# [docs]')[2]
    assert re.search(rf'^# npm: {script}@\d+\.\d+\.\d+$', pins, re.MULTILINE)


def flat(pages: str | list[str]) -> list[str]:
    return [pages] if isinstance(pages, str) else pages


def read(name: str) -> str:
    return (DOCS / name).read_text()


VIEW = re.compile(r"^    \['(\w+)', '\w+'\],$", re.MULTILINE)
PAGE = REPOSITORY / 'lerobot_serve' / 'tools' / 'dashboard' / 'page' / 'index.html'


def views() -> list[str]:
    """Return the views of the page, as its navigation has them."""
    listed = PAGE.read_text().partition('const VIEWS = [')[2].partition('];')[0]
    return VIEW.findall(listed)


def test_each_picture_is_on_a_page():
    texts = ''.join(page.read_text() for page in [*DOCS.glob('*.md'), REPOSITORY / 'README.md'])
    assert [file.name for file in (DOCS / 'images').iterdir() if file.name not in texts] == []


def test_the_dashboard_has_a_picture_of_each_view_in_both_themes():
    assert len(views()) == 6
    wanted = {f'dashboard_{view}_{theme}.png' for view in views() for theme in ('dark', 'light')}
    assert {file.name for file in (DOCS / 'images').glob('dashboard_*')} == wanted


def test_the_script_that_draws_them_has_all_views_and_its_data():
    pytest.importorskip('PIL', reason='Pillow comes with torch, which is not installed')
    file = REPOSITORY / '.ci' / 'screenshots.py'
    spec = importlib.util.spec_from_file_location('screenshots', file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sorted(module.VIEWS) == sorted(views())
    assert {'robots', 'routers'} <= module.example_sections().keys()


RECORDS_OF_ROUTER = {records.PARAMETER, records.DRAIN, records.VERDICT, records.CANARY}
# the kinds are rows of `decisions`; the others protect, or say who uses the state
OTHERS = {'decisions', 'seal', 'members', 'store'}


def listed(node: str) -> set[str]:
    return {each.kind for each in DURABLE_STATES if each.node == node}


@pytest.mark.parametrize('source', [sqlite_rows, postgres])
def test_each_table_of_a_router_is_listed(source):
    text = Path(source.__file__).read_text()
    made = set(re.findall(r'CREATE TABLE (?:IF NOT EXISTS )?(\w+)', text))
    assert listed(ROUTER) == RECORDS_OF_ROUTER | (made - OTHERS)


def test_each_decision_of_a_robot_is_listed():
    assert listed(EDGE) == {each.file for each in Decision}
    assert listed(LEARNER) == {PAUSED}

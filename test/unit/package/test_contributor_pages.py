# SPDX-License-Identifier: Apache-2.0
"""The pages for contributors: what they name exists, and can be found where they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import re

import pytest
from support.paths import REPOSITORY
import yaml

from lerobot_serve.tools.cli.installed_verbs import installed_verbs

PAGES = [
    *('CONTRIBUTING.md', 'QUALITY_DECLARATION.md', 'SECURITY.md', 'CHANGELOG.md'),
    *('.github/PULL_REQUEST_TEMPLATE.md', 'docs/decisions.md'),
]
# pages that say what is, and not what was
CURRENT = ['CONTRIBUTING.md', 'QUALITY_DECLARATION.md', 'SECURITY.md']
TOP = {file.name for file in REPOSITORY.iterdir()}
QUESTIONS = [
    'Where is a request hedged?',
    'What stops a stale action?',
    'Show a new field of a message',
    'Add a new codec',
    'Add a command type',
    'Add a policy kind',
]
# in which files a path may name a word
SOURCES = {'.py', '.msg', '.srv', '.md', '.xml', '.yaml', '.cfg', '.txt'}
FORMS = sorted((REPOSITORY / '.github' / 'ISSUE_TEMPLATE').glob('*_*.yml'))
STATUSES = ('accepted', 'superseded', 'under review')


def text(page: str) -> str:
    return (REPOSITORY / page).read_text()


def quoted(page: str) -> list[str]:
    """Return what stands in `...` of a page, outside of blocks."""
    return re.findall(r'`([^`\n]+)`', re.sub(r'^```.*?^```', '', text(page), flags=re.M | re.S))


def is_path(word: str) -> bool:
    """Return whether a word is meant as a file or a folder of the repository."""
    return bool(re.fullmatch(r'[\w./-]+', word)) and word.split('/')[0] in TOP


@pytest.mark.parametrize('page', CURRENT)
def test_every_file_and_folder_that_is_named_exists(page):
    paths = {word for word in quoted(page) if is_path(word)}
    assert paths or page == 'SECURITY.md'
    assert not [path for path in paths if not (REPOSITORY / path).exists()]


def test_every_folder_of_the_map_exists():
    rows = re.findall(r'^\| (`lerobot_serve/[^|]+) \| ([^|]+) \|', text('CONTRIBUTING.md'), re.M)
    assert len(rows) >= 10
    for rooms, content in rows:
        room = re.findall(r'`([^`]+)`', rooms)[0]
        inner = [word for word in re.findall(r'`([^`]+)`', content) if word.endswith(('/', '.py'))]
        for name in inner:
            where = REPOSITORY if name == 'docs/' else REPOSITORY / room
            assert (where / name).exists(), f'{room} {name}'


def test_every_room_is_on_the_map():
    named = {word.rstrip('/') for word in quoted('CONTRIBUTING.md')}
    rooms = {
        str(folder.relative_to(REPOSITORY))
        for folder in (REPOSITORY / 'lerobot_serve').iterdir()
        if (folder / '__init__.py').exists()
    }
    assert rooms <= named


@pytest.mark.parametrize('page', PAGES)
def test_every_link_leads_somewhere(page):
    here = (REPOSITORY / page).parent
    for target in re.findall(r'\]\(([^)#\s]+)', text(page)):
        if '://' not in target:
            assert (here / target).exists() or (REPOSITORY / target).exists(), target


@pytest.mark.parametrize('page', [*PAGES, *(f'.github/ISSUE_TEMPLATE/{f.name}' for f in FORMS)])
def test_lines_outside_of_tables_have_at_most_100_characters(page):
    lines = text(page).splitlines()
    assert not [line for line in lines if len(line) > 100 and not line.startswith('|')]


def steps(question: str) -> list[str]:
    """Return the steps of one of the six paths, each as one line."""
    section = text('CONTRIBUTING.md').partition(f'**{question}**')[2]
    section = re.split(r'^(?:\*\*|## )', section, maxsplit=1, flags=re.M)[0]
    return [' '.join(step.split()) for step in re.split(r'^\d+\. ', section, flags=re.M)[1:]]


def named_in(step: str) -> Iterator[tuple[Path, str]]:
    """Yield each name of a step with the path before it."""
    where = None
    for word in re.findall(r'`([^`]+)`', step):
        if is_path(word):
            where = REPOSITORY / word
        elif where and re.fullmatch(r'[A-Za-z_.]+', word):
            yield where, word


def occurs(name: str, where: Path) -> bool:
    """
    Return whether a name is a word in a file, or the name of a file, at or below a path; of
    `Class.method`, whether one file defines both.
    """
    files = [where] if where.is_file() else [f for f in where.rglob('*') if f.is_file()]
    sources = [file for file in files if file.suffix in SOURCES]
    words = re.fullmatch(r'([A-Z]\w+)\.(\w+)', name)
    texts = (
        [rf'^class {words[1]}\b', rf'^    def {words[2]}\b']
        if words
        else [rf'(?<!\w){re.escape(name)}(?!\w)']
    )
    return any(
        file.stem == name or all(re.search(text, file.read_text(), re.M) for text in texts)
        for file in sources
    )


@pytest.mark.parametrize('question', QUESTIONS)
def test_a_path_leads_to_what_it_names(question):
    found = steps(question)
    assert 4 <= len(found) <= 10
    names = [pair for step in found for pair in named_in(step)]
    assert len(names) >= 4
    assert not [f'{name} in {where}' for where, name in names if not occurs(name, where)]


@pytest.mark.parametrize('question', QUESTIONS)
def test_a_file_that_a_path_names_exists(question):
    words = [word for step in steps(question) for word in re.findall(r'`([^`]+)`', step)]
    files = [word for word in words if Path(word).suffix in SOURCES or word.endswith('/')]
    assert len(files) >= 8
    assert not [file for file in files if not is_path(file) or not (REPOSITORY / file).exists()]


def test_a_name_that_is_not_there_is_found_out():
    assert not occurs('NoSuchName', REPOSITORY / 'lerobot_serve' / 'contract')
    assert not occurs('Cod', REPOSITORY / 'lerobot_serve' / 'contract')
    assert occurs('Codec', REPOSITORY / 'lerobot_serve' / 'contract')
    assert occurs('ImageCodecPool.encode_all', REPOSITORY / 'lerobot_serve' / 'contract')
    assert not occurs('ImageCodecPool.decode_some', REPOSITORY / 'lerobot_serve' / 'contract')


@pytest.mark.parametrize('form', FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_one_that_can_be_shown(form):
    content = yaml.safe_load(form.read_text())
    assert {'name', 'description', 'labels', 'body'} == set(content)
    fields = [entry for entry in content['body'] if entry['type'] != 'markdown']
    ids = [entry['id'] for entry in fields]
    assert len(set(ids)) == len(ids) >= 3
    for entry in fields:
        assert entry['type'] in ('textarea', 'input', 'dropdown')
        assert entry['attributes']['label']
        assert entry['type'] != 'dropdown' or len(entry['attributes']['options']) > 1


@pytest.mark.parametrize('form', FORMS, ids=lambda form: form.stem)
def test_an_issue_form_names_what_exists(form):
    content = form.read_text()
    for verb in re.findall(r'lerobot-serve (?!-)([a-z]+)', content):
        assert verb in installed_verbs()
    for page in re.findall(r'\b(?:docs/)?[\w.-]+\.md\b', content):
        assert (REPOSITORY / page).exists(), page


def test_every_decision_has_its_number_a_status_and_alternatives():
    records = re.split(r'^### ', text('docs/decisions.md'), flags=re.M)[1:]
    titles = [record.partition('\n')[0] for record in records]
    numbers = [int(title.partition('. ')[0]) for title in titles]
    assert sorted(numbers) == list(range(1, len(records) + 1))
    for title, record in zip(titles, records, strict=True):
        status = re.search(r'^Status: ([a-z ]+?)(?: by (\d+))?\. Alternatives: \S', record, re.M)
        assert status, title
        assert status[1] in STATUSES, title
        assert (status[1] == 'superseded') == bool(status[2]), title
        assert not status[2] or int(status[2]) in numbers, title

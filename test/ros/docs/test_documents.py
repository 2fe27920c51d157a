# SPDX-License-Identifier: Apache-2.0
"""What the documents say of the code is made from the code."""

from __future__ import annotations

import re

import pytest

from lerobot_serve.tools.cli.installed_verbs import installed_verbs
from lerobot_serve.tools.reference import pages
from lerobot_serve.tools.reference.interface_files import KINDS


@pytest.mark.parametrize('name', pages.PAGES)
def test_what_is_made_from_the_code_is_up_to_date(name, repository):
    page = (repository / 'docs' / name).read_text()
    assert page == pages.PAGES[name](), 'run `make docs`'


def test_the_classes_of_messages_are_those_of_the_interface_files(repository):
    assert (repository / pages.CLASSES).read_text() == pages.message_classes(), 'run `make docs`'


def test_every_interface_is_in_the_reference_with_where_it_is_met(repository):
    page = (repository / 'docs' / 'messages.md').read_text()
    chapters = {part.split('\n')[0]: part for part in page.split('\n### ')[1:]}
    files = [
        f for f in (repository / 'lerobot_serve_interfaces').glob('*/*') if f.parent.name in KINDS
    ]
    assert {file.stem for file in files} == set(chapters)
    for name, chapter in chapters.items():
        assert re.search(
            r'^\*(Published|Subscribed|Service|Action|Part)', chapter, re.MULTILINE
        ), name


@pytest.mark.parametrize('verb', installed_verbs())
def test_every_verb_has_help_with_an_example(verb, capsys):
    from lerobot_serve.tools.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main([verb, '--help'])
    assert ended.value.code == 0
    assert 'example: lerobot-serve' in capsys.readouterr().out


def test_links_in_the_documents_lead_somewhere(repository):
    for page in [*repository.glob('*.md'), *(repository / 'docs').glob('*.md')]:
        for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text()):
            if '://' in target:
                continue
            name, _, place = target.partition('#')
            file = page.parent / name if name else page
            assert file.exists(), f'{page.name}: {target}'
            assert not place or place in places(file.read_text()), f'{page.name}: {target}'


def places(page: str) -> set[str]:
    """Return what a link may name behind its #: the headings, as GitHub writes them."""
    headings = re.findall(r'^#+ (.*)$', page, re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}

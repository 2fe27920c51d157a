"""What the documents say of the code is made from the code."""

from __future__ import annotations

import re

import pytest

from lerobot_serve.cli import docs
from lerobot_serve.cli.main import VERBS


def test_the_parameter_reference_is_up_to_date(repository):
    page = (repository / 'docs' / 'parameters.md').read_text()
    assert page == docs.reference(), 'run `make docs`'


@pytest.mark.parametrize('verb', VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys):
    from lerobot_serve.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main([verb, '--help'])
    assert ended.value.code == 0
    assert 'example: lerobot-serve' in capsys.readouterr().out


def test_links_in_the_documents_lead_somewhere(repository):
    for page in [*repository.glob('*.md'), *(repository / 'docs').glob('*.md')]:
        for target in re.findall(r'\]\(([^)#\s]+)\)', page.read_text()):
            if '://' not in target:
                assert (page.parent / target).exists(), f'{page.name}: {target}'

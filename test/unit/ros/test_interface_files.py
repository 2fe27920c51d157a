# SPDX-License-Identifier: Apache-2.0
"""The reference of messages is made of what stands in the interface files."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lerobot_serve.tools.reference.interface_files import KINDS, parse, read, reference

ABOUT = '# One thing.\n#\n# And more\n# of it.\n\n'


def entries(content: str) -> list:
    return parse('Thing', ABOUT + content).parts[0].entries


def test_the_first_block_is_about_the_whole():
    assert parse('Thing', ABOUT).about == 'One thing.\n\nAnd more of it.'


def test_a_comment_belongs_to_the_line_below_it():
    first, second = entries('# how long\n# it took [s]\nfloat32 took_s\nuint8 other\n')
    assert (first.name, first.text) == ('took_s', 'how long it took [s]')
    assert (second.name, second.text) == ('other', '')


@pytest.mark.parametrize(
    ('line', 'kind', 'bound'),
    [
        ('string<=16 slot', 'string', 'at most 16 bytes'),
        ('string<=16[] slots', 'string[]', 'each at most 16 bytes'),
        ('float32[] state', 'float32[]', ''),
        ('builtin_interfaces/Time stamp', 'builtin_interfaces/Time', ''),
    ],
)
def test_types_and_bounds(line, kind, bound):
    (entry,) = entries(f'{line}\n')
    assert (entry.type, entry.bound) == (kind, bound)


def test_constants_know_whose_they_are():
    content = '# values of state: in words\n# is well\nuint8 WELL=1\nuint8 ILL=2\n\nuint8 state\n'
    (part,) = parse('Thing', ABOUT + content).parts
    well, ill, field = part.entries
    assert (well.of, well.value, well.text) == ('state', '1', 'is well')
    assert (ill.of, ill.value, ill.text) == ('state', '2', '')
    assert (field.of, field.value, field.name) == ('', '', 'state')
    assert part.groups == {'state': 'in words'}


def test_the_parts_of_a_service_are_kept_apart():
    parts = parse(
        'Ask', f'{ABOUT}# values of kind\nuint8 ONE=1\nuint8 kind\n---\nbool done\n'
    ).parts
    assert [[entry.name for entry in part.entries] for part in parts] == [
        ['ONE', 'kind'],
        ['done'],
    ]
    assert parts[1].entries[0].of == ''


def test_a_line_that_is_none_is_refused():
    with pytest.raises(ValueError, match='not a line'):
        entries('what is this?\n')


def test_every_file_of_ours_is_in_the_page(repository):
    folder = repository / 'lerobot_serve_interfaces'
    page = reference(folder)
    found = read(folder)
    assert sum(map(len, found.values())) == len(
        [file for kind in KINDS for file in folder.glob(f'{kind}/*')]
    )
    for interface in (each for kind in found.values() for each in kind):
        assert f'\n### {interface.name}\n\n{interface.about}\n' in page
        for entry in (entry for part in interface.parts for entry in part.entries):
            assert f'`{entry.name}`' in page


def test_constants_stand_right_before_their_field(repository):
    """Where they do, Foxglove and others show the name in place of the number."""
    found = read(repository / 'lerobot_serve_interfaces')
    groups = 0
    for interface in (each for kind in found.values() for each in kind):
        for part in interface.parts:
            for entry, after in pairwise(part.entries):
                if entry.value:
                    assert after.type == entry.type, (interface.name, entry.name)
                    assert entry.of in (after.of, after.name), (interface.name, entry.name)
                    groups += not after.value
            assert not (part.entries and part.entries[-1].value), interface.name
    assert groups == sum(len(p.groups) for kind in found.values() for e in kind for p in e.parts)

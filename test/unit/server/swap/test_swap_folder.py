# SPDX-License-Identifier: Apache-2.0
"""A swap finds a folder below policy_root, and nothing outside of it by any way."""

from __future__ import annotations

import pytest

from lerobot_serve.server.swap.swap_folder import folder_below, SwapRefused


@pytest.fixture
def root(tmp_path):
    """A root with one policy, and another policy outside of it."""
    (tmp_path / 'root' / 'pick').mkdir(parents=True)
    (tmp_path / 'root' / 'pick' / 'model').write_text('weights')
    (tmp_path / 'secret').mkdir()
    (tmp_path / 'secret' / 'model').write_text('weights')
    return tmp_path / 'root'


def test_a_folder_is_given_relative_or_absolute(root):
    assert folder_below(str(root), 'pick') == root / 'pick'
    assert folder_below(str(root), str(root / 'pick')) == root / 'pick'
    assert folder_below(str(root), '../root/pick/') == root / 'pick'


def test_the_root_may_be_a_link_and_so_may_a_folder_within_it(root):
    link = root.parent / 'link'
    link.symlink_to(root)
    (root / 'latest').symlink_to(root / 'pick')
    assert folder_below(str(link), 'latest') == root / 'pick'


@pytest.mark.parametrize(
    ('given', 'text'),
    [
        ('', 'must name a folder below policy_root'),
        ('pi\0ck', 'must name a folder below policy_root'),
        ('../secret', 'copy the policy there'),
        ('/etc', 'copy the policy there'),
        ('.', 'copy the policy there'),
        ('pick/../../secret', 'copy the policy there'),
        ('door', 'copy the policy there'),
        ('place', 'is not a folder'),
        ('pick/model', 'is not a folder'),
    ],
)
def test_everything_else_is_refused(root, given, text):
    (root / 'door').symlink_to(root.parent / 'secret')
    with pytest.raises(SwapRefused, match=text):
        folder_below(str(root), given)


def test_a_sibling_whose_name_begins_as_the_root_is_not_below_it(root):
    (root.parent / 'root2').mkdir()
    with pytest.raises(SwapRefused, match='copy the policy there'):
        folder_below(str(root), '../root2')


def test_without_a_root_the_text_says_how_to_set_it():
    with pytest.raises(SwapRefused, match=r'policy_root is empty.*restart it with policy_root'):
        folder_below('', '/etc')


def test_in_a_store_a_version_is_given_as_everywhere(tmp_path):
    ids = ('pick@0123456789abcdef', 'place@fedcba9876543210')
    for name in ids:
        (tmp_path / name).mkdir()
    (tmp_path / '.store').mkdir()
    (tmp_path / '.store' / 'lock').touch()
    root = str(tmp_path)
    for given in (ids[0], 'pick', '0123', str(tmp_path / ids[0])):
        assert folder_below(root, given) == tmp_path / ids[0]
    with pytest.raises(SwapRefused, match='is not in the store'):
        folder_below(root, 'unknown')
    with pytest.raises(SwapRefused, match='give more of the id'):
        folder_below(root, 'p')

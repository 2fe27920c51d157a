# SPDX-License-Identifier: Apache-2.0
"""A swap finds a folder below policy_root, and nothing outside of it by any way."""

from __future__ import annotations

import pytest

from lerobot_serve.server.swap import swap_folder
from lerobot_serve.server.swap.swap_folder import check_links, folder_below, SwapRefused


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
    check_links(str(link), root / 'pick')


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


def test_a_file_that_links_to_the_outside_is_refused(root):
    inner = root / 'pick' / 'inner'
    inner.mkdir()
    (inner / 'inside').symlink_to(root / 'pick' / 'model')
    check_links(str(root), root / 'pick')
    (inner / 'outside').symlink_to(root.parent / 'secret' / 'model')
    with pytest.raises(SwapRefused, match=r'outside.* is a link to outside of policy_root'):
        check_links(str(root), root / 'pick')


def test_a_folder_that_links_to_the_outside_is_refused(root):
    (root / 'pick' / 'inner').symlink_to(root.parent / 'secret')
    with pytest.raises(SwapRefused, match='is a link to outside'):
        check_links(str(root), root / 'pick')


def test_a_folder_of_very_many_files_is_no_policy(root, monkeypatch):
    monkeypatch.setattr(swap_folder, 'MAX_FILES', 3)
    for number in range(3):
        (root / 'pick' / str(number)).touch()
    with pytest.raises(SwapRefused, match='more than 3 files'):
        check_links(str(root), root / 'pick')

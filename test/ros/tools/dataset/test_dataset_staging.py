# SPDX-License-Identifier: Apache-2.0
"""The folder beside a dataset: whose content is removed, and what a kill leaves."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from lerobot_serve.tools.dataset.episodes import DatasetError
from lerobot_serve.tools.dataset.staging import Staging
from lerobot_serve.tools.processes import end_with_parent

EPISODE = 'ab' * 16


def staging_of(out: Path) -> Path:
    return out.with_name(f'{out.name}.staging')


@pytest.mark.parametrize('other', ['notes.txt', 'merged2', 'thesis.part', EPISODE[:-1]])
def test_a_folder_with_content_of_others_is_refused_and_left_as_it_is(tmp_path, other):
    folder = staging_of(tmp_path / 'out')
    (folder / 'merged').mkdir(parents=True)
    (folder / other).mkdir()
    for _ in range(2):
        with pytest.raises(DatasetError, match=f"has other content: .*'{other}'"):
            Staging(tmp_path / 'out').__enter__()
    assert {path.name for path in folder.iterdir()} == {'merged', other}


def test_what_comes_in_during_a_conversion_stays(tmp_path):
    folder = staging_of(tmp_path / 'out')
    with Staging(tmp_path / 'out') as staging:
        staging.merged.mkdir()
        staging.part(EPISODE).mkdir()
        (folder / 'notes.txt').write_text('mine')
        staging.publish()
    assert (tmp_path / 'out').is_dir()
    assert [path.name for path in folder.iterdir()] == ['notes.txt']


def test_an_unused_folder_is_removed_with_its_cache(tmp_path):
    with Staging(tmp_path / 'out') as staging:
        (staging.cache / 'x').mkdir(parents=True)
        staging.remove_if_empty()
    assert not list(tmp_path.iterdir())


def test_a_kill_while_the_folder_is_removed_leaves_nothing_behind(tmp_path):
    """The dataset is in its place; the episodes are in it."""
    folder = staging_of(tmp_path / 'out')
    (tmp_path / 'out').mkdir()
    (folder / EPISODE).mkdir(parents=True)
    (folder / EPISODE / 'episode.json').write_text('{}')
    (folder / 'previous').mkdir()
    (folder / 'published').touch()
    with Staging(tmp_path / 'out') as staging:
        assert staging.was_published
        staging.remove_if_empty()
    assert not folder.exists()


def test_the_mark_of_a_published_dataset_is_removed_last(tmp_path, monkeypatch):
    import shutil

    folder = staging_of(tmp_path / 'out')
    removed = []

    def remove(path):
        assert (folder / 'published').exists()
        removed.append(Path(path).name)

    with Staging(tmp_path / 'out') as staging:
        staging.merged.mkdir()
        staging.path(EPISODE).mkdir()
        monkeypatch.setattr(shutil, 'rmtree', remove)
        staging.publish()
    assert removed == [EPISODE] and not (folder / 'published').exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_kill_before_each_change_of_files_loses_nothing(tmp_path):
    script = REPOSITORY / 'test/support/tools/killed_staging.py'
    done = subprocess.run(
        end_with_parent([sys.executable, str(script), str(tmp_path)]),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert 'append: True' in done.stdout

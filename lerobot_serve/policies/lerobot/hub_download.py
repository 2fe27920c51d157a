# SPDX-License-Identifier: Apache-2.0
"""
The process that downloads a policy from the Hugging Face hub:
`python -m ... REPOSITORY REVISION PARENT`; PARENT is the process id of the process that waits.

Downloads only files that a policy may have, at the commit that the revision resolves to. Prints
one JSON object: `folder`, or `refused` (and `is_offline`). Ends with its parent.
"""

from __future__ import annotations

from functools import partial
import json
import os
from pathlib import Path
import re
import shutil
import sys
import threading
import time
from typing import Any

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.error_text import message_line
from lerobot_serve.policies.files.assets import COMMIT, hub_cache
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import CONFIG_FILE, read_config
from lerobot_serve.requirements import install_command

REQUEST_LIMIT_S = 30.0
PARENT_CHECK_S = 1.0
FILE_LIMIT = 64
# what the files of a policy are called; all else in a repository stays there
POLICY_FILES = re.compile(
    r'config\.json|train_config\.json|adapter_config\.json|model\.safetensors|meta/info\.json'
    r'|policy_(pre|post)processor\.json|policy_(pre|post)processor_[\w-]+\.safetensors',
    re.ASCII,
)


class Refused(Exception):
    """The repository cannot be used; the text says why."""


def main(repository: str, revision: str, parent: str) -> None:
    """Print the folder of a downloaded policy, or why there is none."""
    threading.Thread(target=end_with_parent, args=[int(parent)], daemon=True).start()
    print(json.dumps(answer(repository, revision)))


def end_with_parent(parent: int) -> None:
    """End this process when the one that started it has ended."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def answer(repository: str, revision: str) -> dict[str, Any]:
    """Return the result as it is printed."""
    try:
        from huggingface_hub import errors
    except ImportError as error:
        return {
            'refused': f'{message_line(error)}; install it: {install_command("huggingface_hub")}'
        }
    try:
        return {'folder': str(download(repository, revision))}
    except Refused as error:
        return {'refused': str(error)}
    except errors.GatedRepoError:
        return {
            'refused': 'the repository asks for consent; accept its terms on its page, and log in '
            'on this machine: hf auth login'
        }
    except errors.RevisionNotFoundError:
        return {'refused': f'the repository has no revision {revision!r}'}
    except errors.RepositoryNotFoundError:
        return {
            'refused': 'neither a folder on this machine nor a repository that it may read on the '
            'Hugging Face hub; check the name, or log in: hf auth login'
        }
    except errors.HfHubHTTPError as error:
        return {'refused': f'the hub refused the request ({message_line(error)})'}
    except Exception as error:
        # without a connection each version of huggingface_hub raises errors of other libraries
        return {'refused': f'{type(error).__name__}: {message_line(error)}', 'is_offline': True}


def download(repository: str, revision: str) -> Path:
    """Return the folder with the files of a commit. Raises Refused and errors of the hub."""
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi().model_info(
        repository, revision=revision, files_metadata=True, timeout=REQUEST_LIMIT_S
    )
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    wanted = sorted(name for name in sizes if POLICY_FILES.fullmatch(name))
    check_files(wanted, sum(sizes[name] for name in wanted))
    if not COMMIT.fullmatch(info.sha or ''):
        raise Refused(f'the hub gave no commit of {revision!r}, but {info.sha!r:.60}')
    fetch = partial(snapshot_download, repository, revision=info.sha)
    try:
        read_config(Path(fetch(allow_patterns=[CONFIG_FILE])))
    except PolicyError as error:
        # before gigabytes of weights follow
        raise Refused(str(error)) from None
    return Path(fetch(allow_patterns=wanted))


def check_files(names: list[str], size_bytes: int) -> None:
    """Raise Refused for a repository without a policy, and for one that does not fit here."""
    if CONFIG_FILE not in names:
        raise Refused(f'the repository has no {CONFIG_FILE}; it holds no policy of LeRobot')
    if len(names) > FILE_LIMIT:
        raise Refused(f'the repository has {len(names)} files of a policy, over {FILE_LIMIT}')
    cache = hub_cache()
    cache.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(cache).free
    if size_bytes > free_bytes:
        raise Refused(
            f'its files have {size_bytes / 1e9:.1f} GB, and {cache} has {free_bytes / 1e9:.1f} GB '
            'free; make room, or set HF_HOME to another disk'
        )


if __name__ == '__main__':
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""
Get a policy from the Hugging Face hub: USER/REPOSITORY or USER/REPOSITORY@REVISION.

A server that loads LeRobot has no network (`hardening`), so a process of its own downloads the
files into the hub's cache, whose folders are named after a commit. The thread that loads waits for
it. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
import os
from pathlib import Path
import re

from lerobot_serve.child_process import (
    Limits,
    reader_environment,
    run_reader,
    safe_environment,
    TimeoutExpired,
)
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.assets import cached_commit, COMMIT, HUB_ID
from lerobot_serve.policies.lerobot.hardening import environment_before

POLICY_PATH = re.compile(rf'({HUB_ID.pattern})(?:@([\w][\w./-]{{0,127}}))?', re.ASCII)
DEFAULT_REVISION = 'main'
DOWNLOAD_MODULE = 'lerobot_serve.policies.lerobot.hub_download'
DOWNLOAD_LIMIT_S = 3600.0
HUB_VARIABLES = re.compile(
    r'HF_\w+|HUGGING_?FACE_\w+|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_\w+|(REQUESTS|CURL)_CA_BUNDLE',
    re.IGNORECASE,
)
SHOWN_COMMIT = 12


@dataclass(frozen=True, slots=True)
class HubPolicy:
    """A repository on the hub and the revision that is wanted: a branch, tag or commit."""

    repository: str
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        return f'{self.repository}@{self.revision}'


def hub_policy(path: str) -> HubPolicy | None:
    """Return what a path names on the hub; None for a folder and for any other text."""
    match = POLICY_PATH.fullmatch(path)
    if match is None or Path(path).exists():
        return None
    return HubPolicy(match[1], match[2] or DEFAULT_REVISION)


def local_folder(path: str, *, limit_s: float = DOWNLOAD_LIMIT_S) -> str:
    """
    Return the folder of a policy, downloaded first if the path names one on the hub.

    Raises PolicyError if it cannot be downloaded.
    """
    wanted = hub_policy(path)
    return path if wanted is None else str(_download(wanted, limit_s))


def commit_of(folder: Path) -> HubPolicy | None:
    """Return repository and commit of a folder in the hub's cache; None for any other folder."""
    folder = Path(os.path.abspath(folder))
    owner = folder.parent.parent.name
    if folder.parent.name != 'snapshots' or not owner.startswith('models--'):
        return None
    if not COMMIT.fullmatch(folder.name):
        return None
    return HubPolicy(owner.removeprefix('models--').replace('--', '/', 1), folder.name)


def _download(wanted: HubPolicy, limit_s: float) -> Path:
    arguments = [wanted.repository, wanted.revision, str(os.getpid())]
    try:
        done = run_reader(
            ['-m', DOWNLOAD_MODULE, *arguments],
            Limits(limit_s),
            environment=_hub_environment(),
        )
    except TimeoutExpired as error:
        raise PolicyError(
            f'{wanted} was not downloaded within {limit_s:g} s; {_advice(wanted)}'
        ) from error
    answer = _answer(done.stdout)
    if folder := answer.get('folder'):
        return Path(folder)
    if answer.get('is_offline'):
        if cached := cached_commit(wanted.repository, wanted.revision):
            return cached
        raise PolicyError(
            f'{wanted.repository} is not a folder on this machine, and the Hugging Face hub, '
            f'where it may be a policy, cannot be reached ({answer["refused"]}); {_advice(wanted)}'
        )
    complaints = done.stderr.decode(errors='replace').strip().splitlines()
    last_line = (complaints or [f'exit status {done.returncode}'])[-1]
    raise PolicyError(f'{wanted}: {answer.get("refused") or last_line}')


def _hub_environment() -> dict[str, str]:
    """Return what a download needs: the token of the hub, and the way there."""
    found = safe_environment(environment_before())
    wanted = {name: value for name, value in found.items() if HUB_VARIABLES.fullmatch(name)}
    return reader_environment(found) | wanted


def _answer(text: bytes) -> dict[str, str]:
    """Return what the process found, nothing if it failed before."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _advice(wanted: HubPolicy) -> str:
    name = wanted.repository.split('/')[1]
    return (
        f'where there is a network, run: hf download {wanted.repository} --revision '
        f'{wanted.revision} --local-dir {name}, copy that folder here, and give it as policy_path'
    )

# SPDX-License-Identifier: Apache-2.0
"""
Compute the fingerprint of a policy as the policy server does, without loading the policy.

The functions are those that the loaders of the policy kinds call. Any thread; no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.builtin import settings as builtin
from lerobot_serve.policies.exported import sidecar as exported
from lerobot_serve.policies.files.policy_folder import read_policy_json, SETTINGS_FILE
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import hub_origin, read_checkpoint
from lerobot_serve.policies.lerobot.description import policy_fingerprint
from lerobot_serve.policies.registry import detect_kind
from lerobot_serve.versions.errors import DamagedVersion, PublishError
from lerobot_serve.versions.manifest import Manifest
from lerobot_serve.versions.publishing import PolicyIdentity


def identify(
    folder: Path, name: str = '', trusted_packages: tuple[str, ...] = ()
) -> PolicyIdentity:
    """
    Return fingerprint, kind and place on the hub of a folder; `name` is that of the operator, else
    a version has its own. Raises PublishError.
    """
    try:
        kind = detect_kind(str(folder))
        return IDENTITIES[kind](LoadOptions(str(folder), name=name), trusted_packages)
    except PolicyError as error:
        raise PublishError(str(error)) from None


def why_not_checked(folder: Path, manifest: Manifest) -> str:
    """
    Compare the fingerprint of a fetched folder with its id. Return why it cannot be compared on
    this machine, empty if it is equal. Raises DamagedVersion for another one.
    """
    try:
        found = identify(folder)
    except PublishError as error:
        return str(error)
    if found.fingerprint == manifest.id:
        return ''
    if found.kind == 'lerobot' and read_checkpoint(str(folder)).assets:
        # tokenizers and language models are not part of a version
        return (
            f'with the tokenizers and language models of this machine the fingerprint is '
            f'{found.fingerprint}; download the same ones as the publisher'
        )
    raise DamagedVersion(
        f'the files of {manifest.id} have the fingerprint {found.fingerprint}: its manifest is '
        'that of another policy. Nothing was kept; publish it again at the source'
    )


def _lerobot(options: LoadOptions, trusted_packages: tuple[str, ...]) -> PolicyIdentity:
    checkpoint = read_checkpoint(options.path, trusted_packages)
    origin = hub_origin(checkpoint.path)
    fingerprint = policy_fingerprint(checkpoint, options)
    return PolicyIdentity(fingerprint, 'lerobot', str(origin) if origin else '')


def _builtin(options: LoadOptions, _: tuple[str, ...]) -> PolicyIdentity:
    folder = Path(options.path)
    settings = read_policy_json(builtin.ReachSettings, folder / SETTINGS_FILE)
    files = [folder / SETTINGS_FILE, folder / builtin.WEIGHTS_FILE]
    found = settings.fingerprint(files, options.name)
    return PolicyIdentity(found, 'builtin')


def _exported(options: LoadOptions, _: tuple[str, ...]) -> PolicyIdentity:
    found = exported.folder_fingerprint(options.path, options.name)
    return PolicyIdentity(found, 'exported')


IDENTITIES: dict[str, Callable[[LoadOptions, tuple[str, ...]], PolicyIdentity]] = {
    'lerobot': _lerobot,
    'builtin': _builtin,
    'exported': _exported,
}

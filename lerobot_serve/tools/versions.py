# SPDX-License-Identifier: Apache-2.0
"""
Identity and texts for `lerobot-serve versions`: the fingerprint of a policy as the policy server
computes it, without loading it, by the functions of the loaders of the policy kinds; tables,
results and JSON. Any thread; no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.builtin import settings as builtin
from lerobot_serve.policies.exported import sidecar as exported
from lerobot_serve.policies.files.policy_folder import read_policy_json, SETTINGS_FILE
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import hub_origin, read_checkpoint
from lerobot_serve.policies.lerobot.description import policy_fingerprint
from lerobot_serve.policies.registry import detect_kind
from lerobot_serve.tools.output.report import Facts, Part, Report, Table
from lerobot_serve.versions.errors import DamagedVersion, PublishError
from lerobot_serve.versions.manifest import Differences, FileDifference, Manifest
from lerobot_serve.versions.publishing import PolicyIdentity, Published
from lerobot_serve.versions.store import StoredVersion, VersionStore


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


HEADS = ('VERSION', 'KIND', 'SIZE', 'CREATED', 'PARENT', 'STATE', 'NOTE')
FILE_HEADS = ('FILE', 'SIZE', 'SHA-256')
SHOWN_DIGITS = 12
UNITS = ('B', 'kB', 'MB', 'GB', 'TB')


def size_text(size_bytes: float) -> str:
    """Return a size with three digits at most."""
    for unit in UNITS[:-1]:
        if size_bytes < 999.5:
            return f'{size_bytes:.3g} {unit}'
        size_bytes /= 1000
    return f'{size_bytes:.3g} {UNITS[-1]}'


def table(entries: Sequence[StoredVersion], folder: Path) -> Part:
    """Return the versions of a store, one a line."""
    if not entries:
        return f'{folder}: no versions; lerobot-serve versions publish FOLDER adds one'
    return Table(HEADS, [_row(each) for each in entries])


def _row(entry: StoredVersion) -> tuple[str, ...]:
    states = ['pinned'] if entry.is_pinned else []
    manifest = entry.manifest
    if manifest is None:
        return (entry.id, '', '', '', '', ', '.join([*states, 'damaged']), entry.fault)
    return (
        entry.id,
        manifest.policy_kind,
        size_text(manifest.size_bytes),
        manifest.created,
        manifest.parent or '-',
        ', '.join(states) or '-',
        manifest.note,
    )


def details(entry: StoredVersion, folder: Path) -> list[Part]:
    """Return one version with all its files."""
    manifest = entry.manifest
    if manifest is None:
        return [f'{entry.id}: damaged: {entry.fault}']
    pin = f'yes{f" ({entry.pin})" if entry.pin else ""}' if entry.is_pinned else 'no'
    rows = [
        ('version', manifest.id),
        ('kind', manifest.policy_kind),
        ('folder', str(folder)),
        ('created', manifest.created),
        ('parent', manifest.parent or '-'),
        ('data set', manifest.dataset_sha256 or '-'),
        ('hub', manifest.hub or '-'),
        ('note', manifest.note or '-'),
        ('sources', ' '.join(manifest.sources) or '-'),
        ('pinned', pin),
        ('size', f'{size_text(manifest.size_bytes)} in {len(manifest.files)} files'),
    ]
    files = [
        (each.path, size_text(each.size_bytes), each.sha256[:SHOWN_DIGITS])
        for each in manifest.files
    ]
    return [Facts(rows, indent=0), Table(FILE_HEADS, files, indent=2, right=[1])]


def comparison(first: Manifest, second: Manifest, found: Differences) -> list[Part]:
    """Return what differs between two versions."""
    parts: list[Part] = [f'{first.id} and {second.id}: {found.same_files} files are the same']
    if found.is_parent:
        child, parent = (first, second) if first.parent == second.id else (second, first)
        parts.append(f'{parent.id} is the parent of {child.id}')
    rows = [(each.name, f'{each.first or "-"} | {each.second or "-"}') for each in found.fields]
    return [*parts, Facts([*rows, *((each.path, _file_text(each)) for each in found.files)])]


def _file_text(each: FileDifference) -> str:
    if each.first and each.second:
        sizes = f'{size_text(each.first.size_bytes)} | {size_text(each.second.size_bytes)}'
        return f'other content ({sizes})'
    return 'only in the first' if each.first else 'only in the second'


def published_lines(published: Published, folder: Path) -> list[str]:
    """Return what a publication did."""
    manifest = published.manifest
    what = f'{manifest.id} ({size_text(manifest.size_bytes)}, {len(manifest.files)} files)'
    hidden = ', '.join(published.left_out[:4])
    return [
        f'{"published as" if published.is_new else "there already:"} {what}',
        *([f'hidden names are left out: {hidden}'] if hidden else []),
        f'serve it: lerobot-serve serve {folder}',
    ]


def entry_json(entry: StoredVersion, store: VersionStore) -> dict[str, Any]:
    """Return a version for JSON."""
    return {
        'id': entry.id,
        'folder': str(store.path(entry.id)),
        'is_pinned': entry.is_pinned,
        'pin': entry.pin or '',
        'fault': entry.fault,
        'size_bytes': entry.manifest.size_bytes if entry.manifest else 0,
        'manifest': msgspec.to_builtins(entry.manifest),
    }


def verified_report(faults: dict[str, list[str]]) -> Report:
    """Return each version with its faults; the status is 1 with any."""
    found = [{'id': k, 'is_whole': not each, 'faults': each} for k, each in faults.items()]
    lines: list[str] = []
    for version_id, each in faults.items():
        lines.append(f'{version_id}: {"damaged" if each else "whole"}')
        lines += [f'  {fault}' for fault in each]
    return Report({'versions': found}, lines or ['no versions'], int(any(faults.values())))


def total_bytes(entries: Iterable[StoredVersion]) -> int:
    return sum(each.manifest.size_bytes for each in entries if each.manifest)

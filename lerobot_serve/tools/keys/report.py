# SPDX-License-Identifier: Apache-2.0
"""What `lerobot-serve keys` prints. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from lerobot_serve.tools.keys.access import Identity
from lerobot_serve.tools.keys.site import KeyRecord
from lerobot_serve.tools.output.report import Report, Table
from lerobot_serve.zenoh.credentials import SOON

HEADS = ('key', 'state', 'expires', 'hosts')


def key_text(folder: Path, identity: Identity) -> str:
    """Say where a new key is and what to do with it."""
    return (
        f'{folder / identity.folder}: key of {identity.role} {identity.name}; copy the folder to '
        f'that machine with scp -rp, set zenoh_keys to it, and start the node again'
    )


def revoked_text(identity: Identity) -> str:
    """Say what a revocation does not reach."""
    text = f'{identity.common_name} is revoked, and its folder is removed'
    if identity.role.may_listen:
        text += (
            '; robots and operators have no access file and still trust it until it expires: if '
            'its key was stolen, make a new site with keys init'
        )
    return text


def changed_text(folder: Path, changed: Iterable[str]) -> str:
    """Name the folders that must be copied again; empty without one."""
    lines = [f'  {folder / name}' for name in changed]
    if not lines:
        return ''
    return '\n'.join(
        (
            'access files changed; copy these folders again, then restart the nodes that use '
            'them (Zenoh reads an access file only at its start):',
            *lines,
        )
    )


def keys_report(site: str, records: Iterable[KeyRecord], now: datetime) -> Report:
    """Return the keys of a site."""
    rows, keys = [], []
    for each in records:
        hosts = ' '.join((*each.hosts, *(('(direct)',) if each.direct else ())))
        name = each.identity.common_name
        rows.append((name, state(each, now), f'{each.expires:%Y-%m-%d}', hosts))
        keys.append(
            {
                'key': name,
                'role': each.identity.role,
                'name': each.identity.name,
                'state': state(each, now),
                'expires': each.expires.isoformat(),
                'hosts': each.hosts,
                'direct': each.direct,
            }
        )
    return Report({'site': site, 'keys': keys}, [Table(HEADS, rows)])


def state(record: KeyRecord, now: datetime) -> str:
    if record.is_revoked:
        return 'revoked'
    if record.expires <= now:
        return 'expired'
    return 'expires soon' if record.expires - now < SOON else 'valid'

# SPDX-License-Identifier: Apache-2.0
"""
The folder of a site: its authority, its list of keys, and a folder for each machine.

    site.json                the list of keys
    authority/               certificate and key that sign all others; never copied to a machine
    robot.robot_1/           ca.pem, certificate.pem, key.pem
    server.policy_server/    the same, and access.json
    hub.NAME/                the same, and zenoh.json

One thread; a second process is refused while one changes the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from dataclasses import dataclass, field
from datetime import datetime
import json
from pathlib import Path
import shutil
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from lerobot_serve.access.token_file import make_private_folder, write_private
from lerobot_serve.contract.names import KEY_ROOT
from lerobot_serve.errors import UserError
from lerobot_serve.files.load import load_file, Record, Refused
from lerobot_serve.tools.keys.access import access_control, Identity, KeyRole, new_identity
from lerobot_serve.tools.keys.certificates import (
    general_name,
    KeyPair,
    load_authority,
    make_authority,
    make_certificate,
)
from lerobot_serve.versions.layout import exclusive
from lerobot_serve.zenoh.credentials import CA, CERTIFICATE, check_mode, PRIVATE_KEY
from lerobot_serve.zenoh.keys import check_site
from lerobot_serve.zenoh.settings import (
    ACCESS,
    common_configuration,
    region_name,
    tls_configuration,
    transmission,
)

# some 100,000 keys
SITE_LIMIT_BYTES = 32 << 20
SITE_FILE, AUTHORITY = 'site.json', 'authority'
HUB_FILE, HUB_LISTEN = 'zenoh.json', 'tls/[::]:7447'


class KeyRecord(Record, frozen=True):
    """One key of the list; `direct` of a server lets robots speak to it without a router."""

    expires: Annotated[datetime, Meta(tz=True, description='a time with its offset to UTC')]
    hosts: tuple[str, ...]
    direct: bool
    is_revoked: bool
    role: Annotated[KeyRole, Meta(description=f'one of {", ".join(KeyRole)}')]
    # part of the name of a folder, which `revoke` removes
    name: Annotated[str, Meta(pattern=r'^[\w.-]{1,64}\Z', description='letters, digits and ._-')]
    generation: Annotated[int, Meta(ge=1)]

    @property
    def identity(self) -> Identity:
        return Identity(self.role, self.name, self.generation)


class SiteFile(Record, frozen=True):
    """The list of keys, in the order in which they were made."""

    site: str
    keys: tuple[KeyRecord, ...]


@dataclass(slots=True)
class KeySite:
    """What is in the folder; `records` in the order in which the keys were made."""

    folder: Path
    name: str
    records: list[KeyRecord] = field(default_factory=list)

    def valid(self) -> list[KeyRecord]:
        return [each for each in self.records if not each.is_revoked]

    def find(self, given: str) -> KeyRecord:
        """Return the key of a name, with or without its role. Raises UserError."""
        found = _named(given, self.valid())
        if len(found) == 1:
            return found[0]
        known = found or self.valid()
        names = ', '.join(each.identity.folder for each in known) or 'none yet'
        reason = 'is the name of several keys' if found else 'is not a key of this site'
        raise UserError(f'{given!r} {reason}; give one of {names}')

    def add_all(
        self,
        role: KeyRole,
        names: Sequence[str],
        days: int,
        *,
        hosts: tuple[str, ...],
        direct: bool,
    ) -> list[Identity]:
        """Make a key for each name, none where one cannot be made. Raises UserError."""
        for name in names:
            if names.count(name) > 1:
                raise UserError(f'{name!r} is given twice; give each name once')
            self._new_record(role, name, hosts, direct)
        return [self.add(role, name, days, hosts=hosts, direct=direct) for name in names]

    def add(
        self, role: KeyRole, given: str, days: int, *, hosts: tuple[str, ...], direct: bool
    ) -> Identity:
        """Make a key. Raises UserError, also where the name has one."""
        record = self._new_record(role, given, hosts, direct)
        pair = self._make_pair(record, days)
        make_private_folder(self.folder / record.identity.folder, self._files(pair))
        self.records.append(replace(record, expires=pair.expires))
        self._write_list()
        return record.identity

    def _new_record(
        self, role: KeyRole, given: str, hosts: tuple[str, ...], direct: bool
    ) -> KeyRecord:
        """Return what a key would be. Raises UserError, also where the name has one."""
        identity = new_identity(role, given)
        past = [e for e in self.records if e.identity.folder == identity.folder]
        folder = self.folder / identity.folder
        if folder.exists() or any(not each.is_revoked for each in past):
            raise UserError(
                f'{folder} exists; nothing is overwritten. `lerobot-serve keys rotate '
                f'{identity.folder}` makes a new key for this name'
            )
        _check_hosts(role, hosts)
        return KeyRecord(
            expires=datetime.min,
            hosts=hosts,
            direct=direct,
            is_revoked=False,
            role=role,
            name=identity.name,
            # the common names of revoked keys stay refused
            generation=len(past) + 1,
        )

    def rotate(self, given: str, days: int) -> Identity:
        """Make a new key for a name; the old one stays valid. Raises UserError."""
        record = self.find(given)
        pair = self._make_pair(record, days)
        folder = self.folder / record.identity.folder
        for name, content in self._files(pair).items():
            write_private(folder / name, content)
        self._replace(record, replace(record, expires=pair.expires))
        return record.identity

    def revoke(self, given: str) -> Identity:
        """
        Mark a key as revoked and remove its folder; `write_access` takes it out of the access
        files. Raises UserError. One that is revoked already may have been interrupted there.
        """
        revoked = [] if _named(given, self.valid()) else _named(given, self.records)
        record = revoked[-1] if revoked else self.find(given)
        self._replace(record, replace(record, is_revoked=True))
        folder = record.identity.folder
        # the name may have another key by now
        if all(each.identity.folder != folder for each in self.valid()):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        return record.identity

    def write_access(self) -> list[str]:
        """
        Bring the access files up to date; return the folders in which one changed. Raises
        UserError at its end for those that cannot be written.
        """
        others = [each.identity for each in self.valid()]
        changed: list[str] = []
        failed: list[str] = []
        for record in self.valid():
            if not record.identity.role.may_listen:
                continue
            rules = access_control(self.name, record.identity, others, direct=record.direct)
            is_hub = record.identity.role == KeyRole.HUB
            path = self.folder / record.identity.folder / (HUB_FILE if is_hub else ACCESS)
            content = json.dumps(_hub_configuration(rules, others) if is_hub else rules, indent=1)
            try:
                if not path.exists() or path.read_text() != content:
                    write_private(path, content.encode())
                    changed.append(record.identity.folder)
            except OSError as error:
                failed.append(f'{path}: {error.strerror}')
        if failed:
            raise UserError(
                f'{"; ".join(failed)}. What is written there still admits the keys of before: '
                'remove the cause, then run `lerobot-serve keys revoke` again with the same name, '
                f'or `keys rotate` for a new key. Written: {", ".join(changed) or "none"}; copy '
                'these folders again'
            )
        return changed

    def _make_pair(self, record: KeyRecord, days: int) -> KeyPair:
        folder = self.folder / AUTHORITY
        check_mode(folder / PRIVATE_KEY)
        return make_certificate(
            load_authority(
                (folder / CERTIFICATE).read_bytes(), (folder / PRIVATE_KEY).read_bytes()
            ),
            record.identity.common_name,
            days,
            hosts=record.hosts,
            may_listen=record.identity.role.may_listen,
        )

    def _files(self, pair: KeyPair) -> dict[str, bytes]:
        ca = (self.folder / AUTHORITY / CERTIFICATE).read_bytes()
        return {PRIVATE_KEY: pair.key, CERTIFICATE: pair.certificate, CA: ca}

    def _replace(self, old: KeyRecord, new: KeyRecord) -> None:
        self.records[self.records.index(old)] = new
        self._write_list()

    def _write_list(self) -> None:
        write_private(self.folder / SITE_FILE, _as_json(self.name, self.records))


def make_site(folder: Path, name: str, days: int) -> None:
    """Make the folder with a new authority. Raises UserError."""
    check_site(name)
    if folder.exists():
        raise UserError(
            f'{folder} exists; nothing is overwritten. Give another with --folder, or add keys to '
            'it with `lerobot-serve keys robot NAME`'
        )
    pair = make_authority(name, days)
    files = {
        f'{AUTHORITY}/{PRIVATE_KEY}': pair.key,
        f'{AUTHORITY}/{CERTIFICATE}': pair.certificate,
        SITE_FILE: _as_json(name, []),
    }
    with _user_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(folder, files)


@contextlib.contextmanager
def opened_site(folder: Path) -> Iterator[KeySite]:
    """Yield a site, locked against other processes. Raises UserError, also for OSError inside."""
    with _user_errors(folder):
        if not (folder / SITE_FILE).is_file():
            raise UserError(
                f'{folder} has no {SITE_FILE}; make a site with `lerobot-serve keys init`, or '
                'name its folder with --folder'
            )
        busy = f'another `lerobot-serve keys` changes {folder}; try again when it has ended'
        # the folder may be a link, which no lock follows
        with exclusive(folder.resolve(), lambda: UserError(busy)):
            yield _read_site(folder)


@contextlib.contextmanager
def _user_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f'{error.filename or folder}: {error.strerror}') from None


def _read_site(folder: Path) -> KeySite:
    try:
        content = load_file(SiteFile, folder / SITE_FILE, limit_bytes=SITE_LIMIT_BYTES)
    except Refused as refused:
        raise UserError(f'{refused}; restore it from a backup, or make a new site') from None
    return KeySite(folder, check_site(content.site), [*content.keys])


def _as_json(site: str, records: list[KeyRecord]) -> bytes:
    keys = [msgspec.to_builtins(each) | {'expires': each.expires.isoformat()} for each in records]
    return json.dumps({'site': site, 'keys': keys}, indent=1).encode()


def _named(given: str, records: Sequence[KeyRecord]) -> list[KeyRecord]:
    """Return the keys of a name, with or without its role."""
    wanted = given.strip('/').replace('/', '.')
    return [
        each
        for each in records
        if wanted in (each.identity.name, each.identity.folder, each.identity.common_name)
    ]


def _check_hosts(role: KeyRole, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        general_name(host)
    if role.may_listen and not hosts:
        raise UserError(
            f'a {role} needs --host, the names and addresses that others write in zenoh_connect '
            'to reach it, such as --host 192.168.1.5 gpu-1.lab.example'
        )


def _hub_configuration(rules: dict[str, object], others: list[Identity]) -> dict[str, object]:
    """Return what a Zenoh router reads that is started in its folder of keys."""
    regions = [{'filters': [{'region_names': [region_name(e.common_name)]}]} for e in others]
    return common_configuration('router', listen=(HUB_LISTEN,)) | {
        'gateway': {'south': regions},
        'transport': {'link': {'tls': tls_configuration(Path()), 'tx': transmission()}},
        'access_control': rules,
        # the senders of one server or router wait for their own link, not for each robot behind it
        'qos': {
            'network': [
                {
                    'messages': ['put'],
                    'flows': ['egress'],
                    'key_exprs': [f'{KEY_ROOT}/**'],
                    'overwrite': {'congestion_control': 'drop'},
                }
            ]
        },
    }

# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve versions`: publishes, fetches, serves, pins and deletes versions of policies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import contextlib
from pathlib import Path
import sys
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.state_folder import ros_home
from lerobot_serve.tools.cli.operator_options import ask
from lerobot_serve.tools.cli.signature import Argument, steps_of
from lerobot_serve.tools.output.report import Report

if TYPE_CHECKING:
    from lerobot_serve.tools.cli.progress import TerminalProgress
    from lerobot_serve.versions.store import VersionStore
    from lerobot_serve.versions.transfer.source import VersionSource

HELP = 'publish, fetch, serve, pin, compare and delete versions of policies'
EXAMPLE = (
    'example: lerobot-serve versions publish /models/act_so101; lerobot-serve versions list  | a '
    'version is whole or not there; exit status 0 done, 1 refused or damaged, 2 wrong command line'
)
ADDRESS, PORT = '127.0.0.1', 8320
STORE = 'lerobot_serve/versions'
VERSION_HELP = 'id, its first letters, a name, or 4 or more digits of the hash'
# below this no progress is shown
SHOW_ABOVE_BYTES = 50_000_000


def version_ids(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the ids of the store of a command line for a shell; none on an error."""
    from lerobot_serve.versions.store import VersionStore

    with contextlib.suppress(Exception):
        folder = getattr(parsed_args, 'store', None) or ros_home() / STORE
        return VersionStore.open(Path(folder).expanduser()).ids()
    return []


StoreFolder = Annotated[
    Path | None, Argument(f'folder of the store ($ROS_HOME/{STORE})', 'FOLDER')
]
Version = Annotated[str, Argument(VERSION_HELP, 'VERSION', names=version_ids)]


def list_versions(*, store: StoreFolder = None) -> Report:
    """Print the versions of a store. Raises UserError."""
    from lerobot_serve.tools import versions

    opened, folder = _opened(store), _folder(store)
    entries = opened.entries()
    found = [versions.entry_json(each, opened) for each in entries]
    return Report({'versions': found}, [versions.table(entries, folder)])


def show(version: Version, *, store: StoreFolder = None) -> Report:
    """Print a version with its files. Raises UserError."""
    from lerobot_serve.tools import versions

    opened = _opened(store)
    entry = opened.entry(version)
    parts = versions.details(entry, opened.path(entry.id))
    return Report(versions.entry_json(entry, opened), parts, 0 if entry.manifest else 1)


def verify(
    version: Annotated[
        Sequence[str], Argument(f'{VERSION_HELP} (all)', 'VERSION', names=version_ids)
    ] = (),
    *,
    store: StoreFolder = None,
) -> Report:
    """Read every file again and compare hashes. Raises UserError."""
    from lerobot_serve.tools import versions
    from lerobot_serve.versions.layout import held
    from lerobot_serve.versions.store import faults_of

    opened = _opened(store)
    entries = [opened.entry(each) for each in version] or opened.entries()
    faults: dict[str, list[str]] = {}
    with _progress() as progress:
        count = progress.begin('verifying', versions.total_bytes(entries))
        for each in entries:
            faults[each.id] = [each.fault]
            if each.manifest:
                with held(opened.path(each.id)):
                    faults[each.id] = faults_of(opened.path(each.id), each.manifest, count)
    return versions.verified_report(faults)


def compare(
    first: Annotated[str, Argument(VERSION_HELP, 'FIRST', names=version_ids)],
    second: Annotated[str, Argument(VERSION_HELP, 'SECOND', names=version_ids)],
    *,
    store: StoreFolder = None,
) -> Report:
    """Print what differs between two versions. Raises UserError."""
    import msgspec

    from lerobot_serve.tools import versions
    from lerobot_serve.versions.manifest import differences, read_manifest

    opened = _opened(store)
    one, other = (read_manifest(opened.path(opened.entry(each).id)) for each in (first, second))
    found = differences(one, other)
    data = {'first': one.id, 'second': other.id, **msgspec.to_builtins(found)}
    return Report(data, versions.comparison(one, other, found))


def pin(
    version: Version,
    *,
    store: StoreFolder = None,
    note: Annotated[str, Argument('why it is kept', 'TEXT')] = '',
) -> int:
    """Keep a version from being deleted. Raises UserError."""
    if not note.isprintable():
        raise WrongCommandLine('--note must be one line of printable characters')
    opened = _opened(store)
    entry = opened.entry(version)
    opened.pin(entry.id, note)
    print(f'{entry.id} is pinned')
    return 0


def unpin(version: Version, *, store: StoreFolder = None) -> int:
    """Let a version be deleted again. Raises UserError."""
    opened = _opened(store)
    entry = opened.entry(version)
    opened.unpin(entry.id)
    print(f'{entry.id} is not pinned' if entry.is_pinned else f'{entry.id} was not pinned')
    return 0


def delete(
    version: Version,
    *,
    store: StoreFolder = None,
    also_parent: Annotated[bool, Argument('also if it is the parent of another version')] = False,
    yes: Annotated[bool, Argument('do not ask')] = False,
) -> int:
    """Delete a version that no server serves. Raises UserError."""
    opened = _opened(store)
    entry = opened.entry(version)
    if not yes:
        ask(f'Delete {entry.id} of {_folder(store)}?')
    opened.delete(entry.id, also_parent=also_parent)
    print(f'{entry.id} is deleted')
    return 0


def publish(
    folder: Annotated[
        str,
        Argument(
            'directory of a LeRobot, built-in or exported policy, or USER/REPOSITORY of the hub',
            'FOLDER',
        ),
    ],
    *,
    store: StoreFolder = None,
    name: Annotated[str, Argument('part of the id before the @ (that of the policy)')] = '',
    parent: Annotated[
        str, Argument('version that it was trained from', 'VERSION', names=version_ids)
    ] = '',
    dataset: Annotated[
        str,
        Argument(
            'data set that it was trained on; of a folder the hash of all files is noted',
            'FOLDER|SHA256',
        ),
    ] = '',
    note: Annotated[str, Argument('one line of text', 'TEXT')] = '',
    sources: Annotated[
        Sequence[str],
        Argument(
            'where others may fetch it, as a note: http(s)://... or the full path of a store',
            'ADDRESS',
            flags=('--source',),
            nargs='+',
        ),
    ] = (),
    follow_links: Annotated[
        bool,
        Argument(
            'copy the files that links point to (links are refused, but for those of the hub)'
        ),
    ] = False,
    trusted_packages: Annotated[
        Sequence[str],
        Argument(
            'as the parameter of a policy_server, for policy types that it does not know',
            'PACKAGE',
            nargs='+',
        ),
    ] = (),
) -> Report:
    """Copy the folder of a policy into a store. Raises UserError, PolicyError."""
    from datetime import datetime, timezone

    from lerobot_serve.policies.lerobot.hub import local_folder
    from lerobot_serve.tools import versions
    from lerobot_serve.tools.versions import identify
    from lerobot_serve.versions.manifest import TIME_FORMAT
    from lerobot_serve.versions.publishing import Details, policy_paths, PolicyIdentity
    from lerobot_serve.versions.publishing import publish as publish_folder
    from lerobot_serve.versions.store import is_version, VersionStore

    source = Path(local_folder(folder)).expanduser()

    def identity(at: Path) -> PolicyIdentity:
        # the copy is named by its manifest, as for the server that will load it
        return identify(at, '' if is_version(at) else name, tuple(trusted_packages))

    identity(source)
    made = VersionStore.make(_folder(store))
    size = sum((source / path).stat().st_size for path in policy_paths(source)[0])
    with _progress() as progress:
        details = Details(
            created=datetime.now(timezone.utc).strftime(TIME_FORMAT),
            parent=_parent(parent, made),
            dataset_sha256=_dataset(dataset, progress),
            note=note,
            sources=tuple(sources),
        )
        count = progress.begin('publishing', size)
        done = publish_folder(made, source, identity, details, count, follows_links=follow_links)
    entry = made.entry(done.manifest.id)
    data = {'is_new': done.is_new, 'left_out': done.left_out, **versions.entry_json(entry, made)}
    return Report(data, versions.published_lines(done, made.path(entry.id)), has_changed=True)


def _parent(given: str, store: VersionStore) -> str:
    """Return the id of a parent, which may be a whole id that this store does not have."""
    from lerobot_serve.versions.manifest import ID

    return given if not given or ID.fullmatch(given) else store.entry(given).id


def _dataset(given: str, progress: TerminalProgress) -> str:
    from lerobot_serve.versions.file_hash import folder_sha256
    from lerobot_serve.versions.manifest import SHA256

    if not given or SHA256.fullmatch(given):
        return given
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise UserError(f'--dataset must be a folder or 64 hexadecimal digits, got {given!r:.80}')
    try:
        size = sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())
        return folder_sha256(folder, progress.begin('hashing the data set', size))
    except (OSError, ValueError) as error:
        raise UserError(f'--dataset {folder} cannot be read: {error}') from None


def fetch(
    version: Annotated[str, Argument(VERSION_HELP, 'VERSION')],
    *,
    store: StoreFolder = None,
    origin: Annotated[
        str,
        Argument(
            'http(s)://HOST:PORT of `versions serve`, a store, or the folder of a version',
            'ADDRESS|FOLDER',
            flags=('--from',),
        ),
    ],
    token_file: Annotated[
        Path | None, Argument('private file with a line NAME TOKEN', 'FILE')
    ] = None,
    tls_ca: Annotated[
        Path | None, Argument('authority of an https server (the system)', 'FILE')
    ] = None,
) -> Report:
    """Copy a version from another store or server. Raises UserError."""
    from lerobot_serve.tools import versions
    from lerobot_serve.tools.versions import why_not_checked
    from lerobot_serve.versions.manifest import Manifest
    from lerobot_serve.versions.store import VersionStore
    from lerobot_serve.versions.transfer.fetching import Fetch

    source = _source(origin, token_file, tls_ca)
    made = VersionStore.make(_folder(store))
    notes: list[str] = []
    with _progress() as progress:
        run = Fetch(made, source)

        def begin(manifest: Manifest) -> None:
            run.count = progress.begin(f'fetching {manifest.id}', manifest.size_bytes)

        run.begin = begin
        run.check = lambda folder, manifest: notes.append(why_not_checked(folder, manifest))
        done = run.run(version)
    for note in filter(None, notes):
        print(f'note: the fingerprint is not compared: {note}', file=sys.stderr)
    folder = made.path(done.manifest.id)
    data = {
        'is_new': done.is_new,
        'transferred_bytes': done.transferred_bytes,
        **versions.entry_json(made.entry(done.manifest.id), made),
    }
    state = (
        f'fetched ({versions.size_text(done.transferred_bytes)})' if done.is_new else 'is there'
    )
    lines = [f'{done.manifest.id} {state}', f'serve it: lerobot-serve serve {folder}']
    return Report(data, lines, has_changed=True)


def _source(origin: str, token_file: Path | None, tls_ca: Path | None) -> VersionSource:
    """Return where to fetch from. Raises UserError."""
    from lerobot_serve.versions.transfer import http_files
    from lerobot_serve.versions.transfer.source import FolderSource

    if not http_files.is_address(origin):
        if token_file or tls_ca:
            raise WrongCommandLine('--token-file and --tls-ca are for http(s)://, not a folder')
        return FolderSource(Path(origin).expanduser())
    token = http_files.read_token(token_file.expanduser()) if token_file else ''
    address = http_files.ServerAddress(origin.rstrip('/'), token, tls_ca)
    if address.warning:
        print(f'warning: {address.warning}', file=sys.stderr)
    return http_files.HttpSource(address)


def serve(
    *,
    store: StoreFolder = None,
    address: Annotated[
        str,
        Argument(f'address to listen on ({ADDRESS}: this machine alone)', names_default=False),
    ] = ADDRESS,
    port: Annotated[int, Argument('port, 0 for a free one', 'N', bounds=(0, 65535))] = PORT,
    token_file: Annotated[
        Path | None,
        Argument(
            'lines NAME TOKEN of those who may fetch, made if missing (everyone on this machine)',
            'FILE',
        ),
    ] = None,
    allow_anyone: Annotated[
        bool, Argument('serve other machines without tokens, on a network that you trust')
    ] = False,
    tls_certificate: Annotated[Path | None, Argument('serve https', 'FILE')] = None,
    tls_key: Annotated[Path | None, Argument('key of the certificate', 'FILE')] = None,
) -> int:
    """Let other machines fetch from a store. Raises UserError."""
    import signal
    import threading

    from lerobot_serve.access.addresses import is_loopback_address
    from lerobot_serve.access.token_file import open_tokens
    from lerobot_serve.tools.output.text import without_controls
    from lerobot_serve.versions.transfer.serving import HttpSettings, server_tls, StoreHttpServer

    opened = _opened(store)
    tokens = None
    if token_file:
        tokens = open_tokens(token_file.expanduser(), 'who may fetch versions')
    elif not (is_loopback_address(address) or allow_anyone):
        raise UserError(
            f'--address {address} is reached by other machines; give --token-file FILE (it is '
            'made if missing), or --allow-anyone on a network that you trust'
        )
    tls = server_tls(tls_certificate, tls_key)
    if tls is None and not is_loopback_address(address):
        print(
            'warning: without --tls-certificate others on the network can read policies and '
            'tokens',
            file=sys.stderr,
        )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    server = StoreHttpServer(
        opened,
        HttpSettings(address, port, tokens, tls),
        lambda line: print(without_controls(line), flush=True),
    )
    try:
        count = len(opened.ids())
        print(f'{_folder(store)}: {count} versions at {server.url}', flush=True)
        ended.wait()
    finally:
        server.close()
    return 0


def _folder(store: Path | None) -> Path:
    return (store or ros_home() / STORE).expanduser()


def _opened(store: Path | None) -> VersionStore:
    from lerobot_serve.versions.store import VersionStore

    return VersionStore.open(_folder(store))


def _progress() -> TerminalProgress:
    from lerobot_serve.tools.cli.progress import TerminalProgress

    return TerminalProgress(SHOW_ABOVE_BYTES)


add_arguments, main = steps_of(
    {
        'list': list_versions,
        'show': show,
        'verify': verify,
        'compare': compare,
        'pin': pin,
        'unpin': unpin,
        'delete': delete,
        'publish': publish,
        'fetch': fetch,
        'serve': serve,
    },
    'ACTION',
)

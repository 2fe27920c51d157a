# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve versions`: publishes, fetches, serves, pins and deletes versions of policies."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import contextlib
from pathlib import Path
import sys
from typing import Any, TYPE_CHECKING

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.ros_home import ros_home
from lerobot_serve.tools.cli.signature import set_completer

if TYPE_CHECKING:
    from lerobot_serve.tools.cli.conversion_progress import ConversionProgress
    from lerobot_serve.versions.publishing import Details
    from lerobot_serve.versions.store import Entry, Store
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest='action', metavar='ACTION', required=True)
    listed = _action(actions, 'list', 'print the versions of a store', list_versions)
    shown = _action(actions, 'show', 'print a version with its files', show)
    _add_version(shown)
    verified = _action(actions, 'verify', 'read every file again and compare hashes', verify)
    _add_version(verified, nargs='*', more=' (all)')
    compared = _action(actions, 'compare', 'print what differs between two versions', compare)
    _add_version(compared, name='first')
    _add_version(compared, name='second')
    pinned = _action(actions, 'pin', 'keep a version from being deleted', pin)
    _add_version(pinned)
    pinned.add_argument('--note', default='', metavar='TEXT', help='why it is kept')
    _add_version(_action(actions, 'unpin', 'let a version be deleted again', unpin))
    deleted = _action(actions, 'delete', 'delete a version that no server serves', delete)
    _add_version(deleted)
    deleted.add_argument(
        '--also-parent', action='store_true', help='also if it is the parent of another version'
    )
    deleted.add_argument('--yes', action='store_true', help='do not ask')
    published = _action(actions, 'publish', 'copy the folder of a policy into a store', publish)
    _add_publish(published)
    fetched = _action(actions, 'fetch', 'copy a version from another store or server', fetch)
    _add_fetch(fetched)
    _add_serve(_action(actions, 'serve', 'let other machines fetch from a store', serve))
    for action in (listed, shown, verified, compared, published, fetched):
        action.add_argument('--json', action='store_true', help='print JSON')


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    operation: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=f'{text[0].upper()}{text[1:]}.')
    parser.add_argument(
        '--store', type=Path, metavar='FOLDER', help=f'folder of the store ($ROS_HOME/{STORE})'
    )
    parser.set_defaults(operation=operation)
    return parser


def _add_version(
    parser: argparse.ArgumentParser, *, name: str = 'version', nargs: str = '', more: str = ''
) -> None:
    values: dict[str, Any] = {'nargs': nargs} if nargs else {}
    argument = parser.add_argument(
        name, metavar=name.upper(), help=f'{VERSION_HELP}{more}', **values
    )
    set_completer(argument, version_ids)


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'folder',
        metavar='FOLDER',
        help='directory of a LeRobot, built-in or exported policy, or USER/REPOSITORY of the hub',
    )
    parser.add_argument(
        '--name', default='', help='part of the id before the @ (that of the policy)'
    )
    set_completer(
        parser.add_argument(
            '--parent', default='', metavar='VERSION', help='version that it was trained from'
        ),
        version_ids,
    )
    parser.add_argument(
        '--dataset',
        default='',
        metavar='FOLDER|SHA256',
        help='data set that it was trained on; of a folder the hash of all files is noted',
    )
    parser.add_argument('--note', default='', metavar='TEXT', help='one line of text')
    parser.add_argument(
        '--source',
        dest='sources',
        nargs='+',
        action='extend',
        default=[],
        metavar='ADDRESS',
        help='where others may fetch it, as a note: http(s)://... or the full path of a store',
    )
    parser.add_argument(
        '--follow-links',
        action='store_true',
        help='copy the files that links point to (links are refused, but for those of the hub)',
    )
    parser.add_argument(
        '--trusted-packages',
        nargs='+',
        action='extend',
        default=[],
        metavar='PACKAGE',
        help='as the parameter of a policy_server, for policy types that it does not know',
    )


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('version', metavar='VERSION', help=VERSION_HELP)
    parser.add_argument(
        '--from',
        dest='origin',
        required=True,
        metavar='ADDRESS|FOLDER',
        help='http(s)://HOST:PORT of `versions serve`, a store, or the folder of a version',
    )
    parser.add_argument(
        '--token-file', type=Path, metavar='FILE', help='private file with a line NAME TOKEN'
    )
    parser.add_argument(
        '--tls-ca', type=Path, metavar='FILE', help='authority of an https server (the system)'
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--address', default=ADDRESS, help=f'address to listen on ({ADDRESS}: this machine alone)'
    )
    parser.add_argument(
        '--port', type=int, default=PORT, metavar='N', help=f'port, 0 for a free one ({PORT})'
    )
    parser.add_argument(
        '--token-file',
        type=Path,
        metavar='FILE',
        help='lines NAME TOKEN of those who may fetch, made if missing (everyone on this machine)',
    )
    parser.add_argument(
        '--allow-anyone',
        action='store_true',
        help='serve other machines without tokens, on a network that you trust',
    )
    parser.add_argument('--tls-certificate', type=Path, metavar='FILE', help='serve https')
    parser.add_argument('--tls-key', type=Path, metavar='FILE', help='key of the certificate')


def main(options: argparse.Namespace) -> int:
    """Return the exit status of the action. Raises UserError."""
    options.store = (options.store or ros_home() / STORE).expanduser()
    operation: Callable[[argparse.Namespace], int] = options.operation
    return operation(options)


def version_ids(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the ids of the store of a command line for a shell; none on an error."""
    from lerobot_serve.versions.store import Store

    with contextlib.suppress(Exception):
        folder = getattr(parsed_args, 'store', None) or ros_home() / STORE
        return Store.open(Path(folder).expanduser()).layout.ids()
    return []


def list_versions(options: argparse.Namespace) -> int:
    from lerobot_serve.tools.versions import texts

    store = _opened(options)
    entries = store.entries()
    found = [texts.entry_json(each, store.path(each.id)) for each in entries]
    _print(options, found, lambda: texts.table(entries, options.store))
    return 0


def show(options: argparse.Namespace) -> int:
    from lerobot_serve.tools.versions import texts

    store = _opened(options)
    entry = store.entry(options.version)
    folder = store.path(entry.id)
    _print(options, texts.entry_json(entry, folder), lambda: texts.details(entry, folder))
    return 0 if entry.manifest else 1


def verify(options: argparse.Namespace) -> int:
    from lerobot_serve.tools.versions import texts
    from lerobot_serve.versions.locks import held
    from lerobot_serve.versions.verifying import faults_of

    store = _opened(options)
    entries = [store.entry(each) for each in options.version] or store.entries()
    faults: dict[str, list[str]] = {}
    with _progress(texts.total_bytes(entries)) as progress:
        count = progress.begin('verifying', texts.total_bytes(entries))
        for each in entries:
            faults[each.id] = [each.fault]
            if each.manifest:
                with held(store.path(each.id)):
                    faults[each.id] = faults_of(store.path(each.id), each.manifest, count)
    _print(options, texts.verified_json(faults), lambda: texts.verified_text(faults))
    return int(any(faults.values()))


def compare(options: argparse.Namespace) -> int:
    import msgspec

    from lerobot_serve.tools.versions import texts
    from lerobot_serve.versions.comparing import differences
    from lerobot_serve.versions.manifest import read_manifest

    store = _opened(options)
    first, second = (
        read_manifest(store.path(store.entry(each).id)) for each in (options.first, options.second)
    )
    found = differences(first, second)
    as_json = {'first': first.id, 'second': second.id, **msgspec.to_builtins(found)}
    _print(options, as_json, lambda: texts.comparison(first, second, found))
    return 0


def pin(options: argparse.Namespace) -> int:
    if not options.note.isprintable():
        raise WrongCommandLine('--note must be one line of printable characters')
    store = _opened(options)
    entry = store.entry(options.version)
    store.pin(entry.id, options.note)
    print(f'{entry.id} is pinned')
    return 0


def unpin(options: argparse.Namespace) -> int:
    store = _opened(options)
    entry = store.entry(options.version)
    store.unpin(entry.id)
    print(f'{entry.id} is not pinned' if entry.is_pinned else f'{entry.id} was not pinned')
    return 0


def delete(options: argparse.Namespace) -> int:
    store = _opened(options)
    entry = store.entry(options.version)
    _confirm(options, entry)
    store.delete(entry.id, also_parent=options.also_parent)
    print(f'{entry.id} is deleted')
    return 0


def _confirm(options: argparse.Namespace, entry: Entry) -> None:
    """Ask once. Raises UserError without a yes, WrongCommandLine without a terminal."""
    if options.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise WrongCommandLine('there is no terminal to ask on: add --yes. Nothing was changed')
    print(f'Delete {entry.id} of {options.store}? [y/N] ', end='', file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ('y', 'yes'):
        raise UserError('not confirmed; nothing was changed')


def publish(options: argparse.Namespace) -> int:
    from lerobot_serve.policies.base import PolicyError
    from lerobot_serve.policies.lerobot.hub import local_folder
    from lerobot_serve.tools.versions import texts
    from lerobot_serve.tools.versions.identity import identify
    from lerobot_serve.versions.publishing import policy_paths, PolicyIdentity
    from lerobot_serve.versions.publishing import publish as publish_folder
    from lerobot_serve.versions.store import Store
    from lerobot_serve.versions.verifying import is_version

    try:
        source = Path(local_folder(options.folder)).expanduser()
    except PolicyError as error:
        raise UserError(str(error)) from None

    def identity(folder: Path) -> PolicyIdentity:
        # the copy is named by its manifest, as for the server that will load it
        name = '' if is_version(folder) else options.name
        return identify(folder, name, tuple(options.trusted_packages))

    identity(source)
    store = Store.make(options.store)
    size = sum((source / path).stat().st_size for path in policy_paths(source)[0])
    with _progress(size) as progress:
        details = _details(options, store, progress)
        count = progress.begin('publishing', size)
        done = publish_folder(
            store, source, identity, details, count, follows_links=options.follow_links
        )
    entry = store.entry(done.manifest.id)
    folder = store.path(entry.id)
    as_json = {'is_new': done.is_new, 'left_out': done.left_out, **texts.entry_json(entry, folder)}
    _print(options, as_json, lambda: texts.published_text(done, folder))
    return 0


def _details(options: argparse.Namespace, store: Store, progress: ConversionProgress) -> Details:
    """Return what the command line says of a version. Raises VersionError."""
    from datetime import datetime, timezone

    from lerobot_serve.versions.manifest import TIME_FORMAT
    from lerobot_serve.versions.publishing import Details

    return Details(
        created=datetime.now(timezone.utc).strftime(TIME_FORMAT),
        parent=_parent(options.parent, store),
        dataset_sha256=_dataset(options.dataset, progress),
        note=options.note,
        sources=tuple(options.sources),
    )


def _parent(given: str, store: Store) -> str:
    """Return the id of a parent, which may be a whole id that this store does not have."""
    from lerobot_serve.versions.manifest import ID

    return given if not given or ID.fullmatch(given) else store.entry(given).id


def _dataset(given: str, progress: ConversionProgress) -> str:
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


def fetch(options: argparse.Namespace) -> int:
    from lerobot_serve.tools.versions import texts
    from lerobot_serve.tools.versions.identity import why_not_checked
    from lerobot_serve.versions.manifest import Manifest
    from lerobot_serve.versions.store import Store
    from lerobot_serve.versions.transfer.fetching import Fetch

    source = _source(options)
    store = Store.make(options.store)
    notes: list[str] = []
    with _progress(SHOW_ABOVE_BYTES) as progress:
        run = Fetch(store, source)

        def begin(manifest: Manifest) -> None:
            if manifest.size_bytes >= SHOW_ABOVE_BYTES:
                run.count = progress.begin(f'fetching {manifest.id}', manifest.size_bytes)

        run.begin = begin
        run.check = lambda folder, manifest: notes.append(why_not_checked(folder, manifest))
        done = run.run(options.version)
    for note in filter(None, notes):
        print(f'note: the fingerprint is not compared: {note}', file=sys.stderr)
    folder = store.path(done.manifest.id)
    as_json = {
        'is_new': done.is_new,
        'transferred_bytes': done.transferred_bytes,
        **texts.entry_json(store.entry(done.manifest.id), folder),
    }
    state = f'fetched ({texts.size_text(done.transferred_bytes)})' if done.is_new else 'is there'
    serve_it = f'serve it: lerobot-serve serve {folder}'
    _print(options, as_json, lambda: f'{done.manifest.id} {state}\n{serve_it}')
    return 0


def _source(options: argparse.Namespace) -> VersionSource:
    """Return where to fetch from. Raises UserError."""
    from lerobot_serve.versions.transfer import http_files
    from lerobot_serve.versions.transfer.source import FolderSource

    if not http_files.is_address(options.origin):
        if options.token_file or options.tls_ca:
            raise WrongCommandLine('--token-file and --tls-ca are for http(s)://, not a folder')
        return FolderSource(Path(options.origin).expanduser())
    token = http_files.read_token(options.token_file.expanduser()) if options.token_file else ''
    address = http_files.ServerAddress(options.origin.rstrip('/'), token, options.tls_ca)
    if address.warning:
        print(f'warning: {address.warning}', file=sys.stderr)
    return http_files.HttpSource(address)


def serve(options: argparse.Namespace) -> int:
    import signal
    import threading

    from lerobot_serve.tools.output.text import without_controls
    from lerobot_serve.versions.transfer.serving import StoreHttpServer

    store = _opened(options)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    server = StoreHttpServer(
        store, _http_settings(options), lambda line: print(without_controls(line), flush=True)
    )
    try:
        print(f'{options.store}: {len(store.layout.ids())} versions at {server.url}', flush=True)
        ended.wait()
    finally:
        server.close()
    return 0


def _http_settings(options: argparse.Namespace) -> Any:
    """Return the settings of the server. Raises UserError."""
    from lerobot_serve.access.addresses import is_loopback_address
    from lerobot_serve.access.token_file import open_tokens
    from lerobot_serve.versions.transfer.serving import HttpSettings, server_tls

    if not 0 <= options.port <= 65535:
        raise WrongCommandLine(f'--port must be in [0, 65535], got {options.port}')
    tokens = None
    if options.token_file:
        tokens = open_tokens(options.token_file.expanduser(), 'who may fetch versions')
    elif not (is_loopback_address(options.address) or options.allow_anyone):
        raise UserError(
            f'--address {options.address} is reached by other machines; give --token-file FILE '
            '(it is made if missing), or --allow-anyone on a network that you trust'
        )
    tls = server_tls(options.tls_certificate, options.tls_key)
    if tls is None and not is_loopback_address(options.address):
        print(
            'warning: without --tls-certificate others on the network can read policies and '
            'tokens',
            file=sys.stderr,
        )
    return HttpSettings(options.address, options.port, tokens, tls)


def _opened(options: argparse.Namespace) -> Store:
    from lerobot_serve.versions.store import Store

    return Store.open(options.store)


@contextlib.contextmanager
def _progress(size_bytes: int) -> Any:
    """Yield the progress of reading so many bytes; few are not shown."""
    from lerobot_serve.tools.cli.conversion_progress import ConversionProgress

    progress = ConversionProgress()
    if size_bytes < SHOW_ABOVE_BYTES:
        progress.begin = lambda what, total_bytes: lambda size: None  # type: ignore[method-assign]
    try:
        yield progress
    finally:
        progress.end()


def _print(options: argparse.Namespace, found: Any, text: Callable[[], str]) -> None:
    import json

    print(json.dumps(found, indent=2) if options.json else text())

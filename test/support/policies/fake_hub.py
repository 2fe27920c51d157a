# SPDX-License-Identifier: Apache-2.0
"""
A Hugging Face hub on 127.0.0.1: the part of its HTTP interface with which models are downloaded.

One thread answers; requests are recorded. `with FakeHub(repositories) as hub`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json
from pathlib import Path
import re
import threading
from typing import Any

MODEL = re.compile(r'/api/models/([\w.-]+/[\w.-]+)/revision/([^/?]+)')
TREE = re.compile(r'/api/models/([\w.-]+/[\w.-]+)/tree/([^/?]+)')
FILE = re.compile(r'/([\w.-]+/[\w.-]+)/resolve/([0-9a-f]{40})/(.+)')


@dataclass
class Repository:
    """The files of each commit, and the branches and tags that name a commit."""

    commits: dict[str, dict[str, bytes]]
    names: dict[str, str]
    gated: bool = False

    def commit(self, revision: str) -> str:
        return revision if revision in self.commits else self.names.get(revision, '')


@dataclass
class FakeHub:
    """See the module. Stops when the block ends."""

    repositories: dict[str, Repository]
    paths: list[str] = field(default_factory=list)

    def __enter__(self) -> FakeHub:
        handler = type('Handler', (_Handler,), {'hub': self})
        self._server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._server.server_address[1]}'

    @property
    def downloaded(self) -> set[str]:
        """Return the names of the files that were asked for."""
        return {match[3] for match in map(FILE.match, self.paths) if match}


def repository(folder: Path, commit: str, **others: bytes) -> Repository:
    """Return a repository with the files of a folder at one commit, which is `main`."""
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return Repository({commit: files | others}, {'main': commit})


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = 'HTTP/1.1'

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        self.hub.paths.append(self.path)
        if match := MODEL.match(self.path):
            self._model(match[1], match[2])
        elif match := TREE.match(self.path):
            self._tree(match[1], match[2])
        elif match := FILE.match(self.path):
            self._file(*match.groups())
        else:
            self._send(404, b'{}')

    def _model(self, name: str, revision: str) -> None:
        held = self.hub.repositories.get(name)
        if held is None:
            self._send(401, b'{}', {'X-Error-Code': 'RepoNotFound'})
        elif held.gated:
            self._send(403, b'{}', {'X-Error-Code': 'GatedRepo'})
        elif not held.commit(revision):
            self._send(404, b'{}', {'X-Error-Code': 'RevisionNotFound'})
        else:
            commit = held.commit(revision)
            files = held.commits[commit]
            siblings = [{'rfilename': name, 'size': len(data)} for name, data in files.items()]
            described = {'id': name, 'modelId': name, 'sha': commit, 'siblings': siblings}
            self._send(200, json.dumps(described).encode(), {'Content-Type': 'application/json'})

    def _tree(self, name: str, commit: str) -> None:
        files = self.hub.repositories[name].commits[commit]
        listed = [
            {'type': 'file', 'path': path, 'size': len(data), 'oid': digest(data)}
            for path, data in files.items()
        ]
        self._send(200, json.dumps(listed).encode(), {'Content-Type': 'application/json'})

    def _file(self, name: str, commit: str, file: str) -> None:
        data = self.hub.repositories[name].commits[commit].get(file)
        if data is None:
            self._send(404, b'', {'X-Error-Code': 'EntryNotFound'})
            return
        self._send(200, data, {'ETag': f'"{digest(data)}"', 'X-Repo-Commit': commit})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), 'Content-Length': str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(data)

# SPDX-License-Identifier: Apache-2.0
"""TLS files for an endpoint of this machine."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.tools.keys.certificates import make_authority, make_certificate


def certificate_files(folder: Path) -> tuple[str, str, str]:
    """Return the paths of an authority, of a certificate for 127.0.0.1, and of its key."""
    authority = make_authority('test', 2)
    pair = make_certificate(authority, 'door', 1, hosts=['127.0.0.1'], may_listen=True)
    contents = {
        'authority.pem': authority.certificate,
        'certificate.pem': pair.certificate,
        'key.pem': pair.key,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    authority_file, certificate_file, key_file = (str(folder / name) for name in contents)
    return authority_file, certificate_file, key_file

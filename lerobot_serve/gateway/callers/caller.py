# SPDX-License-Identifier: Apache-2.0
"""Who a client of the gateway is, and the name of its session. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
import hashlib

from lerobot_serve.contract.limits import ID_LIMIT

# the audit recognises sessions of a gateway by it
CLIENT_PREFIX = 'gateway/'
NO_CAGE = 'this caller has no safety cage and no fallback ladder: only an edge_controller has them'


@dataclass(frozen=True, slots=True)
class Caller:
    """
    One client of one door; equal callers share a session.

    protocol  name of the door, such as openpi
    address   host and port of the connection, or host alone where `name` tells clients apart
    name      what the client calls itself, or the name of its token; may be empty
    owner     whose episodes they are, where it is not host and name
    """

    protocol: str
    address: str
    name: str = ''
    owner: str = field(default='', compare=False)

    @property
    def episode_owner(self) -> str:
        """Return whose episodes they are: the same for each connection of a client."""
        return self.owner or f'{host_of(self.address)}/{self.name}'

    @property
    def client_id(self) -> str:
        """Return the client_id of the session: printable, bounded, unique for each caller."""
        who = f'{self.name}@{self.address}' if self.name else self.address
        whole = f'{CLIENT_PREFIX}{self.protocol}/{who}'
        safe = ''.join(letter if letter.isprintable() else '?' for letter in whole)
        if safe == whole and len(whole.encode('utf-8', 'replace')) <= ID_LIMIT:
            return whole
        digest = hashlib.blake2s(whole.encode('utf-8', 'surrogatepass'), digest_size=8)
        end = f'~{digest.hexdigest()}'
        start = safe.encode('utf-8', 'replace')[: ID_LIMIT - len(end)]
        return start.decode(errors='ignore') + end


def host_of(address: str) -> str:
    """Return the host of an address such as 127.0.0.1:5000."""
    return address.rpartition(':')[0] or address

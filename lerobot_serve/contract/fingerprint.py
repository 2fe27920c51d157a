# SPDX-License-Identifier: Apache-2.0
"""The parts of a fingerprint, NAME@DIGEST: the name is free, the digest is that of the files."""

from __future__ import annotations


def digest_of(fingerprint: str) -> str:
    """Return the digest; a text without one is its own."""
    return fingerprint.rpartition('@')[2]


def weights_of(fingerprint: str) -> str:
    """Return what policies of the same weights share; one without a digest stands for itself."""
    return digest_of(fingerprint) or fingerprint

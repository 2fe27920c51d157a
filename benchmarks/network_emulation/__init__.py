# SPDX-License-Identifier: Apache-2.0
"""
A slow, lossy link on one machine: two network namespaces and a relay process between them.
Started by slow_link; needs user namespaces and /dev/net/tun, and raises LinkUnavailable without.
Main thread; the relay is a process without other threads.
"""

# SPDX-License-Identifier: Apache-2.0
"""
Who may reach a server of this package: tokens in private files, addresses, TLS. Plain modules for
whatever listens (dashboard, gateway, stores of versions), and for the client.
"""

# SPDX-License-Identifier: Apache-2.0
"""
The Upstream over the contract of this package: sessions of a policy router or of one policy
server. The event loop owns all of it; links deposit, and calls that block have threads of a pool.
"""

# SPDX-License-Identifier: Apache-2.0
"""
The checks of an audit: one class an invariant. They share no code with what they judge.

The engine calls them in one thread.
"""

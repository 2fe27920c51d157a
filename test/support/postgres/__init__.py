# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server for tests, where one is installed."""

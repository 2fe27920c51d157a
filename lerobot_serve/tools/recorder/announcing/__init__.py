# SPDX-License-Identifier: Apache-2.0
"""
Announces episodes whose bags are whole. The writing thread names bags, the thread `announcing`
reads, hashes and publishes them; neither waits for the other.
"""

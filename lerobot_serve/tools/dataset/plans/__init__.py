# SPDX-License-Identifier: Apache-2.0
"""
Decides from one pass over the bags which rows a dataset has, and which messages each row needs.
Called by `convert`. Pure but for `bag_index`, which reads; one thread.
"""

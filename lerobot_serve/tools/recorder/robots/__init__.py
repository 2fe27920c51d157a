# SPDX-License-Identifier: Apache-2.0
"""Whose a topic and a message are: edge controllers, and what their robot files name. Pure."""

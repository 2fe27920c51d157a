# SPDX-License-Identifier: Apache-2.0
"""
Map messages to what a viewer shows. Pure, but for what each mapping remembers; one thread.

`message_view.py` calls it.
"""

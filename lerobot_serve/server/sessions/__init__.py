# SPDX-License-Identifier: Apache-2.0
"""
Open, validate, admit and expire the sessions of clients.
The node's services call `session_service`; `core` uses the session table.
Thread: executor. Only SessionTable.find and .record_activity run on `intake`.
"""

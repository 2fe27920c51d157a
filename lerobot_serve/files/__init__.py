# SPDX-License-Identifier: Apache-2.0
"""
Files that people write, or that come from elsewhere: a bounded text, its content, and a record of
it. `parsing` reads YAML and JSON without their surprises, `load` makes a record (a msgspec Struct
whose annotations are its bounds) and names what is wrong: place, value, what is allowed, and the
nearest name. Pure, except for `parsing.read`; any thread.
"""

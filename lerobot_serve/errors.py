# SPDX-License-Identifier: Apache-2.0
"""The error that the user of a program can correct. Any room raises it; executables print it."""


class UserError(Exception):
    """An error that the user can correct; printed as one line, without a traceback."""

    # of a verb that ends with it
    exit_status = 1


class WrongCommandLine(UserError):
    """A value of the command line is not allowed."""

    exit_status = 2

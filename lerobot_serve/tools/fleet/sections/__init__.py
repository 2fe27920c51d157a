# SPDX-License-Identifier: Apache-2.0
"""The sections of a fleet file besides servers, router, gateway and robots: one module each."""

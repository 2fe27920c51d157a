# SPDX-License-Identifier: Apache-2.0
"""
The keys of a site for the Zenoh link: an authority, a key for each machine, and the access files.

Needs neither ROS nor Zenoh. Only `certificates` needs the library cryptography. Any thread.
"""

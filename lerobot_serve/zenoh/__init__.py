# SPDX-License-Identifier: Apache-2.0
"""
The Zenoh link between robots, routers and policy servers: the services and topics of the contract
as queryables and keys, with the same CDR bytes.

The nodes build it. Zenoh calls back in threads of its own, one for each subscriber and queryable;
a callback deposits and returns. No ROS: a caller that needs ROS messages passes their conversions.
"""

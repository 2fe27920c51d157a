# SPDX-License-Identifier: Apache-2.0
"""
Learned robot policies, served from GPU machines to robots that carry no weights.

Rooms, from those that need nothing to those that need most. The table ALLOWED of
test/unit/package/test_architecture.py has, for each, the rooms that it may import:

    arrays        the types of arrays
    errors        the error that a user can correct
    parameters    declaration of a node parameter
    atomic_file, private_file, ros_home, state_folder    files of nodes and of users
    requirements  the packages that can be missing, and how to install them
    contract      messages as objects and as bytes, image codec, names
    cage          the last check of each command
    peer_formats  formats of other projects, read without executing anything
    access        who may reach a server: tokens, addresses, TLS
    quotas        what a robot or group may ask for
    shared_memory what killed processes leave behind in /dev/shm
    versions      stores of policies by fingerprint, fetching
    experience    announced episodes, and finding them on disks
    trace         record format, and writing it
    zenoh         the second link: keys, quality of service, endpoints
    telemetry     metrics, liveness and readiness over HTTP
    policies      loads and runs policies
    client        sessions without ROS, for notebooks
    entry_points  start and end of an executable
    ros           shared by all nodes: QoS, process, node, topics
    server        the node on a GPU host: sessions, scheduling, inference
    edge          the node on a robot: sessions, control, fallback, action queue, robot file
    router        data path, placement, canary, shadow, storage
    gateway       sessions for other people's clients
    learner       rounds of training, and their trainers
    sim           a simulated robot arm and its cameras
    tools         audit, stats, replay, bags, plan, link, fleet ...; tools/cli has the verbs
    demo          a simulated rollout with three policies

Beside policies only the trainers of learner and demo import torch.
No node imports tools or demo. Plain modules never import rclpy and raise typed errors;
node.py and, where a room has one, its folder `ros` connect it to ROS. What decides takes the time
or a clock as an argument; outer modules, such as server/core.py and router/runtime.py, read the
monotonic clock themselves for deadlines and durations.
"""

__version__ = '0.2.0'

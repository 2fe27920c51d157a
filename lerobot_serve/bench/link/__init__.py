"""
A slow link on one machine: two network namespaces, and a process that carries packets between.

    pipe        what becomes of a packet, and when: rate, delay, queue, loss
    kernel      namespaces and their interfaces, as the kernel has them
    relay       the process that owns both namespaces and carries the packets
    within      starts a command in one of them, as on a machine of its own
    processes   a relay with a robot's and a server's side, while it is needed
    probe       what a relay really gives, without ROS
    robot       the process of a robot that asks a policy server whenever it is told to
    ways        how that robot sends its pictures
    turns       those who are compared, and what becomes of their trips
    judged      what that says of them

The namespaces end with the relay and what runs in them; nothing outside is changed.
"""

"""
What a policy is, and how one is found, loaded and identified.

    base, registry       the contract, and finding a policy by its kind
    builtin/             the demo's trained policy
    lerobot/             directories that LeRobot wrote
    exported/            programs that torch exported
    null, recurrent      without a model: for measurements, tests and demos
    states, seeds        hidden state of each session; random numbers of each request
    memory, device       room on the device, and the device itself
    fingerprint          which policy is this?

The only room that imports torch, and only inside the modules that need it: the contract, the
registry, the memory guard and the policies without a model do not.
"""

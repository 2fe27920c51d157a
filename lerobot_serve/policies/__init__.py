"""
What a policy is, and how one is found, loaded and identified.

The only room that imports torch, and only inside the modules that need it: `base`, `registry` and
`null` do not.
"""

"""The two ways in which a message can be wrong: the peer's fault and ours."""


class Malformed(ValueError):
    """
    What a peer sent cannot be used.

    `reason` is one word of a fixed list, for counters; the text says what was found and what is
    allowed.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Unencodable(ValueError):
    """What we were asked to send breaks the contract; raised before a byte leaves."""

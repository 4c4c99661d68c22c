"""Code that nobody listed. That it was imported is all that tests ask of it."""


def operator(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    raise AssertionError("nobody may call it")

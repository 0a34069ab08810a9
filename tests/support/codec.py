"""A codec from the standard library alone, for tests: a keystream of HMACs under a random nonce, with a tag."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets


class HmacCodec:
    """Encrypts, authenticates and digests with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, data: bytes, /) -> bytes:
        nonce = secrets.token_bytes(16)
        sealed = self._mixed(nonce, data)
        return nonce + sealed + self._mac(b"tag", nonce + sealed)

    def decrypt(self, data: bytes, /) -> bytes:
        nonce, sealed, tag = data[:16], data[16:-32], data[-32:]
        if not hmac.compare_digest(tag, self._mac(b"tag", nonce + sealed)):
            raise ValueError("wrong key, or not what was encrypted")
        return self._mixed(nonce, sealed)

    def digest(self, data: bytes, /) -> bytes:
        return self._mac(b"digest", data)

    def _mixed(self, nonce: bytes, data: bytes) -> bytes:
        blocks = (self._mac(b"stream", nonce + number.to_bytes(8)) for number in itertools.count())
        stream = itertools.chain.from_iterable(blocks)
        return bytes(one ^ other for one, other in zip(data, stream, strict=False))

    def _mac(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.new(self._key, purpose + data, hashlib.sha256).digest()

"""The form of requests: patterns with one reading for every parser. They never backtrack, so they take linear time.

Repeated groups are atomic and not possessive: `re` of Python before 3.11.5 matches possessive groups wrongly.
"""

from __future__ import annotations

import re

_VALUE = rb"[^\x00-\x08\x0a-\x1f\x7f]*+"
_FIELDS = rb"(?>(?:(?!content-length:|transfer-encoding:)[!#$%&'*+.^_`|~0-9a-z-]++:" + _VALUE + rb"\r\n)*)"
_LENGTH = rb"content-length:[ \t]*+(?P<length>[0-9]{1,15})[ \t]*+\r\n"
_CHUNKED = rb"(?(1)transfer-encoding:[ \t]*+(?P<chunked>chunked)[ \t]*+\r\n|(?!))"  # HTTP/1.1 only
_LINE = rb"(?:\r\n)?(?!connect )[a-z-]++ [!-~\x80-\xff]++ http/1\.(?:0|(1))\r\n"
HEAD = re.compile(_LINE + _FIELDS + rb"(?:" + _LENGTH + rb"|" + _CHUNKED + rb")?" + _FIELDS + rb"\r\n", re.IGNORECASE)
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*+(?:;" + _VALUE + rb")?\r\n")
TRAILERS = re.compile(rb"\r\n" + _FIELDS + rb"\r\n", re.IGNORECASE)
UPGRADE = re.compile(rb"\nconnection:[^\r]*upgrade[^\r]*", re.IGNORECASE)

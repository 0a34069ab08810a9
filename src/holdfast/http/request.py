"""A request, as handlers read it: path parameters, query and body. Input that the route does not declare is refused."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from holdfast.client.interface import Client
from holdfast.client.run_handle import job_of_run
from holdfast.client.views import RunFilter
from holdfast.errors import InvalidArguments, UnknownJob
from holdfast.http.auth import HEADS, TOKEN, Principal
from holdfast.http.problems import Problem
from holdfast.http.request_limits import Limits, check_json, read_body
from holdfast.store.audit import acting
from holdfast.store.request_keys import RequestKey, request_key

if TYPE_CHECKING:
    from holdfast.http.application import Service

T = TypeVar("T")

LARGE_BYTES = 64 * 1024  # a request with a larger body waits for others like it
QUERY_FIELDS_MAX = 64
REPEAT_MAX = 16  # values per query parameter
TEXT_MAX = 1000  # characters of a query value
_RUN = re.compile(r"[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,254}\Z")
_decoders: dict[Any, Any] = {}  # by the type of the body
_KEY = re.compile(r"[!-~]{1,200}\Z", re.ASCII)
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?\Z", re.ASCII)
_FORMS = {
    "integer": re.compile(r"\d{1,15}\Z", re.ASCII),
    "number": re.compile(r"-?\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,3})?\Z", re.ASCII),
}


class Query(msgspec.Struct, frozen=True):
    """A query parameter. Handlers accept declared parameters only, so filters come from these lists alone.

    Attributes:
        name: its name; a name that ends with a dot is a prefix.
        kind: string, integer, number or boolean.
        description: its description in the reference.
        least: the smallest allowed number.
        most: the largest allowed number.
        repeat: whether a request may repeat it.
        words: the allowed values, if they are a closed list.
        pattern: the pattern of a string in the OpenAPI document; by default any text without NUL.
    """

    name: str
    kind: str
    description: str
    least: int | None = None
    most: int | None = None
    repeat: bool = False
    words: tuple[str, ...] = ()
    pattern: str = r"^[^\x00]*$"


class Call:
    """A request with its principal, its client and its limits."""

    __slots__ = ("_turn", "client", "limits", "principal", "request", "service")

    def __init__(self, request: Request, principal: Principal) -> None:
        self.request = request
        self.principal = principal
        self.service: Service = request.app
        self.client: Client = self.service.client
        self.limits: Limits = self.service.limits
        self._turn: asyncio.Lock | None = None

    @property
    def heads(self) -> dict[bytes, bytes]:
        """The headers by name, in lower case."""
        heads: dict[bytes, bytes] = self.request.scope[HEADS]
        return heads

    def close(self) -> None:
        """Let the next request with a large body go on."""
        if self._turn is not None:
            self._turn.release()
            self._turn = None

    @property
    def run_id(self) -> str:
        """The id of the run in the path.

        Raises:
            UnknownJob: the text cannot be the id of a run.
        """
        name: str = self.request.path_params["id"]
        if not _RUN.match(name):
            raise UnknownJob(name)
        number = name.rpartition(".")[2]
        if "." in name and (len(number) > 9 or not number.isdigit()):  # noqa: PLR2004 - no job has that many runs
            raise UnknownJob(name)
        return name

    def actor(self, given: str | None) -> str:
        """Return the name that the store records for this action. With a token it begins with the token's name.

        Raises:
            InvalidArguments: the given name stands for a token other than the one in the request, or cannot be printed.
        """
        if given and given.startswith(TOKEN) and given != self.principal.actor:
            raise InvalidArguments("actor", f"a name that begins with {TOKEN} must be that of the token in the request")
        if given and not given.isprintable():
            raise InvalidArguments("actor", "must have printable characters only")
        if not given or given == self.principal.actor:
            return self.principal.actor
        who = acting.get()
        if not self.principal.actor.startswith(TOKEN):
            if who is not None:
                who.actor = given
            return given
        if who is not None:
            who.said = given
        return f"{self.principal.actor} as {given}"

    async def owns(self, run_id: str) -> bool:
        """Return whether a run belongs to the group of the token. The group of a job never changes."""
        mine = RunFilter(task_id=job_of_run(run_id)[0], group=self.principal.group)
        return bool(await self.client.apage(mine, 1, None))

    async def check_own(self, run_id: str) -> None:
        """Check that a run belongs to the group of the token.

        A run of another group looks like a missing run, so that the token holder learns nothing about it.

        Raises:
            UnknownJob: the run is missing or belongs to another group.
        """
        if not await self.owns(run_id):
            raise UnknownJob(run_id)

    def group(self, named: str | None) -> str | None:
        """Return the group of the token if it has one, else the group that the request names.

        Raises:
            Problem: the token is bound to another group than the request names.
        """
        own = self.principal.group
        if own is None or named is None or named == own:
            return own if own is not None else named
        raise Problem(
            403, "forbidden", f"the token is bound to the group {own!r}, and the request names another group",
            "leave the group out; the server uses the group of the token",
        )  # fmt: skip

    def whole_store(self) -> Problem:
        """Return the problem for a token of a group on a route that covers the whole store."""
        return Problem(
            403, "forbidden", f"the token is bound to the group {self.principal.group!r}, the route covers all runs",
            "use a token without a group",
        )  # fmt: skip

    @property
    def idempotency_key(self) -> str | None:
        """The key in the `Idempotency-Key` header.

        Raises:
            InvalidArguments: the key is too long, or has characters that are not visible ASCII.
        """
        sent = self.heads.get(b"idempotency-key")
        if sent is None:
            return None
        key = sent.decode("latin-1")
        if key != '"' and key[:1] == key[-1:] == '"':  # a structured string: with its quotes
            key = key[1:-1]
        if not _KEY.match(key):
            raise InvalidArguments("Idempotency-Key", "must be 1 to 200 visible ASCII characters")
        return key

    def _note_key(self, data: bytes) -> None:
        """Let the commands of this request be executed once, if it has a key."""
        key = self.idempotency_key
        if key is not None:
            scope = self.request.scope
            parts = (scope["method"].encode(), scope["path"].encode(), scope["query_string"], data)
            fingerprint = hashlib.sha256(b"\0".join(parts)).hexdigest()
            request_key.set(RequestKey(self.principal.actor, key, fingerprint))

    def expect_many(self) -> None:
        """Let each command of this request have a key of its own, made from that of the request."""
        request = request_key.get()
        if request is not None:
            request_key.set(msgspec.structs.replace(request, many=True))

    @property
    def trace_id(self) -> str | None:
        """The trace id of the caller's span, from a valid W3C `traceparent` header."""
        sent = self.heads.get(b"traceparent")
        found = _TRACE.match(sent.decode("latin-1")) if sent is not None else None
        return found[1] if found is not None and found[1] != "0" * 32 else None

    def place(self, run_id: str) -> bytes:
        """Return the path of a run, with the mount prefix."""
        return f"{self.request.scope.get('root_path', '')}/api/v1/runs/{run_id}".encode()

    async def body(self, kind: type[T], empty: T | None = None) -> T:
        """Read the body as JSON of this type. `empty` is the value of a missing body, if one is allowed.

        Raises:
            Problem: the body is too large, is not JSON, or does not fit the type.
        """
        length = self.heads.get(b"content-length", b"0").decode("latin-1")
        data = await read_body(self.request.receive, length, self.limits)
        self._note_key(data)
        if not data and empty is not None:
            return empty
        self._check_media()
        if len(data) > LARGE_BYTES:  # each takes tens of milliseconds: one at a time, so that others get their turn
            turn = self.service.large_turn()
            await turn.acquire()
            self._turn = turn
        check_json(data, self.limits)
        decoder: msgspec.json.Decoder[T] = _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            raise Problem(
                422, "invalid_arguments", str(error), "GET /openapi.json has the schema of bodies",
                params={"name": "the request", "reason": str(error)},
            ) from error  # fmt: skip
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, "invalid_json", f"the body is not JSON: {error}", "send UTF-8 JSON") from error

    def _check_media(self) -> None:
        heads = self.heads
        sent = (heads.get(b"transfer-encoding") or b"chunked").strip().lower()
        kind, _, parameters = heads.get(b"content-type", b"").lower().partition(b";")
        charset = parameters.strip().removeprefix(b"charset=").strip(b'"')
        plain = heads.get(b"content-encoding") in {None, b"identity"} and sent == b"chunked"
        if kind.strip() != b"application/json" or charset not in {b"", b"utf-8"} or not plain:
            raise Problem(
                415, "unsupported_media_type", "the body must be uncompressed JSON in UTF-8",
                "send Content-Type: application/json",
            )  # fmt: skip

    def query(self, allowed: tuple[Query, ...]) -> dict[str, Any]:
        """Return the query parameters by name, each converted to its kind.

        Raises:
            InvalidArguments: a parameter is not allowed here, or its value does not fit its kind.
        """
        found: dict[str, Any] = {}
        if not self.request.scope["query_string"]:
            return found
        for name, text in self._pairs():
            one = next((each for each in allowed if _means(each, name)), None)
            if one is None:
                names = ", ".join(each.name for each in allowed) or "none"
                raise InvalidArguments("query", f"unknown parameter {name[:50]!r}; allowed: {names}")
            if one.repeat and not _begins(one, name):
                found.setdefault(name, []).append(_value(one, text))
                if len(found[name]) > REPEAT_MAX:
                    raise InvalidArguments("query", f"{name} is repeated more than {REPEAT_MAX} times")
            elif name in found:
                raise InvalidArguments("query", f"{name} must not be repeated")
            else:
                found[name] = _value(one, text)
        return found

    def _pairs(self) -> list[tuple[str, str]]:
        try:
            text = self.request.scope["query_string"].decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
        except ValueError as error:  # not ASCII, not UTF-8, or too many parameters
            raise Problem(
                400, "invalid_query", "the query is not a list of names and values", "percent-encode names and values"
            ) from error
        for name, value in pairs:
            if "\0" in name + value or len(value) > TEXT_MAX:
                raise InvalidArguments("query", f"a value must have at most {TEXT_MAX} characters and no NUL")
        return pairs


def matches_tag(header: str | None, tag: bytes) -> bool:
    """Return whether an If-Match or If-None-Match header names this entity tag, or any."""
    tags = [each.strip().removeprefix("W/").encode("latin-1") for each in (header or "").split(",")]
    return tag in tags or b"*" in tags


def _means(query: Query, name: str) -> bool:
    return _begins(query, name) or (query.name == name and not name.endswith("."))


def _begins(query: Query, name: str) -> bool:
    return query.name.endswith(".") and name.startswith(query.name) and len(name) > len(query.name)


def _value(query: Query, text: str) -> Any:
    if query.words and text not in query.words:
        raise InvalidArguments(query.name, f"must be one of {', '.join(query.words)}, got {text[:50]!r}")
    if query.kind not in _FORMS:
        return text
    if not _FORMS[query.kind].match(text) or not math.isfinite(float(text)):
        raise InvalidArguments(
            query.name, f"must be {'an' if query.kind == 'integer' else 'a'} {query.kind}, got {text[:50]!r}"
        )
    value = int(text) if query.kind == "integer" else float(text)
    if (query.least is not None and value < query.least) or (query.most is not None and value > query.most):
        raise InvalidArguments(query.name, f"must be from {query.least} to {query.most}, got {value}")
    return value

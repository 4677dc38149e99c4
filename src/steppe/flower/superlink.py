"""Flower's SuperLink with two ports: one for nodes, one for the operator.

Flower serves three APIs on one port: the nodes' (fleet), the operator's (control, which starts any app) and that of an
app's processes (runtime), the last two without a login. Here the nodes' port offers only what nodes need. Everything
else is on loopback, and only for the user who started the SuperLink.

    python -m steppe.flower.superlink --nodes HOST:PORT --max-reply MEGABYTES ...Flower's own options, with loopback
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
from typing import Any

import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.logger import console_handler
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from google.protobuf.message import DecodeError
from uvicorn.protocols.http.h11_impl import H11Protocol

from steppe.core.errors import show_codes
from steppe.flower.own_user import App, Receive, Scope, Send, admit_only_own_user, is_loopback, is_own_user, refuse

OPEN = tuple(f"/v1/fleet/{name}" for name in (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
))  # fmt: skip
JOIN = "/v1/fleet/register-node", "/v1/fleet/unregister-node"  # for nodes without keys
REPLY, OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
MB = 2**20
LARGEST = {OBJECT: 16 * MB, REPLY: 4 * MB}  # bytes of a request; Flower cuts arrays into objects of 5 MB
SMALL = 64 * 1024
PATIENCE = 120.0  # seconds for a request to arrive


class Doors:
    """Decide by the port of a request whether it is passed on to Flower."""

    def __init__(self, app: App, nodes_port: int, max_reply: int, keys: bool, own_user: bool) -> None:
        self.everything, self.fleet = admit_only_own_user(app), app
        self.nodes_port, self.max_reply, self.own_user = nodes_port, max_reply, own_user
        self.open = OPEN if keys else OPEN + JOIN
        self.sent: dict[bytes, int] = {}  # node's key -> bytes of the reply that it is sending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["server"][1] != self.nodes_port:
            await self.everything(scope, receive, send)
        elif scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self.open:
            await refuse(scope, send, 404, "not for nodes")
        elif self.own_user and not is_own_user(scope["client"], scope["server"]):
            await refuse(scope, send, 403, "only for the user who started this process, on the same machine")
        else:
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body within its limit, check it, pass it on, and count what Flower has accepted."""
        path, headers = scope["path"], dict(scope["headers"])
        limit, key = LARGEST.get(path, SMALL), headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), b"")
        declared = headers.get(b"content-length", b"0")
        if len(headers) != len(scope["headers"]):
            return await refuse(scope, send, 400, "a header occurs twice")
        if not declared.isdigit() or int(declared) > limit:
            return await refuse(scope, send, 413, f"larger than {limit} bytes")
        try:
            async with asyncio.timeout(PATIENCE):
                body = await _read(receive, limit)
        except TimeoutError:
            return await refuse(scope, send, 408, "too slow")
        if body is None:
            return None
        if len(body) > limit:
            return await refuse(scope, send, 413, f"larger than {limit} bytes")
        if path == REPLY and (why := find_fault(body)):
            return await refuse(scope, send, 400, why)
        if path == OBJECT and self.sent.get(key, 0) + len(body) > self.max_reply:
            return await refuse(scope, send, 413, f"the reply is larger than {self.max_reply} bytes")

        async def answer(message: Scope) -> None:
            # Only what Flower accepts is counted: it refuses a request that uses another node's public key.
            if message["type"] == "http.response.start" and message["status"] == 200:
                if path == REPLY:
                    self.sent[key] = 0
                elif path == OBJECT:
                    self.sent[key] = self.sent.get(key, 0) + len(body)
            await send(message)

        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Scope:
            return next(given, None) or await receive()

        await self.fleet(scope, again, answer)


async def _read(receive: Receive, limit: int) -> bytes | None:
    """Return a request's body, or as much as shows that it is too large; None if the connection was closed."""
    body = bytearray()
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)


class Impatient(H11Protocol):
    """Connections that are closed if a request's headers, which uvicorn waits for without end, do not arrive in time.

    h11, other than uvicorn's default parser, also limits the size of the headers.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.last: Any = None
        self.loop.call_later(PATIENCE, self.look)

    def look(self) -> None:
        """Close the connection if no request has begun since the last look, and none is being answered."""
        if self.cycle is self.last and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
        elif not self.transport.is_closing():
            self.last = self.cycle
            self.loop.call_later(PATIENCE, self.look)


def find_fault(body: bytes) -> str:
    """Return why a pushed message is refused: a node may only answer what it was asked, and in its own name."""
    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return "not a message"
    for message in request.messages_list:
        if not message.metadata.reply_to_message_id:
            return "a node may only reply"
        if message.metadata.src_node_id != request.node.node_id:
            return "a node may only reply in its own name"
    return ""


def escape_log(record: logging.LogRecord) -> bool:
    """Make control characters visible in a line of Flower's log, which quotes what nodes send."""
    record.msg, record.args = show_codes(record.getMessage()), None
    return True


def _allow_more_connections() -> None:
    """Raise the limit of open files: the more connections it takes to use all of them, the better."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= allowed < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))


def main() -> None:
    parser = argparse.ArgumentParser(prog="steppe.flower.superlink")
    parser.add_argument("--nodes", required=True, metavar="HOST:PORT", help="address that nodes connect to")
    parser.add_argument(
        "--max-reply", type=float, default=1024.0, metavar="MB", help="largest reply of a node, in megabytes"
    )
    ours, sys.argv[1:] = parser.parse_known_args()
    console_handler.addFilter(escape_log)
    config = _parse_superlink_lifespan_config()
    if not is_loopback(config.host):
        sys.exit(f"--host is {config.host}, but the operator's port must be on loopback: --nodes sets the open port.")
    host, _, port = ours.nodes.rpartition(":")
    _allow_more_connections()
    sockets = [_bind(config.host, config.port), _bind(host, int(port))]
    # Without keys, nodes can only be told apart by their user, which is known on loopback.
    alone = not config.enable_supernode_auth and is_loopback(host)
    doors = Doors(create_app(config, SuperLinkLifespan), int(port), int(ours.max_reply * MB),
                  config.enable_supernode_auth, alone)  # fmt: skip
    server = uvicorn.Server(uvicorn.Config(
        doors, http=Impatient, log_config=get_uvicorn_log_config(console_handler.level), ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile, proxy_headers=False, ws="none", server_header=False,
    ))  # fmt: skip
    server.run(sockets=sockets)


def _bind(host: str, port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((host, port))
    return found


if __name__ == "__main__":
    main()

"""Find the user at the other end of a loopback connection, from Linux's table of sockets.

Flower's control and runtime APIs on loopback need no login, so another user of the same machine could use them.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TABLE = Path("/proc/net/tcp")
ESTABLISHED = "01"  # a socket that is being closed belongs to root, so only this state is trusted


def is_own_user(client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
    """Return whether the socket at the client's end of this loopback connection belongs to the user of this process.

    Only Linux has such a table. On other systems, return True: all users of a machine share loopback there.
    """
    if client is None or server is None or not is_loopback(client[0]):
        return False
    if not TABLE.exists():
        return True
    wanted = [_format_address(*client), _format_address(*server), ESTABLISHED]
    for line in TABLE.read_text().splitlines()[1:]:
        words = line.split()
        if words[1:4] == wanted:
            return int(words[7]) == os.getuid()
    return False


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _format_address(host: str, port: int) -> str:
    """Format an address as in the table, in the machine's byte order."""
    return f"{int.from_bytes(ipaddress.IPv4Address(host).packed, sys.byteorder):08X}:{port:04X}"


async def refuse(scope: Scope, send: Send, status: int, why: str) -> None:
    """Answer instead of Flower."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": why.encode()})


def admit_only_own_user(app: App) -> App:
    """Restrict a web application to the user of this process."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_own_user(scope.get("client"), scope.get("server")):
            await app(scope, receive, send)
        else:
            await refuse(scope, send, 403, "only for the user who started this process, on the same machine")

    return guarded

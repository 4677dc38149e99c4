"""The scripts in a federation's folder, which start the SuperLink, Flower's command line and the nodes."""

from __future__ import annotations

from steppe.flower.app_hash import FILE as HASH
from steppe.flower.own_user import is_loopback

CONNECTION, PORT, CONTROL_PORT, NODE_PORT = "federation", 8000, 8001, 9094
QUIET = "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"


def format_superlink(host: str, tls: bool, telemetry: bool) -> str:
    """Return the script that starts the SuperLink."""
    bound = host if is_loopback(host) else "0.0.0.0"
    safe = ("--ssl-ca-certfile operator/ca.crt --ssl-certfile operator/server.crt --ssl-keyfile operator/server.key "
            "--enable-supernode-auth") if tls else "--insecure"  # fmt: skip
    return f"""#!/bin/sh
# The SuperLink. Nodes connect to the first port only. The operator uses the second, on this machine and as this user
# only. The server of a run is its child process. Stop it with Ctrl-C.
umask 077
cd "$(dirname "$0")/.." || exit 1
export FLWR_HOME="$PWD/operator/.flower"
{_format_exports(telemetry)}
exec python3 -P -m steppe.flower.superlink --nodes {bound}:"${{PORT:-{PORT}}}" --max-reply "${{MAX_REPLY_MB:-1024}}" \\
  --host 127.0.0.1 --port "${{CONTROL_PORT:-{CONTROL_PORT}}}" {safe} \\
  --database operator/state.db --disable-runtime-dependency-installation
"""


def format_flwr(telemetry: bool) -> str:
    """Return the script that runs Flower's command line for the federation."""
    return f"""#!/bin/sh
# Flower's command line, for this federation: operator/flwr.sh supernode list {CONNECTION}, for instance.
umask 077
cd "$(dirname "$0")/.." || exit 1
export FLWR_HOME="$PWD/operator/.flower"
{_format_exports(telemetry)}
exec flwr "$@"
"""


def format_node(client: int, host: str, tls: bool, telemetry: bool, own_data: bool) -> str:
    """Return the script that starts the node of a client, again and again until it is stopped."""
    safe = "--root-certificates ca.crt --auth-supernode-private-key key" if tls else "--insecure"
    data = "/path/to/data.npz" if own_data else "$PWD/data.npz"
    note = "# DATA is a folder of images by class, an .npz with x and y, or module:function.\n"
    return f"""#!/bin/sh
# The node of client {client}. It needs this folder, its data, and Steppe with the extra flower. Stop it with Ctrl-C.
# It runs only the app whose hash is in {HASH}.
umask 077
cd "$(dirname "$0")" || exit 1
export FLWR_HOME="$PWD/.flower"
{_format_exports(telemetry)}
{note if own_data else ""}DATA="${{DATA:-{data}}}"
trap 'kill "$child" 2>/dev/null; exit 0' INT TERM
while :; do
  python3 -P -m steppe.flower.supernode --app-hash {HASH} --superlink "${{SUPERLINK:-{host}:{PORT}}}" \\
    --port "${{PORT:-{NODE_PORT + client}}}" {safe} \\
    --node-config "client={client} data=\\"$DATA\\" state=\\"$PWD/state\\" $NODE_CONFIG" &
  child=$!
  wait "$child" && exit 0
  # For up to a minute, a SuperLink treats a killed node as alive and refuses its key.
  echo "steppe: the node has stopped and restarts in 10 seconds"
  sleep 10 &
  child=$!
  wait "$child"
done
"""


def _format_exports(telemetry: bool) -> str:
    """Return the settings that switch off Flower's telemetry and update checks."""
    values = ("1", "0") if telemetry else ("0", "1")
    lines = [f'export {name}="${{{name}:-{value}}}"' for name, value in zip(QUIET, values, strict=True)]
    return "\n".join([*lines, 'export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.5}"'])

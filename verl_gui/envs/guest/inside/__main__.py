"""``python3 -m guest_server --fd N`` (a listening socket) or ``--port N``."""

import argparse
import os
import socket
import subprocess
from http.server import ThreadingHTTPServer

from guest_server.api import Handler


def main() -> None:
    """Start the window manager and serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, help="descriptor of a listening socket")
    parser.add_argument("--port", type=int, default=5000, help="port on all addresses, without --fd")
    parser.add_argument("--openbox-config", required=True)
    options = parser.parse_args()
    for name in ("Desktop", "Documents", "Downloads", "Pictures"):
        os.makedirs(os.path.expanduser(f"~/{name}"), exist_ok=True)
    subprocess.Popen(["openbox", "--config-file", options.openbox_config])
    if options.fd is None:
        server = ThreadingHTTPServer(("0.0.0.0", options.port), Handler)
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = socket.socket(fileno=options.fd)
        server.server_address = server.socket.getsockname()
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()

#!/opt/trimaran/bin/python -IS
"""
Exit with 0 when the address that is given answers 200, else with 1: the health check of both images.

A server on loopback in a pod of its own network is out of the kubelet's reach, so the manifests run this as an exec probe too. It goes
directly, whatever proxy the environment names, and loads little, for it runs every few seconds.
"""

import http.client
import sys

TIMEOUT_SECONDS = 3.0


def is_healthy(address: str) -> bool:
    """Tell whether *address*, ``http://HOST:PORT/PATH``, answers 200 in time."""
    host, _, path = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


if __name__ == "__main__":
    sys.exit(not is_healthy(sys.argv[1]))

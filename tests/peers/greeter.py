"""gRPC's own client of `examples/tonic_greeter.rs`: greeter.py SCENARIO ADDRESS

It knows of the service what `helloworld.proto` says, and of rejections what Google's own types say.
"""

import faulthandler
import json
import sys
import time
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

# Whatever hangs prints where.
faulthandler.dump_traceback_later(600, exit=True)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES / "helloworld"))
protos, services = grpc.protos_and_services("helloworld.proto")

QUOTA = 5
PERIOD = 10
PATIENCE = 300


def stub(address, service_config=None):
    options = [("grpc.use_local_subchannel_pool", 1)]
    if service_config:
        options.append(("grpc.service_config", json.dumps(service_config)))
    return services.GreeterStub(grpc.insecure_channel(address, options))


def say_hello(greeter, name="you"):
    """Returns whether it is known to be counted, which it isn't if the store is late on a busy machine."""
    request = protos.HelloRequest(name=name)
    reply, call = greeter.SayHello.with_call(request, timeout=PATIENCE)
    assert reply.message == f"Hello {name}", reply
    return "ratelimit" in dict(call.initial_metadata())


def rejected(call):
    """What the rejection of `call` says of when to come back: in nanoseconds, and in milliseconds."""
    status = rpc_status.from_call(call)
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, call
    details = {detail.type_url.rpartition("/")[2]: detail for detail in status.details}
    assert sorted(details) == ["google.rpc.QuotaFailure", "google.rpc.RetryInfo"], status

    failure = error_details_pb2.QuotaFailure()
    assert details["google.rpc.QuotaFailure"].Unpack(failure)
    [violation] = failure.violations
    assert violation.subject == violation.quota_id == "greetings", violation
    assert violation.quota_value == QUOTA, violation
    assert violation.description == f"quota exceeded: {QUOTA}/{PERIOD}s", violation

    info = error_details_pb2.RetryInfo()
    assert details["google.rpc.RetryInfo"].Unpack(info)
    delay = info.retry_delay.ToNanoseconds()
    metadata = dict(call.trailing_metadata())
    pushback = int(metadata["grpc-retry-pushback-ms"])
    # Rounded up: a retry by either is in time.
    assert pushback == -(-delay // 1_000_000), (pushback, delay)
    assert 0 < pushback <= PERIOD * 1_000, pushback
    return delay, pushback


def use_up(greeter, start, counted=0):
    """Asks for all that may pass since `start`, but for what was counted before; returns the rejection that comes next."""
    passed = counted
    try:
        while True:
            counted += say_hello(greeter)
            passed += 1
    except grpc.RpcError as error:
        call = error
    delay, _ = rejected(call)
    # No caller has less, and none more, unless it took longer than the period.
    elapsed = time.monotonic() - start
    assert passed >= QUOTA and (counted <= QUOTA or elapsed > PERIOD), (passed, counted)
    # What came after `start` counts for a whole period.
    assert elapsed + delay / 1e9 >= PERIOD, (elapsed, delay)
    return call


def details(address):
    """Five pass, and the sixth has all fields that say when to retry."""
    call = use_up(stub(address), time.monotonic())
    metadata = dict(call.trailing_metadata())
    assert metadata["ratelimit-policy"] == f'"greetings";q={QUOTA};w={PERIOD}', metadata
    _, pushback = rejected(call)
    assert metadata["retry-after"] == str(-(-pushback // 1_000)), metadata


def retry(address):
    """A client that retries by its policy alone comes back when the server says, and gets in."""
    start = time.monotonic()
    use_up(stub(address), start)
    policy = {
        # Without the server's word it would be back too early, and give up.
        "maxAttempts": 2,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    }
    of_all = {"name": [{"service": "helloworld.Greeter"}], "retryPolicy": policy}
    say_hello(stub(address, {"methodConfig": [of_all]}))
    assert time.monotonic() - start >= PERIOD


def stream(address):
    """Messages of a stream count as calls do, and the one that is rejected ends it."""
    greeter, start = stub(address), time.monotonic()
    counted = say_hello(greeter)
    requests = (protos.HelloRequest(name=str(n)) for n in range(1_000))
    call = greeter.SayHelloBidiStream(requests, timeout=PATIENCE)
    greeted = []
    try:
        for reply in call:
            greeted.append(reply.message)
    except grpc.RpcError:
        rejected(call)
    assert greeted == [f"Hello {n}" for n in range(len(greeted))], greeted
    assert len(greeted) >= QUOTA - counted, greeted
    use_up(greeter, start, counted + len(greeted))


if __name__ == "__main__":
    scenarios = {"details": details, "retry": retry, "stream": stream}
    scenarios[sys.argv[1]](sys.argv[2])
    print("ok")

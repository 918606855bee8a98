"""gRPC's own client of `tollgate-server`: envoy.py ADDRESS

It knows the messages by the server's reflection alone, and Google's own types by their package.
"""

import faulthandler
import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Whatever hangs prints where.
faulthandler.dump_traceback_later(600, exit=True)

PATIENCE = 300
SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
FIELD = descriptor_pb2.FieldDescriptorProto


def reflection_messages():
    """The request and the response of `grpc.reflection.v1`, with the fields that are needed here."""
    file = descriptor_pb2.FileDescriptorProto(name="reflection.proto", package="reflection", syntax="proto3")
    messages = [
        ("Request", [("file", 3, FIELD.TYPE_STRING, None), ("symbol", 4, FIELD.TYPE_STRING, None)]),
        ("Files", [("file", 1, FIELD.TYPE_BYTES, None)]),
        ("Response", [("files", 4, FIELD.TYPE_MESSAGE, ".reflection.Files")]),
    ]
    for name, fields in messages:
        message = file.message_type.add(name=name)
        for field, number, kind, of_type in fields:
            label = FIELD.LABEL_REPEATED if kind == FIELD.TYPE_BYTES else FIELD.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, type_name=of_type, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"reflection.{name}") for name in ("Request", "Response"))
    return [message_factory.GetMessageClass(message) for message in found]


def descriptors(channel):
    """A pool of all files that the service's needs."""
    request, response = reflection_messages()
    reflect = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )

    def fetch(**query):
        [reply] = reflect(iter([request(**query)]), timeout=PATIENCE)
        return [descriptor_pb2.FileDescriptorProto.FromString(file) for file in reply.files.file]

    pool, known = descriptor_pool.DescriptorPool(), set()

    def add(file):
        if file.name in known:
            return
        known.add(file.name)
        for needed in file.dependency:
            for other in fetch(file=needed):
                add(other)
        pool.Add(file)

    for file in fetch(symbol=SERVICE):
        add(file)
    return pool


def main(address):
    channel = grpc.insecure_channel(address)
    pool = descriptors(channel)
    method = pool.FindServiceByName(SERVICE).FindMethodByName("ShouldRateLimit")
    request = message_factory.GetMessageClass(method.input_type)
    response = message_factory.GetMessageClass(method.output_type)
    ask = channel.unary_unary(
        f"/{SERVICE}/ShouldRateLimit",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    entries = [{"key": "user", "value": "alice"}]

    def decide(**descriptor):
        fields = {"domain": "test", "descriptors": [{"entries": entries, **descriptor}]}
        return ask(request(**fields), timeout=PATIENCE)

    looked = decide(hits_addend={"value": 0})
    assert looked.overall_code == 1 and looked.statuses[0].limit_remaining == 2, looked
    for left in (1, 0):
        passed = decide()
        [status] = passed.statuses
        assert passed.overall_code == status.code == 1, passed
        assert status.limit_remaining == left, passed
        assert status.current_limit.requests_per_unit == 2, passed
        assert status.current_limit.unit == 3, passed
        assert status.duration_until_reset.seconds == 3200, passed
    refused = decide()
    assert refused.overall_code == refused.statuses[0].code == 2, refused
    assert b"quota-exceeded" in refused.raw_body, refused
    fields = {field.key: field.value for field in refused.response_headers_to_add}
    assert fields["retry-after"] == "3200", refused
    # A limit of its own.
    own = decide(limit={"requests_per_unit": 7, "unit": 4})
    assert own.overall_code == 1 and own.statuses[0].limit_remaining == 6, own

    for unfit, code in [
        ({}, grpc.StatusCode.INVALID_ARGUMENT),
        (
            {"domain": "test", "descriptors": [{"entries": entries, "is_negative_hits": True}]},
            grpc.StatusCode.PERMISSION_DENIED,
        ),
    ]:
        try:
            ask(request(**unfit), timeout=PATIENCE)
            raise AssertionError(f"{unfit} was answered")
        except grpc.RpcError as error:
            assert error.code() is code, error
    health = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert health(b"", timeout=PATIENCE) == b"\x08\x01"


main(sys.argv[1])

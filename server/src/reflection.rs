//! Server reflection, by which clients such as `grpcurl` learn the messages. Fields that the server does not know are left out.

use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    OneofDescriptorProto, ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use tonic_reflection::server::{
    Builder, Error,
    v1::{ServerReflection, ServerReflectionServer},
};

use crate::proto::{Code, Unit};

const SERVICE_FILE: &str = "envoy/service/ratelimit/v3/rls.proto";
const COMMON_FILE: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const UNIT_FILE: &str = "envoy/type/v3/ratelimit_unit.proto";
const HEADER_FILE: &str = "envoy/config/core/v3/base.proto";
const DURATION_FILE: &str = "google/protobuf/duration.proto";
const STRUCT_FILE: &str = "google/protobuf/struct.proto";
const WRAPPERS_FILE: &str = "google/protobuf/wrappers.proto";

/// The reflection service, version 1.
pub(crate) fn service() -> Result<ServerReflectionServer<impl ServerReflection>, Error> {
    Builder::configure()
        .register_file_descriptor_set(FileDescriptorSet { file: files() })
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
}

fn files() -> Vec<FileDescriptorProto> {
    vec![
        file(
            DURATION_FILE,
            "google.protobuf",
            &[],
            vec![message(
                "Duration",
                vec![
                    field("seconds", 1, Type::Int64),
                    field("nanos", 2, Type::Int32),
                ],
            )],
        ),
        file(
            WRAPPERS_FILE,
            "google.protobuf",
            &[],
            vec![message(
                "UInt64Value",
                vec![field("value", 1, Type::Uint64)],
            )],
        ),
        structs(),
        FileDescriptorProto {
            enum_type: vec![units("RateLimitUnit")],
            ..file(UNIT_FILE, "envoy.type.v3", &[], vec![])
        },
        file(
            HEADER_FILE,
            "envoy.config.core.v3",
            &[],
            vec![message(
                "HeaderValue",
                vec![
                    field("key", 1, Type::String),
                    field("value", 2, Type::String),
                    field("raw_value", 3, Type::Bytes),
                ],
            )],
        ),
        descriptors(),
        rate_limit_service(),
    ]
}

fn descriptors() -> FileDescriptorProto {
    let descriptor = DescriptorProto {
        nested_type: vec![
            message(
                "Entry",
                vec![
                    field("key", 1, Type::String),
                    field("value", 2, Type::String),
                ],
            ),
            message(
                "RateLimitOverride",
                vec![
                    field("requests_per_unit", 1, Type::Uint32),
                    of_type(field("unit", 2, Type::Enum), ".envoy.type.v3.RateLimitUnit"),
                ],
            ),
        ],
        ..message(
            "RateLimitDescriptor",
            vec![
                repeated(of_type(
                    field("entries", 1, Type::Message),
                    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
                )),
                of_type(
                    field("limit", 2, Type::Message),
                    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
                ),
                of_type(
                    field("hits_addend", 3, Type::Message),
                    ".google.protobuf.UInt64Value",
                ),
                field("is_negative_hits", 4, Type::Bool),
            ],
        )
    };
    let needs = [UNIT_FILE, WRAPPERS_FILE];
    file(
        COMMON_FILE,
        "envoy.extensions.common.ratelimit.v3",
        &needs,
        vec![descriptor],
    )
}

fn rate_limit_service() -> FileDescriptorProto {
    let own = |name: &str| format!(".envoy.service.ratelimit.v3.RateLimit{name}");
    let request = message(
        "RateLimitRequest",
        vec![
            field("domain", 1, Type::String),
            repeated(of_type(
                field("descriptors", 2, Type::Message),
                ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
            )),
            field("hits_addend", 3, Type::Uint32),
        ],
    );
    let header = ".envoy.config.core.v3.HeaderValue";
    let header = |name, number| repeated(of_type(field(name, number, Type::Message), header));
    let limit = DescriptorProto {
        enum_type: vec![units("Unit")],
        ..message(
            "RateLimit",
            vec![
                field("requests_per_unit", 1, Type::Uint32),
                of_type(
                    field("unit", 2, Type::Enum),
                    &own("Response.RateLimit.Unit"),
                ),
                field("name", 3, Type::String),
            ],
        )
    };
    let status = message(
        "DescriptorStatus",
        vec![
            of_type(field("code", 1, Type::Enum), &own("Response.Code")),
            of_type(
                field("current_limit", 2, Type::Message),
                &own("Response.RateLimit"),
            ),
            field("limit_remaining", 3, Type::Uint32),
            of_type(
                field("duration_until_reset", 4, Type::Message),
                ".google.protobuf.Duration",
            ),
        ],
    );
    let codes = [Code::Unknown, Code::Ok, Code::OverLimit].map(|code| (code.name(), code.into()));
    let response = DescriptorProto {
        enum_type: vec![enumeration("Code", codes)],
        nested_type: vec![limit, status],
        ..message(
            "RateLimitResponse",
            vec![
                of_type(field("overall_code", 1, Type::Enum), &own("Response.Code")),
                repeated(of_type(
                    field("statuses", 2, Type::Message),
                    &own("Response.DescriptorStatus"),
                )),
                header("response_headers_to_add", 3),
                header("request_headers_to_add", 4),
                field("raw_body", 5, Type::Bytes),
                of_type(
                    field("dynamic_metadata", 6, Type::Message),
                    ".google.protobuf.Struct",
                ),
            ],
        )
    };
    let needs = [COMMON_FILE, HEADER_FILE, DURATION_FILE, STRUCT_FILE];
    FileDescriptorProto {
        service: vec![ServiceDescriptorProto {
            name: Some("RateLimitService".to_owned()),
            method: vec![MethodDescriptorProto {
                name: Some("ShouldRateLimit".to_owned()),
                input_type: Some(own("Request")),
                output_type: Some(own("Response")),
                ..MethodDescriptorProto::default()
            }],
            options: None,
        }],
        ..file(
            SERVICE_FILE,
            "envoy.service.ratelimit.v3",
            &needs,
            vec![request, response],
        )
    }
}

fn structs() -> FileDescriptorProto {
    let fields = DescriptorProto {
        options: Some(MessageOptions {
            map_entry: Some(true),
            ..MessageOptions::default()
        }),
        ..message(
            "FieldsEntry",
            vec![
                field("key", 1, Type::String),
                of_type(field("value", 2, Type::Message), ".google.protobuf.Value"),
            ],
        )
    };
    let kind = |field| FieldDescriptorProto {
        oneof_index: Some(0),
        ..field
    };
    let value = DescriptorProto {
        oneof_decl: vec![OneofDescriptorProto {
            name: Some("kind".to_owned()),
            options: None,
        }],
        ..message(
            "Value",
            vec![
                kind(of_type(
                    field("null_value", 1, Type::Enum),
                    ".google.protobuf.NullValue",
                )),
                kind(field("number_value", 2, Type::Double)),
                kind(field("string_value", 3, Type::String)),
                kind(field("bool_value", 4, Type::Bool)),
                kind(of_type(
                    field("struct_value", 5, Type::Message),
                    ".google.protobuf.Struct",
                )),
                kind(of_type(
                    field("list_value", 6, Type::Message),
                    ".google.protobuf.ListValue",
                )),
            ],
        )
    };
    let structure = DescriptorProto {
        nested_type: vec![fields],
        ..message(
            "Struct",
            vec![repeated(of_type(
                field("fields", 1, Type::Message),
                ".google.protobuf.Struct.FieldsEntry",
            ))],
        )
    };
    let list = message(
        "ListValue",
        vec![repeated(of_type(
            field("values", 1, Type::Message),
            ".google.protobuf.Value",
        ))],
    );
    FileDescriptorProto {
        enum_type: vec![enumeration("NullValue", [("NULL_VALUE", 0)])],
        ..file(
            STRUCT_FILE,
            "google.protobuf",
            &[],
            vec![structure, value, list],
        )
    }
}

fn units(name: &str) -> EnumDescriptorProto {
    enumeration(name, Unit::ALL.map(|unit| (unit.name(), unit.into())))
}

fn file(
    name: &str,
    package: &str,
    needs: &[&str],
    messages: Vec<DescriptorProto>,
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: needs.iter().map(|&name| name.to_owned()).collect(),
        message_type: messages,
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.to_owned()),
        field,
        ..DescriptorProto::default()
    }
}

fn field(name: &str, number: i32, kind: Type) -> FieldDescriptorProto {
    let mut field = FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        ..FieldDescriptorProto::default()
    };
    field.set_type(kind);
    field.set_label(Label::Optional);
    field
}

/// A field of a message or an enum, by its full name with a dot before it.
fn of_type(field: FieldDescriptorProto, name: &str) -> FieldDescriptorProto {
    FieldDescriptorProto {
        type_name: Some(name.to_owned()),
        ..field
    }
}

fn repeated(mut field: FieldDescriptorProto) -> FieldDescriptorProto {
    field.set_label(Label::Repeated);
    field
}

fn enumeration<const N: usize>(name: &str, values: [(&str, i32); N]) -> EnumDescriptorProto {
    let values = values.map(|(name, number)| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        options: None,
    });
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.into(),
        ..EnumDescriptorProto::default()
    }
}

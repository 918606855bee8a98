//! The protocol in JSON, by the rules of protocol buffers: names in `camelCase`, or as in the definition; enums by name or
//! number; 64-bit numbers as text or number; no unknown fields.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost_types::value::Kind;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value, json};

use crate::proto::{
    self, DescriptorStatus, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    RateLimitResponse, Unit,
};

/// Reads a request.
///
/// # Errors
///
/// What is wrong, and where.
pub(crate) fn parse_request(json: &[u8]) -> Result<RateLimitRequest, serde_json::Error> {
    // Serde would take a list for the fields in their order.
    if json.trim_ascii_start().starts_with(b"[") {
        return Err(serde_json::Error::custom("expected an object"));
    }
    serde_json::from_slice::<Request>(json).map(Into::into)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    #[serde(default, deserialize_with = "or_default")]
    domain: String,
    #[serde(default, deserialize_with = "or_default")]
    descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hits_addend", deserialize_with = "or_default")]
    hits_addend: Number,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Descriptor {
    #[serde(default, deserialize_with = "or_default")]
    entries: Vec<Entry>,
    #[serde(default)]
    limit: Option<Limit>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "is_negative_hits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default, deserialize_with = "or_default")]
    key: String,
    #[serde(default, deserialize_with = "or_default")]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Limit {
    #[serde(default, alias = "requests_per_unit", deserialize_with = "or_default")]
    requests_per_unit: Number,
    #[serde(default, deserialize_with = "unit")]
    unit: i32,
}

/// A number, which may be text.
#[derive(Default)]
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number
            .map(Self)
            .ok_or_else(|| D::Error::custom("expected a whole number, not negative"))
    }
}

/// `null` is the default.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let unit = match &value {
        Value::Null => Some(0),
        Value::Number(number) => number
            .as_i64()
            .and_then(|number| i32::try_from(number).ok()),
        Value::String(name) => {
            let mut units = Unit::ALL.into_iter();
            units.find(|unit| unit.name() == name).map(Into::into)
        }
        _ => None,
    };
    unit.ok_or_else(|| D::Error::custom(format!("{value} is no unit, such as \"MINUTE\"")))
}

impl From<Request> for RateLimitRequest {
    fn from(request: Request) -> Self {
        let descriptors = request.descriptors.into_iter();
        Self {
            domain: request.domain,
            descriptors: descriptors.map(Into::into).collect(),
            hits_addend: clamp(request.hits_addend),
        }
    }
}

impl From<Descriptor> for RateLimitDescriptor {
    fn from(descriptor: Descriptor) -> Self {
        let entries = descriptor.entries.into_iter();
        let entries = entries.map(|Entry { key, value }| proto::Entry {
            key,
            value: value.into_bytes(),
        });
        Self {
            entries: entries.collect(),
            limit: descriptor.limit.map(|limit| RateLimitOverride {
                requests_per_unit: clamp(limit.requests_per_unit),
                unit: limit.unit,
            }),
            hits_addend: descriptor.hits_addend.map(|Number(cost)| cost),
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

fn clamp(Number(number): Number) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Writes a response. Fields with default values are left out.
pub(crate) fn write_response(response: &RateLimitResponse) -> String {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    add("overallCode", response.overall_code().name().into());
    add("statuses", response.statuses.iter().map(status).collect());
    let headers = |headers: &[proto::HeaderValue]| -> Value {
        let headers = headers.iter();
        headers
            .map(|header| json!({"key": header.key, "value": header.value}))
            .collect()
    };
    if !response.response_headers_to_add.is_empty() {
        add(
            "responseHeadersToAdd",
            headers(&response.response_headers_to_add),
        );
    }
    if !response.request_headers_to_add.is_empty() {
        add(
            "requestHeadersToAdd",
            headers(&response.request_headers_to_add),
        );
    }
    if !response.raw_body.is_empty() {
        add("rawBody", STANDARD.encode(&response.raw_body).into());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        add("dynamicMetadata", object(metadata));
    }
    Value::Object(fields).to_string()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), status.code().name().into());
    if let Some(limit) = &status.current_limit {
        let unit = limit.unit().name();
        let mut current = json!({"requestsPerUnit": limit.requests_per_unit, "unit": unit});
        if !limit.name.is_empty() {
            current["name"] = (&*limit.name).into();
        }
        fields.insert("currentLimit".to_owned(), current);
    }
    if status.limit_remaining > 0 {
        fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(duration) = &status.duration_until_reset {
        let text = format!("{}s", duration.seconds);
        fields.insert("durationUntilReset".to_owned(), text.into());
    }
    Value::Object(fields)
}

fn object(fields: &prost_types::Struct) -> Value {
    let fields = fields.fields.iter();
    Value::Object(
        fields
            .map(|(name, field)| (name.clone(), value(field)))
            .collect(),
    )
}

fn value(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => Value::from(&**text),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(self::value).collect(),
    }
}

//! The protocol in JSON, by the rules of protocol buffers: names in `camelCase`, or as in the definition; enums by name or
//! number; whole numbers in any form, or as text; no unknown fields; fields with default values are left out.

use std::{fmt, marker::PhantomData};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost_types::value::Kind;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value, json};

use crate::{
    proto::{
        self, DescriptorStatus, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
        RateLimitResponse,
    },
    rules::Unit,
};

/// Reads a request.
///
/// # Errors
///
/// What is wrong, and where.
pub(crate) fn parse_request(json: &[u8]) -> Result<RateLimitRequest, serde_json::Error> {
    serde_json::from_slice::<Object<Request>>(json).map(|Object(request)| request.into())
}

/// A message. By itself serde would take a list for its fields in their order, too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        let fields = deserializer.deserialize_map(Fields(PhantomData));
        fields.map(Self)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    #[serde(default, deserialize_with = "or_default")]
    domain: String,
    #[serde(default, deserialize_with = "or_default")]
    descriptors: Vec<Object<Descriptor>>,
    #[serde(default, alias = "hits_addend", deserialize_with = "or_default")]
    hits_addend: Number<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Descriptor {
    #[serde(default, deserialize_with = "or_default")]
    entries: Vec<Object<Entry>>,
    #[serde(default)]
    limit: Option<Object<Limit>>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<Number<u64>>,
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
    requests_per_unit: Number<u32>,
    #[serde(default, deserialize_with = "unit")]
    unit: i32,
}

/// A whole number, which may be text, and have a fraction of zeros or an exponent.
#[derive(Default)]
struct Number<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = whole(&value).and_then(|number| u64::try_from(number).ok());
        let number = number.and_then(|number| T::try_from(number).ok());
        number.map(Self).ok_or_else(|| {
            let bits = 8 * size_of::<T>();
            D::Error::custom(format!(
                "{value}: expected a whole number of {bits} bits, not negative"
            ))
        })
    }
}

fn whole(value: &Value) -> Option<i128> {
    let number = match value {
        Value::Number(number) => number.clone(),
        Value::String(text) if text.trim_ascii() == text => serde_json::from_str(text).ok()?,
        _ => return None,
    };
    let whole = number.as_u64().map(i128::from);
    let whole = whole.or_else(|| number.as_i64().map(i128::from));
    // Converted back it is the same, unless it is too large.
    whole.or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && float.abs() < 1e30).then_some(float as i128)
    })
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
        Value::Number(_) => whole(&value).and_then(|number| i32::try_from(number).ok()),
        Value::String(name) => (0..=7).find(|number| Unit::name_of(*number) == name),
        _ => None,
    };
    unit.ok_or_else(|| D::Error::custom(format!("{value} is no unit, such as \"MINUTE\"")))
}

impl From<Request> for RateLimitRequest {
    fn from(request: Request) -> Self {
        let descriptors = request.descriptors.into_iter();
        Self {
            domain: request.domain,
            descriptors: descriptors
                .map(|Object(descriptor)| descriptor.into())
                .collect(),
            hits_addend: request.hits_addend.0,
        }
    }
}

impl From<Descriptor> for RateLimitDescriptor {
    fn from(descriptor: Descriptor) -> Self {
        let entries = descriptor.entries.into_iter();
        let entries = entries.map(|Object(Entry { key, value })| proto::Entry {
            key,
            value: value.into_bytes(),
        });
        Self {
            entries: entries.collect(),
            limit: descriptor.limit.map(|Object(limit)| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit.0,
                unit: limit.unit,
            }),
            hits_addend: descriptor.hits_addend.map(|Number(cost)| cost),
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
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
        let mut current = Map::new();
        if limit.requests_per_unit > 0 {
            let number = limit.requests_per_unit.into();
            current.insert("requestsPerUnit".to_owned(), number);
        }
        if limit.unit != 0 {
            current.insert("unit".to_owned(), Unit::name_of(limit.unit).into());
        }
        if !limit.name.is_empty() {
            current.insert("name".to_owned(), (&*limit.name).into());
        }
        fields.insert("currentLimit".to_owned(), current.into());
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
        // Whole numbers without a fraction, while they have no more digits than are exact.
        Some(Kind::NumberValue(number)) => match *number as i64 {
            whole if whole as f64 == *number && whole.abs() < 1 << 53 => whole.into(),
            _ => (*number).into(),
        },
        Some(Kind::StringValue(text)) => Value::from(&**text),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(self::value).collect(),
    }
}

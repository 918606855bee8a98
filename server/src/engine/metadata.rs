//! Dynamic metadata: what filters behind the proxy's rate limit filter can read.

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::{Map, Value as Json};

use crate::{
    proto::{RateLimitDescriptor, RateLimitRequest},
    rules::Unit,
};

/// The fields of a rule.
pub(super) fn to_struct(fields: &Map<String, Json>) -> Struct {
    let fields = fields.iter();
    Struct {
        fields: fields
            .map(|(name, value)| (name.clone(), to_value(value)))
            .collect(),
    }
}

fn to_value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => self::text(text),
        Json::Array(values) => list(values.iter().map(to_value)),
        Json::Object(fields) => Kind::StructValue(to_struct(fields)),
    };
    Value { kind: Some(kind) }
}

/// The metadata of a request: its domain, descriptors and cost, and the fields of the rules that admitted it.
pub(super) fn of_request<'a>(
    request: &RateLimitRequest,
    passed: impl Iterator<Item = &'a Struct>,
) -> Struct {
    let mut of_rules = Struct::default();
    passed.for_each(|fields| merge(&mut of_rules, fields));
    let descriptors = request.descriptors.iter().map(of_descriptor);
    let mut fields = vec![
        ("domain", text(&request.domain)),
        ("descriptors", list(descriptors)),
    ];
    if request.hits_addend != 0 {
        fields.push(("hitsAddend", Kind::NumberValue(request.hits_addend.into())));
    }
    if !of_rules.fields.is_empty() {
        fields.push(("metadata", Kind::StructValue(of_rules)));
    }
    from_fields(fields)
}

fn of_descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let entries = descriptor.entries.iter().map(|entry| Value {
        kind: Some(text(&format!("{}={}", entry.key, entry.text()))),
    });
    let mut fields = vec![("entries", list(entries))];
    if let Some(limit) = descriptor.limit {
        let (n, unit) = (limit.requests_per_unit, Unit::name_of(limit.unit));
        let limit = format!("requests_per_unit:{n} unit:{unit}");
        fields.push(("limit", text(&limit)));
    }
    if let Some(cost) = descriptor.hits_addend {
        fields.push(("hitsAddend", Kind::NumberValue(cost as f64)));
    }
    Value {
        kind: Some(Kind::StructValue(from_fields(fields))),
    }
}

/// Adds fields; of two that are no objects the first counts.
fn merge(into: &mut Struct, from: &Struct) {
    for (name, value) in &from.fields {
        match into.fields.get_mut(name) {
            None => {
                into.fields.insert(name.clone(), value.clone());
            }
            Some(Value {
                kind: Some(Kind::StructValue(into)),
            }) => {
                if let Some(Kind::StructValue(from)) = &value.kind {
                    merge(into, from);
                }
            }
            Some(_) => {}
        }
    }
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

fn list(values: impl Iterator<Item = Value>) -> Kind {
    Kind::ListValue(ListValue {
        values: values.collect(),
    })
}

fn from_fields(fields: Vec<(&str, Kind)>) -> Struct {
    let fields = fields.into_iter().map(|(name, kind)| {
        let value = Value { kind: Some(kind) };
        (name.to_owned(), value)
    });
    Struct {
        fields: fields.collect(),
    }
}

//! Values that are texts in a document, and values that have more than one form.

/// Defines a value that has several forms: an enum that is written as the value of its variant, and read by the type of the
/// value that is found.
macro_rules! forms {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident, $expected:literal {
            $($variants:tt)+
        }
    ) => {
        forms! {
            #[derive(Debug)]
            $(#[$meta])*
            $vis enum $name, $expected without Debug { $($variants)+ }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident, $expected:literal without Debug {
            $( $(#[$variant_meta:meta])* $variant:ident($type:ty) from $($form:ident),+; )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, serde::Serialize)]
        #[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
        #[serde(untagged)]
        $vis enum $name {
            $( $(#[$variant_meta])* $variant($type), )+
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;

                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expected)
                    }

                    $( $( forms!(@visit $form, $name, $variant, $type); )+ )+
                }

                deserializer.deserialize_any(Visitor)
            }
        }
    };
    (@visit text, $name:ident, $variant:ident, $type:ty) => {
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
            let text = serde::de::value::StrDeserializer::new(text);
            <$type as serde::Deserialize>::deserialize(text).map($name::$variant)
        }
    };
    (@visit number, $name:ident, $variant:ident, $type:ty) => {
        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$name, E> {
            let number = serde::de::value::U64Deserializer::new(number);
            <$type as serde::Deserialize>::deserialize(number).map($name::$variant)
        }
    };
    (@visit flag, $name:ident, $variant:ident, $type:ty) => {
        fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<$name, E> {
            let flag = serde::de::value::BoolDeserializer::new(flag);
            <$type as serde::Deserialize>::deserialize(flag).map($name::$variant)
        }
    };
    (@visit array, $name:ident, $variant:ident, $type:ty) => {
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, array: A) -> Result<$name, A::Error> {
            let array = serde::de::value::SeqAccessDeserializer::new(array);
            <$type as serde::Deserialize>::deserialize(array).map($name::$variant)
        }
    };
    (@visit table, $name:ident, $variant:ident, $type:ty) => {
        fn visit_map<A: serde::de::MapAccess<'de>>(self, table: A) -> Result<$name, A::Error> {
            let table = serde::de::value::MapAccessDeserializer::new(table);
            <$type as serde::Deserialize>::deserialize(table).map($name::$variant)
        }
    };
}

/// The schema of a type is that of the form that a document has it in.
macro_rules! schema_of {
    ($type:ty, $name:literal, $form:ty) => {
        #[cfg(feature = "config-schema")]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                <$form>::json_schema(generator)
            }
        }
    };
}

pub(crate) use {forms, schema_of};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, de::Unexpected};

use crate::quota::Quota;

impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str =
            "a quota such as \"100/min\", \"10/s burst 20\", \"5000 per day\" or \"8 concurrent\"";
        let text = deserializer.deserialize_str(Text(EXPECTED))?;
        let text = text.ok_or_else(|| D::Error::invalid_type(Unexpected::Unit, &EXPECTED))?;
        text.parse()
            .map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &EXPECTED))
    }
}

/// Reads text, if there is any; anything else is an error that says what is expected.
struct Text(&'static str);

impl<'de> serde::de::Visitor<'de> for Text {
    type Value = Option<String>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
        Ok(Some(text.to_owned()))
    }

    fn visit_none<E>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

/// Optional durations as text, such as `50ms`.
pub(crate) mod duration {
    use std::time::Duration;

    use super::*;
    use crate::quota::DurationText;

    const EXPECTED: &str = "a duration such as \"50ms\", \"2s\" or \"1day\"";

    pub(crate) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => serializer.collect_str(&DurationText(*duration)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let Some(text) = deserializer.deserialize_option(Text(EXPECTED))? else {
            return Ok(None);
        };
        let parsed = text.parse().map(|DurationText(duration)| Some(duration));
        parsed.map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &EXPECTED))
    }
}

#[cfg(feature = "config-schema")]
impl schemars::JsonSchema for Quota {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quota".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Units per period, with a burst.",
            "pattern": r"^\s*[0-9_]+\s*(/|\s+per\s+|concurrent)",
            "examples": ["100/min", "10/s burst 20", "5000 per day", "3/500ms", "8 concurrent"],
        })
    }
}

/// The schema of a duration.
#[cfg(feature = "config-schema")]
pub(crate) struct DurationSchema;

#[cfg(feature = "config-schema")]
impl schemars::JsonSchema for DurationSchema {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A duration: a whole number and a unit of time.",
            "pattern": r"^\s*[0-9_]+\s*[a-zµ]+\s*$",
            "examples": ["50ms", "2s", "1day"],
        })
    }
}

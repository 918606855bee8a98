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
        #[derive(Clone, PartialEq)]
        #[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema), schemars(untagged))]
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

        // TOML's numbers.
        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$name, E> {
            let number = serde::de::value::I64Deserializer::new(number);
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

pub(crate) use forms;

use serde::Deserializer;

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
        deserializer.deserialize_any(self)
    }
}

/// Reads the text of a quota, which is parsed when a limiter is built.
pub(crate) fn quota_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_option(Text(QUOTA))
}

/// Reads the text of a duration, which is parsed when a limiter is built.
pub(crate) fn duration_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_option(Text(DURATION))
}

/// What is expected of a quota.
pub(crate) const QUOTA: &str =
    "a quota such as \"100/min\", \"10/s burst 20\", \"5000 per day\" or \"8 concurrent\"";

/// What is expected of a duration.
pub(crate) const DURATION: &str = "a duration such as \"50ms\", \"2s\" or \"1day\"";

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

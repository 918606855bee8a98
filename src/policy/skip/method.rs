//! Methods as documents have them.

use http::Method;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, de::Unexpected};

use crate::error::InvalidValue;

/// A method of requests, such as `GET`. Methods are case-sensitive: a standard one in lower case is an error when the limiter is
/// built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodName(pub Method);

impl MethodName {
    /// An error for a standard method (RFC 9110, RFC 5789) that is not in upper case.
    pub(in crate::policy) fn validate(&self) -> Result<(), InvalidValue> {
        let text = self.0.as_str();
        let upper = text.to_ascii_uppercase();
        let is_standard = "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH"
            .split(' ')
            .any(|standard| standard == upper);
        if text == upper || !is_standard {
            return Ok(());
        }
        Err(InvalidValue::new(
            format!("the method {text:?}"),
            format!("{upper:?}, in upper case"),
        ))
    }
}

impl Serialize for MethodName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for MethodName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let method = Method::from_bytes(text.as_bytes());
        method.map(Self).map_err(|_| {
            let found = format!("the method {text:?}");
            D::Error::invalid_value(Unexpected::Other(&found), &"a method such as \"GET\"")
        })
    }
}

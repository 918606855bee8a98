//! Values of settings: as a program sets them, as a configuration document says them, and as text.

use std::{any::TypeId, borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod named;
#[cfg_attr(
    not(feature = "config"),
    allow(dead_code, reason = "documents alone have keys as texts")
)]
pub(crate) mod scan;
mod text;
pub(crate) mod values;

pub use named::Named;
pub(crate) use text::to_text;

/// What stands for code of the application in a document.
pub(crate) const CODE: &str = "code";

/// The identity of a function of the application without a name, by which two of them are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CodeId {
    /// The type of a value without state, such as a closure that captures nothing: all its values do the same.
    Type(TypeId),
    /// The address of a value with state, for as long as that value lives.
    Address(usize),
}

/// Code of the application, such as a strategy, an extractor or a cost function, together with the text by which a configuration
/// document refers to it.
///
/// A document that was read has the text only; building a limiter of it finds the code. Code that no document can refer to, such as
/// a closure, has no text, and is written as `code`. Two slots are equal if their texts are, or without texts if their code is: one
/// function, or one value.
pub struct Slot<F: ?Sized> {
    name: SlotName,
    /// `None` in a document whose names were not looked up yet.
    code: Option<Arc<F>>,
}

#[derive(Clone, PartialEq, Eq)]
enum SlotName {
    Text(Cow<'static, str>),
    Code(CodeId),
}

/// The names of the settings that differ between two configurations.
pub(crate) fn different<const N: usize>(settings: [(&'static str, bool); N]) -> Vec<&'static str> {
    let settings = settings.into_iter();
    let different = settings.filter_map(|(name, differs)| differs.then_some(name));
    different.collect()
}

impl CodeId {
    /// The identity of a value.
    pub(crate) fn of<T: 'static>(value: &Arc<T>) -> Self {
        match size_of::<T>() {
            0 => Self::Type(TypeId::of::<T>()),
            _ => Self::Address(Arc::as_ptr(value).addr()),
        }
    }
}

impl<F: ?Sized> Slot<F> {
    /// A slot of a document, which refers to code by `text`: a registered name, or the text of what is built in.
    pub fn named(text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: SlotName::Text(text.into()),
            code: None,
        }
    }

    /// The text that names the code in a document. `None` for code that no document can name.
    pub fn text(&self) -> Option<&str> {
        match &self.name {
            SlotName::Text(text) => Some(text),
            SlotName::Code(_) => None,
        }
    }

    /// Code to which a document refers by `text`; without a text it is compared by its identity.
    pub(crate) fn filled(code: Arc<F>, text: Option<Cow<'_, str>>, id: CodeId) -> Self {
        let text = text.map(|text| SlotName::Text(text.into_owned().into()));
        Self {
            name: text.unwrap_or(SlotName::Code(id)),
            code: Some(code),
        }
    }

    /// Shared code to which a document refers by `text`; without a text each `Arc` is another one.
    pub(crate) fn shared(code: Arc<F>, text: Option<Cow<'_, str>>) -> Self {
        let id = CodeId::Address(Arc::as_ptr(&code).addr());
        Self::filled(code, text, id)
    }

    /// The code: there is some in each slot of a [`Policy`](crate::Policy).
    #[inline]
    pub(crate) fn code(&self) -> Option<&F> {
        self.code.as_deref()
    }

    /// The code, shared.
    #[cfg(feature = "config")]
    pub(crate) fn shared_code(&self) -> Option<Arc<F>> {
        self.code.clone()
    }

    /// The text, or `code`.
    pub(crate) fn text_or_code(&self) -> &str {
        self.text().unwrap_or(CODE)
    }
}

impl<F: ?Sized> Clone for Slot<F> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            code: self.code.clone(),
        }
    }
}

impl<F: ?Sized> PartialEq for Slot<F> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<F: ?Sized> fmt::Debug for Slot<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text_or_code())
    }
}

impl<F: ?Sized> Serialize for Slot<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text_or_code())
    }
}

impl<'de, F: ?Sized> Deserialize<'de> for Slot<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::named)
    }
}

#[cfg(feature = "config-schema")]
impl<F: ?Sized> schemars::JsonSchema for Slot<F> {
    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

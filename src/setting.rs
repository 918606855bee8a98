//! The value of a setting as a configuration document says it, and functions of the application, which a document says by name.

use std::{any::TypeId, borrow::Cow, fmt, ops::Deref, sync::Arc};

/// The value of a setting, in the words of a configuration document. Equal values mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingValue {
    /// Not set, where there is no default value either.
    Unset,
    Flag(bool),
    Number(u64),
    Text(Cow<'static, str>),
    List(Vec<Self>),
    Table(Vec<(Cow<'static, str>, Self)>),
    /// A function of the application, or an extractor or strategy of its own, that has no name in documents.
    Code(CodeId),
}

/// The identity of a function of the application without a name, by which two of them are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CodeId {
    /// The type of a value without state, such as a closure that captures nothing: all its values do the same.
    Type(TypeId),
    /// The address of a value with state, for as long as that value lives.
    Address(usize),
}

/// A function that the application passes to a builder, such as a cost function, with the value that a document has for it.
pub(crate) struct Code<F: ?Sized> {
    code: Arc<F>,
    value: SettingValue,
}

/// A setting of a policy, a limiter or a layer: its name in a document, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) value: SettingValue,
    /// Whether a document without the setting has the same value.
    pub(crate) is_default: bool,
}

impl Setting {
    /// A setting with this value, which is `default` unless it is set.
    pub(crate) fn or_default(
        name: &'static str,
        value: SettingValue,
        default: &SettingValue,
    ) -> Self {
        Self {
            name,
            is_default: value == *default,
            value,
        }
    }
}

impl SettingValue {
    pub(crate) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Text(text.into())
    }

    /// The display of `value` as a text.
    pub(crate) fn display(value: impl fmt::Display) -> Self {
        Self::text(value.to_string())
    }

    pub(crate) fn list(values: impl IntoIterator<Item = Self>) -> Self {
        Self::List(values.into_iter().collect())
    }

    pub(crate) fn table<N>(entries: impl IntoIterator<Item = (N, Self)>) -> Self
    where
        N: Into<Cow<'static, str>>,
    {
        let entries = entries.into_iter();
        Self::Table(entries.map(|(name, value)| (name.into(), value)).collect())
    }

    /// The text, or else `code`, the identity of what has no text.
    pub(crate) fn text_or(text: Option<Cow<'_, str>>, code: &Self) -> Self {
        text.map_or_else(|| code.clone(), |text| Self::text(text.into_owned()))
    }
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separated = |f: &mut fmt::Formatter<'_>, index| match index {
            0 => Ok(()),
            _ => f.write_str(", "),
        };
        match self {
            Self::Unset => f.write_str("none"),
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    separated(f, index)?;
                    value.fmt(f)?;
                }
                f.write_str("]")
            }
            Self::Table(entries) => {
                f.write_str("{ ")?;
                for (index, (name, value)) in entries.iter().enumerate() {
                    separated(f, index)?;
                    write!(f, "{name} = {value}")?;
                }
                f.write_str(" }")
            }
            Self::Code(_) => f.write_str("code"),
        }
    }
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

impl<F: ?Sized> Code<F> {
    /// Code without a name.
    pub(crate) fn new(code: Arc<F>, id: CodeId) -> Self {
        Self::described(code, SettingValue::Code(id))
    }

    /// Code that a document says as `value`: by a registered name, or by what it was made of.
    pub(crate) fn described(code: Arc<F>, value: SettingValue) -> Self {
        Self { code, value }
    }

    #[cfg(feature = "config")]
    pub(crate) fn into_arc(self) -> Arc<F> {
        self.code
    }

    /// The same code, which a document says as `value`.
    #[cfg(feature = "config")]
    pub(crate) fn described_as(self, value: SettingValue) -> Self {
        Self { value, ..self }
    }

    /// The value that a document has for it.
    pub(crate) fn value(&self) -> &SettingValue {
        &self.value
    }
}

/// Code without a name, of which each `Arc` is another.
impl<F: ?Sized> From<Arc<F>> for Code<F> {
    fn from(code: Arc<F>) -> Self {
        let id = CodeId::Address(Arc::as_ptr(&code).addr());
        Self::new(code, id)
    }
}

impl<F: ?Sized> Deref for Code<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.code
    }
}

impl<F: ?Sized> Clone for Code<F> {
    fn clone(&self) -> Self {
        Self {
            code: self.code.clone(),
            value: self.value.clone(),
        }
    }
}

impl<F: ?Sized> fmt::Debug for Code<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id<T: 'static>(value: T) -> (CodeId, Arc<T>) {
        let value = Arc::new(value);
        (CodeId::of(&value), value)
    }

    #[test]
    fn closures_without_state_are_equal_if_they_are_the_same_code_and_others_if_they_are_one_value()
    {
        let stateless = || id(|units: u64| units + 1);
        assert_eq!(stateless().0, stateless().0);
        assert_ne!(stateless().0, id(|units: u64| units + 1).0);
        let adds = |more: u64| id(move |units: u64| units + more);
        let (one, another) = (adds(1), adds(1));
        assert_ne!(one.0, another.0);
        assert_eq!(one.0, CodeId::of(&one.1.clone()));
    }

    #[test]
    fn a_value_is_displayed_as_a_document_has_it() {
        let text = SettingValue::text;
        let value = SettingValue::table([
            ("paths", SettingValue::list([text("/a"), text("/b/*")])),
            ("cost", SettingValue::Number(5)),
            ("shadow", SettingValue::Flag(true)),
            ("with", SettingValue::Code(id(|| ()).0)),
        ]);
        let expected = "{ paths = [/a, /b/*], cost = 5, shadow = true, with = code }";
        assert_eq!(value.to_string(), expected);
        assert_eq!(SettingValue::Unset.to_string(), "none");
    }
}

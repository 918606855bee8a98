//! Paths of values in a document.

use std::fmt;

/// The path of a value in a document, such as `policies.api.quota` or `deny[1].addresses`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Path(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Segment {
    Key(String),
    Index(usize),
}

impl Path {
    pub(crate) fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    fn with(&self, segment: Segment) -> Self {
        let mut path = self.clone();
        path.0.push(segment);
        path
    }

    /// The path of what contains the value.
    pub(crate) fn parent(&self) -> Option<Self> {
        let (_, parent) = self.0.split_last()?;
        Some(Self(parent.to_vec()))
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    if number > 0 {
                        f.write_str(".")?;
                    }
                    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    match !key.is_empty() && key.chars().all(plain) {
                        true => f.write_str(key)?,
                        false => write!(f, "{key:?}")?,
                    }
                }
            }
        }
        Ok(())
    }
}

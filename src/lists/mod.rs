//! Who is let in, or kept out, whatever the policies say.

use std::{fs, net::IpAddr, path::Path};

use http::request::Parts;

use crate::{
    error::{ConfigError, InvalidValue},
    key::Key,
};

mod addresses;
mod keys;

pub use addresses::AddressList;
pub use keys::KeyList;

/// A list to [allow](crate::LimiterBuilder::allow) or to [deny](crate::LimiterBuilder::deny): an [`AddressList`] or a
/// [`KeyList`].
#[derive(Clone, Debug)]
pub struct AccessList(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Addresses(AddressList),
    Keys(KeyList),
}

impl From<AddressList> for AccessList {
    fn from(list: AddressList) -> Self {
        Self(Kind::Addresses(list))
    }
}

impl From<KeyList> for AccessList {
    fn from(list: KeyList) -> Self {
        Self(Kind::Keys(list))
    }
}

/// What the lists of a limiter say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    Denied,
    Allowed,
}

/// The lists of a limiter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    deny: Vec<AccessList>,
    allow: Vec<AccessList>,
}

/// How a request tells what is on lists.
pub(crate) trait Asker {
    /// The client's address, as a list of addresses finds it.
    fn address(&self, list: &AddressList) -> Option<IpAddr>;
    /// The key under a policy.
    fn key(&self, policy: &str) -> Option<Key>;
}

/// A request with a head.
pub(crate) struct Request<'a, F> {
    pub(crate) parts: &'a Parts,
    /// Finds the key under a policy.
    pub(crate) key: F,
}

impl<F: Fn(&str) -> Option<Key>> Asker for Request<'_, F> {
    fn address(&self, list: &AddressList) -> Option<IpAddr> {
        list.address(self.parts)
    }

    fn key(&self, policy: &str) -> Option<Key> {
        (self.key)(policy)
    }
}

impl Lists {
    pub(crate) fn deny(&mut self, list: AccessList) {
        self.deny.push(list);
    }

    pub(crate) fn allow(&mut self, list: AccessList) {
        self.allow.push(list);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deny.is_empty() && self.allow.is_empty()
    }

    /// Who is on lists of both kinds is denied.
    pub(crate) fn find(&self, asker: &impl Asker) -> Option<Listed> {
        let on = |list: &AccessList| match &list.0 {
            Kind::Addresses(list) => asker.address(list).is_some_and(|ip| list.contains(ip)),
            Kind::Keys(list) => asker.key(list.policy()).is_some_and(|k| list.contains(&k)),
        };
        if self.deny.iter().any(on) {
            Some(Listed::Denied)
        } else {
            self.allow.iter().any(on).then_some(Listed::Allowed)
        }
    }

    /// Whether they can find what they look for, among policies of these names.
    pub(crate) fn check(&self, is_policy: impl Fn(&str) -> bool) -> Result<(), InvalidValue> {
        for list in self.deny.iter().chain(&self.allow) {
            match &list.0 {
                Kind::Addresses(list) => list.check()?,
                Kind::Keys(list) if is_policy(list.policy()) => {}
                Kind::Keys(list) => {
                    return Err(InvalidValue::new(
                        format!("a list of keys of a policy {:?}", list.policy()),
                        "the name of one of the limiter's policies",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The entries of a file: one a line, without what follows a `#` at its beginning or behind a space.
fn entries<T>(
    path: &Path,
    read: impl Fn(&str) -> Result<T, InvalidValue>,
) -> Result<Vec<T>, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| {
        let file = format!("the list {}", path.display());
        ConfigError::new(file, format!("a file that can be read: {error}"))
    })?;
    let mut entries = Vec::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let entry = entry(line);
        if !entry.is_empty() {
            let place = |unfit| {
                let at = format!("line {} of {}: ", number + 1, path.display());
                ConfigError::at(&at, unfit)
            };
            entries.push(read(entry).map_err(place)?);
        }
    }
    Ok(entries)
}

fn no_file() -> ConfigError {
    ConfigError::new(
        "a list that is from no file",
        "one that was made by from_file",
    )
}

fn entry(line: &str) -> &str {
    let comment = line.char_indices().find(|(at, c)| {
        *c == '#'
            && line[..*at]
                .chars()
                .next_back()
                .is_none_or(char::is_whitespace)
    });
    line[..comment.map_or(line.len(), |(at, _)| at)].trim()
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn comments_begin_a_line_or_follow_a_space() {
        for (line, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("  10.0.0.0/8\t# the office", "10.0.0.0/8"),
            ("# nobody", ""),
            ("   ", ""),
            ("a#b", "a#b"),
            ("a#b #c", "a#b"),
            ("é#b #c", "é#b"),
        ] {
            assert_eq!(entry(line), expected, "{line:?}");
        }
    }
}

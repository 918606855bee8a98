//! Access lists: requests that are admitted or denied without evaluating a policy.

use std::{cell::Cell, fmt, net::IpAddr, sync::Arc};

use crate::{differences::different, error::InvalidValue, extract::Extracted, log::LogThrottle};

pub use self::ip_list::AddressList;
pub use self::key_list::KeyList;

pub(crate) mod file;
pub(crate) mod ip_list;
pub(crate) mod key_list;

/// An [`AddressList`] or a [`KeyList`], to [allow](crate::limiter::LimiterBuilder::allow) or [deny](crate::limiter::LimiterBuilder::deny).
#[derive(Clone, Debug)]
pub struct AccessList(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Addresses(Box<AddressList>),
    Keys(KeyList),
}

fn have_same_entries(before: &[AccessList], after: &[AccessList]) -> bool {
    let is_same = |(before, after): (&AccessList, &AccessList)| match (&before.0, &after.0) {
        (Kind::Addresses(before), Kind::Addresses(after)) => before.has_same_entries(after),
        (Kind::Keys(before), Kind::Keys(after)) => before.has_same_entries(after),
        _ => false,
    };
    before.len() == after.len() && before.iter().zip(after).all(is_same)
}

impl From<AddressList> for AccessList {
    fn from(list: AddressList) -> Self {
        Self(Kind::Addresses(Box::new(list)))
    }
}

impl From<KeyList> for AccessList {
    fn from(list: KeyList) -> Self {
        Self(Kind::Keys(list))
    }
}

/// What happens to a request whose address an [`AddressList`] can't find. In both cases an error with the remedy is logged, at
/// most every 10 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnknownAddress {
    /// The request is on no address list: the policies are evaluated.
    #[default]
    Pass,
    /// The request is rejected with 403 Forbidden, as if it were on a deny list. One that a [`KeyList`] allows is admitted,
    /// unless there is an address list to deny.
    Reject,
}

/// The list that a request is on, by its index among the lists of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListMatch<'a> {
    /// By no list if the request's address is unknown, and [such requests are rejected](OnUnknownAddress::Reject).
    Denied(Option<usize>),
    Allowed(usize),
    /// By none: the request's key under this policy, of which a list has keys, is ambiguous.
    Ambiguous(&'a str),
}

/// The access list that decided a request: see [`Explanation::list`](crate::explain::Explanation::list).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedList {
    denies: bool,
    position: Option<usize>,
    policy: Option<Arc<str>>,
}

impl MatchedList {
    /// Whether it denies the request, rather than allows it.
    pub fn denies(&self) -> bool {
        self.denies
    }

    /// Its position among the limiter's lists to deny or to allow, from 0, in the order in which they were added. `None` if no
    /// list has the request: its address is unknown, and the limiter [rejects](OnUnknownAddress::Reject) such requests.
    pub fn position(&self) -> Option<usize> {
        self.position
    }

    /// The policy whose keys it lists; `None` for a list of addresses.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }
}

/// `deny list 1, of addresses`; numbers begin with 1.
impl fmt::Display for MatchedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(position) = self.position else {
            return f.write_str("its address is unknown, and on_unknown_address rejects");
        };
        let kind = if self.denies { "deny" } else { "allow" };
        write!(f, "{kind} list {}, of ", position + 1)?;
        match &self.policy {
            Some(policy) => write!(f, "keys of policy {policy:?}"),
            None => f.write_str("addresses"),
        }
    }
}

/// The lists of a limiter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    deny: Vec<AccessList>,
    allow: Vec<AccessList>,
    on_unknown_address: OnUnknownAddress,
    unknown_addresses: Arc<LogThrottle>,
}

/// A request, or a call by hand, that is looked up in lists.
pub(crate) trait ListSubject {
    /// The client's address, as a list of addresses finds it.
    fn address(&self, list: &AddressList) -> Option<IpAddr>;
    /// The key under a policy.
    fn key(&self, policy: &str) -> Extracted;
    /// Whether an unknown address is a mistake. It is none in a call that only reads a key's state.
    fn needs_address(&self) -> bool {
        true
    }
    /// How to correct an unknown address, for the log.
    fn address_hint(&self) -> &'static str;
}

impl Lists {
    /// The names of the settings in which two sets of lists differ.
    pub(crate) fn differences(before: Option<&Self>, after: Option<&Self>) -> Vec<&'static str> {
        let none = Self::default();
        let [before, after] = [before, after].map(|lists| lists.unwrap_or(&none));
        different([
            ("deny", !have_same_entries(&before.deny, &after.deny)),
            ("allow", !have_same_entries(&before.allow, &after.allow)),
            (
                "on_unknown_address",
                before.on_unknown_address != after.on_unknown_address,
            ),
        ])
    }

    pub(crate) fn deny(&mut self, list: AccessList) {
        self.deny.push(list);
    }

    pub(crate) fn allow(&mut self, list: AccessList) {
        self.allow.push(list);
    }

    pub(crate) fn on_unknown_address(&mut self, action: OnUnknownAddress) {
        self.on_unknown_address = action;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deny.is_empty() && self.allow.is_empty()
    }

    /// Looks a request up in all lists. One that is on lists of both kinds is denied.
    pub(crate) fn find<'a>(&'a self, subject: &impl ListSubject) -> Option<ListMatch<'a>> {
        let unknown = Cell::new(false);
        let on = |list: &'a AccessList, listed: ListMatch<'a>| match &list.0 {
            Kind::Addresses(list) => {
                let address = subject.address(list);
                unknown.set(unknown.get() || address.is_none() && subject.needs_address());
                let is_listed = address.is_some_and(|address| list.contains(address));
                is_listed.then_some(listed)
            }
            Kind::Keys(list) => match subject.key(list.policy()) {
                Extracted::Key(key) => list.contains(&key).then_some(listed),
                Extracted::Absent => None,
                Extracted::Ambiguous => Some(ListMatch::Ambiguous(list.policy())),
            },
        };
        let rejects = || unknown.get() && self.on_unknown_address == OnUnknownAddress::Reject;
        let unknown_denied = || rejects().then_some(ListMatch::Denied(None));
        let mut deny = self.deny.iter().enumerate();
        let denied = deny.find_map(|(index, list)| on(list, ListMatch::Denied(Some(index))));
        let mut allow = self.allow.iter().enumerate();
        let listed = denied
            .or_else(unknown_denied)
            .or_else(|| allow.find_map(|(index, list)| on(list, ListMatch::Allowed(index))))
            .or_else(unknown_denied);
        if unknown.get() {
            self.log_unknown_address(subject.address_hint());
        }
        listed
    }

    /// Describes the list that a request is on; `None` if it is on none, since its key is ambiguous.
    pub(crate) fn describe(&self, found: ListMatch<'_>) -> Option<MatchedList> {
        let (denies, position, lists) = match found {
            ListMatch::Denied(position) => (true, position, &self.deny),
            ListMatch::Allowed(position) => (false, Some(position), &self.allow),
            ListMatch::Ambiguous(_) => return None,
        };
        let policy = match position.and_then(|position| lists.get(position)) {
            Some(AccessList(Kind::Keys(list))) => Some(list.policy().into()),
            _ => None,
        };
        Some(MatchedList {
            denies,
            position,
            policy,
        })
    }

    /// The policies of which it lists keys.
    pub(crate) fn policies_of_keys(&self) -> impl Iterator<Item = &str> {
        let lists = self.deny.iter().chain(&self.allow);
        lists.filter_map(|list| match &list.0 {
            Kind::Keys(list) => Some(list.policy()),
            Kind::Addresses(_) => None,
        })
    }

    #[cold]
    fn log_unknown_address(&self, hint: &str) {
        let action = self.on_unknown_address;
        self.unknown_addresses.log_with(|suppressed| {
            tracing::error!(
                ?action,
                suppressed,
                "an access list can't find a request's address: {hint}"
            );
        });
    }

    /// Checks the settings of address lists, and that key lists are of policies that exist.
    pub(crate) fn validate(&self, is_policy: impl Fn(&str) -> bool) -> Result<(), InvalidValue> {
        for list in self.deny.iter().chain(&self.allow) {
            match &list.0 {
                Kind::Addresses(list) => list.validate()?,
                Kind::Keys(list) if is_policy(list.policy()) => {}
                Kind::Keys(list) => {
                    return Err(InvalidValue::new(
                        format!("a key list for policy {:?}", list.policy()),
                        "the name of one of the limiter's policies",
                    ));
                }
            }
        }
        Ok(())
    }
}

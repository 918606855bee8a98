//! Policies whose keys or blocks the application sets by hand.

use std::{sync::Arc, time::Duration};

use http::request::Parts;

use super::Policy;
use crate::{
    extract::{Extracted, KeyExtractor, MissingKey},
    key::Key,
    quota::Quota,
    strategy::Ban,
};

/// The strategy of block lists. Its bans by counted rejections, of which there are none, last for a day.
pub(super) const BLOCKS: Ban = Ban::for_duration(Duration::from_secs(86_400));

/// The quota of block lists, which count nothing.
pub(super) const NO_REJECTIONS: Quota = Quota::requests(1).per_day();

impl Policy {
    /// Applies the policy to calls by hand only, such as [`Limiter::admit`](crate::Limiter::admit), and to no request that
    /// passes a layer: for keys that only the application knows, such as the account of a login.
    /// [`PolicyHandle::key`](crate::limiter::PolicyHandle::key) turns text into the same key as `admit` does, and several texts into
    /// their [tuple](Key::tuple).
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("account", Quota::requests(5).per_hour()).by_hand())
    ///     .build()?;
    /// limiter.admit("alice").await?;
    /// let account = limiter.policy("account")?;
    /// assert_eq!(account.key("alice"), Some(Key::new("alice")));
    /// assert_eq!(account.peek("alice").await?.policy("account").unwrap().remaining(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn by_hand(mut self) -> Self {
        self.key = None;
        self.by_hand = true;
        self
    }

    /// A policy under a [`Ban`] that counts no rejections: it blocks the keys that are passed to
    /// [`Limiter::block`](crate::Limiter::block), in all processes, until their time has passed or they are
    /// [unblocked](crate::Limiter::unblock). Like any policy it counts by client address unless [`key`](Policy::key) or
    /// [`by_hand`](Policy::by_hand) is set.
    ///
    /// It has no quota: responses to blocked requests list it in `RateLimit`, without units and with the seconds until the block
    /// ends, and not in `RateLimit-Policy`.
    ///
    /// For accounts that an operator locks, and for another service's `429 Too Many Requests`: see
    /// [`outgoing`](crate::outgoing#when-another-service-responds-429).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("account", Quota::requests(5).per_hour()).by_hand())
    ///     .policy(Policy::block_list("locked").by_hand())
    ///     .build()?;
    /// let locked = limiter.policy("locked")?;
    /// locked.block("mallory", Duration::from_secs(3_600)).await?;
    /// assert!(limiter.admit("mallory").await.is_err());
    /// locked.unblock("mallory").await?;
    /// assert!(limiter.admit("mallory").await.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn block_list(name: impl Into<Arc<str>>) -> Self {
        Self {
            block_list: true,
            ..Self::new(name, NO_REJECTIONS)
        }
    }
}

/// The extractor of policies that apply to calls by hand only.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByHand;

impl KeyExtractor for ByHand {
    fn extract(&self, _parts: &Parts) -> Extracted {
        Extracted::Absent
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        match texts {
            [] => None,
            [text] => Some(Key::new(text)),
            several => Some(Key::tuple(several.iter().map(Key::new))),
        }
    }

    fn on_missing_key(&self) -> MissingKey {
        MissingKey::Skip
    }
}

//! tollgate itself, on either store.

use tollgate::{Key, Limiter, Policy, Quota, RedisStore, Source};

use crate::{
    drive::{Contender, Dice},
    keys::{self, BURST, PER_WEEK},
};

/// `Limiter::check`, one policy or several.
#[derive(Debug)]
pub struct House {
    limiter: Limiter,
    keys: Vec<Key>,
    apart: bool,
}

/// The quota that is never used up.
pub fn ample() -> Quota {
    Quota::requests(PER_WEEK).per_week().burst(BURST)
}

impl House {
    /// On the server at `url`, with `policies` that all must admit, each by a key of its own if they are `apart`.
    pub fn on_redis(url: &str, keys: usize, policies: usize, apart: bool) -> Self {
        let deadline = std::time::Duration::from_secs(5);
        let lanes = std::env::var("LANES").map_or(1, |l| l.parse().expect("a number"));
        let store = RedisStore::builder()
            .url(url)
            .deadline(deadline)
            .lanes(lanes);
        let builder = Limiter::builder().store(store.build().expect("a store"));
        Self::of(builder, keys, policies, apart, ample())
    }

    /// In process, one policy.
    pub fn in_process(keys: usize, quota: Quota) -> Self {
        Self::of(Limiter::builder(), keys, 1, false, quota)
    }

    fn of(
        mut builder: tollgate::LimiterBuilder,
        keys: usize,
        policies: usize,
        apart: bool,
        quota: Quota,
    ) -> Self {
        for policy in 0..policies {
            builder = builder.policy(Policy::new(POLICIES[policy], quota));
        }
        Self {
            limiter: builder.build().expect("a limiter"),
            keys: keys::keys(keys),
            apart,
        }
    }
}

const POLICIES: [&str; 3] = ["first", "second", "third"];

impl Contender for House {
    async fn decide(&self, dice: &mut Dice) -> bool {
        let decision = if self.apart {
            let key = |policy| (policy, self.keys[dice.roll(self.keys.len())]);
            self.limiter.check(POLICIES.map(key)).await
        } else {
            let key = self.keys[dice.roll(self.keys.len())];
            self.limiter.check(key).await
        };
        assert!(decision.source() == Source::Store, "{decision:?}");
        decision.is_admitted()
    }
}

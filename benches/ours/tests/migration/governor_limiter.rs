use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

pub(crate) fn limiter() -> DefaultKeyedRateLimiter<String> {
    let rate = NonZeroU32::new(50).expect("not zero");
    let burst = NonZeroU32::new(100).expect("not zero");
    RateLimiter::keyed(Quota::per_second(rate).allow_burst(burst))
}

pub(crate) fn is_admitted(limiter: &DefaultKeyedRateLimiter<String>, user: &str) -> bool {
    limiter.check_key(&user.to_owned()).is_ok()
}

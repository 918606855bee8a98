//! How often the application's closures are called: once at most for a call, never for what the call sets itself, and never after
//! an early decision.

use super::{Entry, KEY, Outcome, Settings, head, hourly};
use crate::http::support::*;

/// How often each closure was called: those of the limiter's condition, and of `p`'s condition, key, cost and quota; and `q`'s
/// quota.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<[AtomicUsize; 6]>);

impl Calls {
    /// Counts a call, and returns what the closure does.
    fn count<T>(&self, closure: usize, result: T) -> T {
        self.0[closure].fetch_add(1, Ordering::SeqCst);
        result
    }

    /// The calls since the last time.
    pub(super) fn take(&self) -> [usize; 6] {
        [0, 1, 2, 3, 4, 5].map(|closure: usize| self.0[closure].swap(0, Ordering::SeqCst))
    }

    /// The calls since the last time, which stay counted.
    pub(super) fn total(&self) -> usize {
        let calls = self.0.iter();
        calls.map(|calls| calls.load(Ordering::SeqCst)).sum()
    }

    /// A builder with a policy `p` of which each setting is a closure, a policy `q` with a quota by request, and a block list.
    pub(super) fn limiter(&self) -> LimiterBuilder {
        let by_header = || extract::header("x-key").readable();
        let calls = [(); 6].map(|()| self.clone());
        let [all, skip, key, cost, quota, other_quota] = calls;
        let text = |parts: &Parts| parts.headers.get("x-key")?.to_str().ok().map(Key::new);
        let p = Policy::new("p", hourly(1_000))
            .skip_with(move |parts| skip.count(1, parts.uri.path() == "/free-of-p"))
            .key(extract::from_fn(move |parts| key.count(2, text(parts))))
            .missing_key(MissingKey::Reject)
            .cost_with(move |_| cost.count(3, 2))
            .quota_with(move |_| quota.count(4, Some(hourly(100))));
        let q = Policy::new("q", hourly(1_000))
            .key(by_header())
            .missing_key(MissingKey::Skip)
            .quota_with(move |_| other_quota.count(5, Some(hourly(200))));
        let blocked = Policy::block_list("blocked").key(by_header());
        let blocked = blocked.missing_key(MissingKey::Skip);
        let builder = Limiter::builder().policy(p).policy(q).policy(blocked);
        builder.skip_with(move |parts| all.count(0, parts.uri.path() == "/free"))
    }

    /// What a call about a request makes, and the closures that it calls. A wait evaluates conditions for each attempt, and before
    /// it joins its queue: they are counted once.
    async fn made(
        &self,
        entry: Entry,
        on: &Limiter,
        parts: &Parts,
        set: Settings,
    ) -> (Outcome, [usize; 6]) {
        self.take();
        let outcome = entry.call(on, parts, set).await;
        (outcome, self.take())
    }
}

#[tokio::test]
async fn a_call_calls_each_closure_once_and_none_whose_value_it_sets() {
    let calls = Calls::default();
    for (entry, of_request, of_settings) in [
        (Entry::Layer, [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]),
        (Entry::Check, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (Entry::Admit, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (Entry::Wait, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (Entry::Peek, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (Entry::PeekRequest, [0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]),
        (Entry::Credit, [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]),
        (Entry::Charge, [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]),
        (Entry::Reset, [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]),
        (Entry::Block, [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]),
    ] {
        for (settings, expected) in [(Settings::None, of_request), (Settings::All, of_settings)] {
            let (outcome, called) = calls
                .made(entry, &calls.limiter().built(), &head("/"), settings)
                .await;
            assert_eq!((outcome, called), (Outcome::Counted, expected), "{entry:?}");
        }
    }
}

#[tokio::test]
async fn no_closure_is_called_for_a_client_on_an_address_list_or_an_invalid_call() {
    let calls = Calls::default();
    let mut parts = head("/");
    let peer = "192.0.2.7:1".parse().expect("an address");
    parts.extensions.insert(PeerAddr(peer));
    let list = AddressList::new(["192.0.2.7"]).expect("a list");
    let denying = calls.limiter().deny(list.clone()).build();
    let allowing = calls.limiter().allow(list).build();
    let unlisted = calls.limiter().built();
    use Entry::{Admit, Check, Layer, Peek, PeekRequest, Wait};
    for entry in [Layer, Check, Admit, Wait, Peek, PeekRequest] {
        // The keys of a request are what its status is about.
        let keys = usize::from(entry == Entry::PeekRequest);
        for (limiter, expected) in [(&denying, Outcome::Denied), (&allowing, Outcome::Uncounted)] {
            let limiter = limiter.as_ref().expect("a limiter");
            let made = calls.made(entry, limiter, &parts, Settings::None).await;
            assert_eq!(made, (expected, [0, 0, keys, 0, 0, 0]), "{entry:?}");
        }
    }
    let by_layer = |limiter| calls.made(Layer, limiter, &parts, Settings::None);
    // The layer asks a list of keys about the key alone.
    let keys = KeyList::new("p", [Key::new(KEY)]);
    let denying = calls.limiter().deny(keys).built();
    let made = by_layer(&denying).await;
    assert_eq!(made, (Outcome::Denied, [0, 0, 1, 0, 0, 0]));
    // Once also if the key is on no list.
    let others = KeyList::new("p", [Key::new("other")]);
    let denying = calls.limiter().deny(others).built();
    let made = by_layer(&denying).await;
    assert_eq!(made, (Outcome::Counted, [1; 6]));
    for entry in Entry::ALL {
        if !matches!(entry, Entry::Layer | Entry::Block) {
            let keys = usize::from(entry == Entry::PeekRequest);
            let made = calls.made(entry, &unlisted, &parts, Settings::Mistake);
            let made = made.await;
            assert_eq!(made, (Outcome::Invalid, [0, 0, keys, 0, 0, 0]), "{entry:?}");
        }
    }
}

#[tokio::test]
async fn no_closure_of_a_policy_is_called_for_a_request_that_it_skips_or_that_is_decided_before_it()
{
    let calls = Calls::default();
    let mut stranger = head("/");
    stranger.headers.clear();
    let (free, free_of_p) = ([1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1]);
    for entry in [Entry::Layer].into_iter().chain(Entry::CALLS_OF_REQUESTS) {
        let without_key = match entry {
            // The first policy rejects it: no later one is evaluated.
            Entry::Layer => [1, 1, 1, 0, 0, 0],
            _ => [1, 1, 0, 1, 1, 1],
        };
        for (parts, expected) in [
            (&head("/free"), free),
            (&head("/free-of-p"), free_of_p),
            (&stranger, without_key),
        ] {
            let (_, called) = calls
                .made(entry, &calls.limiter().built(), parts, Settings::None)
                .await;
            assert_eq!(called, expected, "{entry:?} {parts:?}");
        }
    }
    // That a policy would skip the request is asked for the policy that would reject it.
    let limiter = calls.limiter().built();
    let seen = calls.made(Entry::PeekRequest, &limiter, &stranger, Settings::None);
    assert_eq!(seen.await, (Outcome::NoKey, [0, 1, 1, 0, 0, 0]));
}

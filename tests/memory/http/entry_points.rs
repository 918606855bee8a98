//! What applies at each entry point of a limiter: access lists, conditions, bans, missing keys, failed stores, and the application's
//! closures. One table of entry points for each.

use Entry::{Admit, Block, Charge, Check, Credit, Layer, Peek, PeekRequest, Reset, Wait};
use Outcome::{Counted, Denied, Invalid, NoKey, Rejected, StoreFailed, Uncounted};
use tollgate::limiter::{self, LimitStatus};

use crate::http::{support, support::*};

/// The key of every request and call.
const KEY: &str = "alice";

const HOUR: Duration = secs(3_600);

/// A way into a limiter. Calls are about the policy `p`; a block is about the block list `blocked`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Layer,
    Check,
    Admit,
    Wait,
    Peek,
    PeekRequest,
    Credit,
    Charge,
    Reset,
    Block,
}

const ALL: [Entry; 10] = [
    Layer,
    Check,
    Admit,
    Wait,
    Peek,
    PeekRequest,
    Credit,
    Charge,
    Reset,
    Block,
];

/// Calls about requests, and calls of operators.
const REQUESTS: [Entry; 5] = [Layer, Check, Admit, Wait, Peek];
const OPERATORS: [Entry; 4] = [Credit, Charge, Reset, Block];

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// Admitted or done, with the policy `p`.
    Counted,
    /// Admitted, without the policy `p`.
    Uncounted,
    Rejected,
    Denied,
    NoKey,
    StoreFailed,
    Invalid,
}

/// The cost that a call sets, and the policies of which it sets the quota.
#[derive(Clone, Copy)]
struct Settings(Option<u64>, &'static [&'static str]);

const NONE: Settings = Settings(None, &[]);
const BOTH_QUOTAS: Settings = Settings(Some(3), &["p", "q"]);
const MISTAKE: Settings = Settings(None, &["nobody"]);

impl Settings {
    fn of<T>(self, mut check: limiter::Check<T>) -> limiter::Check<T> {
        if let Some(cost) = self.0 {
            check = check.cost(cost);
        }
        let policies = self.1.iter();
        policies.fold(check, |check, name| check.quota_for(*name, hourly(50)))
    }
}

impl Entry {
    /// Makes a call about a request.
    async fn call(self, limiter: &Limiter, parts: &Parts, set: Settings) -> Outcome {
        match self {
            Layer => by_layer(limiter, parts).await,
            Check => of_decision(&set.of(limiter.check(KEY)).parts(parts).await),
            Admit => of_admission(set.of(limiter.admit(KEY)).parts(parts).await),
            Wait => {
                let mut wait = limiter.wait(KEY, Duration::ZERO).parts(parts);
                if let Some(cost) = set.0 {
                    wait = wait.cost(cost);
                }
                for name in set.1 {
                    wait = wait.quota_for(*name, hourly(50));
                }
                of_admission(wait.await)
            }
            Peek => of_status(&set.of(limiter.peek(KEY)).parts(parts).await),
            PeekRequest => of_status(&set.of(limiter.peek_request(parts)).await),
            Credit => {
                let p = limiter.policy("p").expect("a policy");
                let mut credit = p.credit(KEY, 1).parts(parts);
                for name in set.1 {
                    credit = credit.quota_for(*name, hourly(50));
                }
                of_status(&credit.await.map(|credited| credited.status().clone()))
            }
            Charge => of_status(&set.of(limiter.charge(KEY, 1)).parts(parts).await),
            Reset => of_status(&set.of(limiter.reset(KEY)).parts(parts).await),
            Block => match limiter.block(("blocked", KEY), secs(60)).await {
                Ok(()) => Counted,
                Err(error) => of_error(&error),
            },
        }
    }
}

fn hourly(requests: u64) -> Quota {
    Quota::requests(requests).per_hour()
}

/// The head of a request with the key.
fn head(path: &str) -> Parts {
    support::head(Request::get(path).header("x-key", KEY))
}

async fn by_layer(limiter: &Limiter, parts: &Parts) -> Outcome {
    let app = hello(&RateLimitLayer::new(limiter.clone()));
    let request = Request::from_parts(parts.clone(), Body::empty());
    let response = send(&app, request).await;
    match response.status.as_u16() {
        429 => Rejected,
        403 => Denied,
        400 => NoKey,
        503 => StoreFailed,
        // There is one route alone; what the limiter admits elsewhere is not found.
        200 | 404 if response.field("ratelimit-policy").contains("\"p\"") => Counted,
        200 | 404 => Uncounted,
        other => panic!("{other}"),
    }
}

fn of_admission(result: Result<Admission, tollgate::Rejected>) -> Outcome {
    match result {
        Ok(admission) => of_decision(&admission.decisions()[0]),
        Err(rejected) => of_decision(rejected.decision()),
    }
}

fn of_decision(decision: &Decision) -> Outcome {
    outcome(decision.kind(), decision.policy("p").is_some())
}

fn of_status(status: &Result<LimitStatus, CallError>) -> Outcome {
    match status {
        Ok(status) => outcome(status.kind(), status.policy("p").is_some()),
        Err(error) => of_error(error),
    }
}

fn of_error(error: &CallError) -> Outcome {
    match error {
        CallError::Store(_) => StoreFailed,
        _ => Invalid,
    }
}

fn outcome(kind: &DecisionKind, is_counted: bool) -> Outcome {
    match kind {
        DecisionKind::Admitted if is_counted => Counted,
        DecisionKind::Admitted => Uncounted,
        DecisionKind::Rejected => Rejected,
        DecisionKind::DenyListed => Denied,
        DecisionKind::MissingKey { .. } => NoKey,
        DecisionKind::StoreFailed(_) => StoreFailed,
        _ => Invalid,
    }
}

fn by_header(policy: Policy) -> Policy {
    policy.key(extract::header("x-key").readable())
}

/// A policy `p`, and a block list.
fn builder(p: Policy) -> LimiterBuilder {
    let blocked = by_header(Policy::block_list("blocked"));
    Limiter::builder().policy(by_header(p)).policy(blocked)
}

async fn call(entry: Entry, builder: LimiterBuilder, parts: &Parts) -> Outcome {
    entry.call(&builder.built(), parts, NONE).await
}

#[tokio::test]
async fn lists_and_conditions_apply_to_requests_and_not_to_calls_of_operators() {
    let p = || Policy::new("p", hourly(9));
    let list = || KeyList::new("p", [Key::new(KEY)]);
    for (entries, denied, allowed, free, free_of_p) in [
        (&REQUESTS[..], Denied, Uncounted, Uncounted, Uncounted),
        // The status of a caller is asked for by a request which may itself be free.
        (&[PeekRequest], Denied, Uncounted, Counted, Counted),
        (&OPERATORS, Counted, Counted, Counted, Counted),
    ] {
        for entry in entries {
            for (builder, expected) in [
                (builder(p()).deny(list()), denied),
                (builder(p()).allow(list()), allowed),
                (builder(p()).skip_path("/free"), free),
                (builder(p().skip_path("/free")), free_of_p),
            ] {
                let text = format!("{entry:?} {builder:?}");
                let outcome = call(*entry, builder, &head("/free")).await;
                assert_eq!(outcome, expected, "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_decided_by_lists_first_and_calls_have_their_own() {
    let stranger = support::head(Request::get("/").header("x-other", KEY));
    for (entries, unlisted, denied) in [
        (&[Layer, PeekRequest][..], NoKey, Denied),
        (&[Check, Admit, Wait, Peek], Counted, Denied),
        (&OPERATORS, Counted, Counted),
    ] {
        for entry in entries {
            let builder = || {
                let other =
                    Policy::new("other", hourly(9)).key(extract::header("x-other").readable());
                builder(Policy::new("p", hourly(9))).policy(other)
            };
            let list = KeyList::new("other", [Key::new(KEY)]);
            let outcome = call(*entry, builder(), &stranger).await;
            assert_eq!(outcome, unlisted, "{entry:?}");
            let outcome = call(*entry, builder().deny(list), &stranger).await;
            assert_eq!(outcome, denied, "{entry:?}");
        }
    }
}

/// Two requests an hour, and a ban of those that are rejected three times.
fn with_ban() -> Limiter {
    let ban = Policy::new("abuse", hourly(3));
    let ban = ban.strategy(Ban::for_duration(secs(600)));
    limiter([
        by_header(Policy::new("p", hourly(2))),
        by_header(ban),
        by_header(Policy::block_list("blocked")),
    ])
}

#[tokio::test]
async fn bans_count_rejected_requests_and_nothing_that_operators_do() {
    for (entries, outcome, rejections) in [
        (&[Layer, Check, Admit, Wait][..], Rejected, 1),
        (&[Peek, PeekRequest, Charge], Rejected, 0),
        (&[Credit, Block], Counted, 0),
    ] {
        for entry in entries {
            let limiter = with_ban();
            // A rejection is one, whatever its cost.
            let cost = matches!(entry, Check | Admit | Wait).then_some(2);
            assert!(limiter.check(KEY).cost(2).await.is_admitted());
            let set = Settings(cost, &[]);
            let result = entry.call(&limiter, &head("/"), set).await;
            assert_eq!(result, outcome, "{entry:?}");
            let counted = used(&limiter, "abuse", Key::new(KEY)).await;
            assert_eq!(counted, rejections, "{entry:?}");
        }
    }
    // A charge by hand counts under a ban that it names, and a reset clears it, named or not.
    let limiter = with_ban();
    let _ = limiter.charge(("abuse", KEY), 2).await.expect("a response");
    assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 2);
    let _ = limiter.reset(KEY).await.expect("a response");
    assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 0);
}

#[tokio::test]
async fn a_ban_rejects_requests_and_no_credit_or_charge() {
    for entry in ALL {
        let limiter = with_ban();
        let ban = limiter.block(("abuse", KEY), secs(600));
        ban.await.expect("a ban");
        let result = entry.call(&limiter, &head("/"), NONE).await;
        // A reset returns the status before it.
        let is_free = matches!(entry, Credit | Charge | Block);
        let expected = if is_free { Counted } else { Rejected };
        assert_eq!(result, expected, "{entry:?}");
    }
}

#[tokio::test]
async fn a_failed_store_is_handled_as_configured_for_requests_and_returned_to_operators() {
    for entry in ALL {
        let [admits, rejects, local] = match entry {
            Layer | Check | Admit | Wait => [Uncounted, StoreFailed, Counted],
            _ => [StoreFailed; 3],
        };
        for (action, expected) in [
            (OnStoreError::Admit, admits),
            (OnStoreError::Reject, rejects),
            (LocalFallback::shared_by(1).into(), local),
        ] {
            let text = format!("{entry:?} {action:?}");
            let builder = builder(Policy::new("p", hourly(9)))
                .store(StubStore::failing(StoreError::Timeout))
                .on_store_error(action);
            assert_eq!(call(entry, builder, &head("/")).await, expected, "{text}");
        }
    }
}

#[tokio::test]
async fn a_reset_of_one_caller_leaves_out_policies_that_count_all_callers_together() {
    let all = || Policy::new("all", hourly(9)).key(extract::global());
    for (policies, left) in [
        (vec![by_header(Policy::new("p", hourly(9))), all()], 8),
        // Unless there is no other policy.
        (vec![all()], 9),
    ] {
        let limiter = limiter(policies);
        assert!(limiter.check(KEY).await.is_admitted());
        let _ = limiter.reset(KEY).await.expect("a response");
        let seen = limiter.peek(KEY).await.expect("a response");
        assert_eq!(seen.left("all"), left);
    }
}

/// How often each closure was called: those of the limiter's condition, and of `p`'s condition, key, cost and quota; and `q`'s
/// quota.
#[derive(Clone, Default)]
struct Calls(Arc<[AtomicUsize; 6]>);

impl Calls {
    /// Counts a call, and returns what the closure does.
    fn count<T>(&self, closure: usize, result: T) -> T {
        self.0[closure].fetch_add(1, Ordering::SeqCst);
        result
    }

    /// The calls since the last time.
    fn take(&self) -> [usize; 6] {
        [0, 1, 2, 3, 4, 5].map(|closure: usize| self.0[closure].swap(0, Ordering::SeqCst))
    }

    /// A builder with a policy `p` of which each setting is a closure, a policy `q` with a quota by request, and a block list.
    fn limiter(&self) -> LimiterBuilder {
        let [all, skip, key, cost, quota, other_quota] = [(); 6].map(|()| self.clone());
        let text = |parts: &Parts| parts.headers.get("x-key")?.to_str().ok().map(Key::new);
        let p = Policy::new("p", hourly(1_000))
            .skip_with(move |parts| skip.count(1, parts.uri.path() == "/free-of-p"))
            .key(extract::from_fn(move |parts| key.count(2, text(parts))))
            .missing_key(MissingKey::Reject)
            .cost_with(move |_| cost.count(3, 2))
            .quota_with(move |_| quota.count(4, Some(hourly(100))));
        let q = by_header(Policy::new("q", hourly(1_000)))
            .missing_key(MissingKey::Skip)
            .quota_with(move |_| other_quota.count(5, Some(hourly(200))));
        let blocked = by_header(Policy::block_list("blocked")).missing_key(MissingKey::Skip);
        let builder = Limiter::builder().policy(p).policy(q).policy(blocked);
        builder.skip_with(move |parts| all.count(0, parts.uri.path() == "/free"))
    }

    /// What a call about a request makes, and the closures that it calls. A wait evaluates conditions for each attempt, and before
    /// it joins its queue: they are counted once.
    async fn made(
        &self,
        entry: Entry,
        builder: LimiterBuilder,
        parts: &Parts,
        set: Settings,
    ) -> (Outcome, [usize; 6]) {
        let limiter = builder.built();
        self.take();
        let outcome = entry.call(&limiter, parts, set).await;
        (outcome, self.take())
    }
}

#[tokio::test]
async fn a_call_calls_each_closure_once_and_none_whose_value_it_sets() {
    let calls = Calls::default();
    for (entry, of_request, of_settings) in [
        (Layer, [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]),
        (Check, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (Admit, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (Wait, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (Peek, [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]),
        (PeekRequest, [0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]),
        (Credit, [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]),
        (Charge, [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]),
        (Reset, [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]),
        (Block, [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]),
    ] {
        for (settings, expected) in [(NONE, of_request), (BOTH_QUOTAS, of_settings)] {
            let parts = head("/");
            let made = calls.made(entry, calls.limiter(), &parts, settings);
            assert_eq!(made.await, (Counted, expected), "{entry:?}");
        }
    }
}

#[tokio::test]
async fn no_closure_is_called_after_an_early_decision() {
    let calls = Calls::default();
    let mut parts = head("/");
    let peer = "192.0.2.7:1".parse().expect("an address");
    parts.extensions.insert(PeerAddr(peer));
    let list = AddressList::new(["192.0.2.7"]).expect("a list");
    let keys = || KeyList::new("p", [Key::new(KEY)]);
    for entry in [Layer, Check, Admit, Wait, Peek, PeekRequest] {
        let denying = calls.limiter().deny(list.clone());
        let allowing = calls.limiter().allow(list.clone());
        // The keys of a request are what its status is about.
        let key = usize::from(entry == PeekRequest);
        for (limiter, expected) in [(denying, Denied), (allowing, Uncounted)] {
            let made = calls.made(entry, limiter, &parts, NONE).await;
            assert_eq!(made, (expected, [0, 0, key, 0, 0, 0]), "{entry:?}");
        }
        if entry != Layer {
            let made = calls.made(entry, calls.limiter(), &parts, MISTAKE).await;
            assert_eq!(made, (Invalid, [0, 0, key, 0, 0, 0]), "{entry:?}");
        }
    }
    // The layer asks a list of keys about the key alone.
    let made = calls.made(Layer, calls.limiter().deny(keys()), &parts, NONE);
    assert_eq!(made.await, (Denied, [0, 0, 1, 0, 0, 0]));
    // The first policy rejects a request without a key: no later one is evaluated.
    let (free, free_of_p) = ([1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1]);
    let mut stranger = head("/");
    stranger.headers.clear();
    for (parts, expected) in [
        (&head("/free"), free),
        (&head("/free-of-p"), free_of_p),
        (&stranger, [1, 1, 1, 0, 0, 0]),
    ] {
        let (_, called) = calls.made(Layer, calls.limiter(), parts, NONE).await;
        assert_eq!(called, expected, "{parts:?}");
    }
}

/// A wait tries again and again while a permit is held.
#[tokio::test(start_paused = true)]
async fn a_wait_reads_its_request_once_for_each_set_of_policies_however_often_it_tries() {
    let once = [1, 1, 0, 1, 1, 1];
    for is_replaced in [false, true] {
        let (calls, next) = (Calls::default(), Calls::default());
        let one_in_flight = |calls: &Calls| {
            let permits = Policy::new("permits", Quota::concurrent(1));
            calls.limiter().policy(permits)
        };
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = attempts.clone();
        let store = StubStore::responding(move |op| {
            counted.fetch_add(usize::from(matches!(op, Op::Acquire(_))), Ordering::SeqCst);
            None
        });
        let limiter = one_in_flight(&calls).store(store).built();
        let held = limiter.admit(("permits", KEY)).await.expect("a permit");
        calls.take();
        let waiting = tokio::spawn(limiter.wait(KEY, HOUR).parts(&head("/")).into_future());
        let tried = async |times| {
            let before = attempts.load(Ordering::SeqCst);
            let has_tried = async || attempts.load(Ordering::SeqCst) > before + times;
            until("it has tried often", has_tried).await;
        };
        tried(5).await;
        if is_replaced {
            let replaced = limiter.reconfigure(one_in_flight(&next));
            replaced.expect("valid policies");
            tried(5).await;
        }
        drop(held);
        let admission = waiting.await.expect("no panic").expect("a permit");
        let left = ["p", "q"].map(|name| admission.remaining(name).expect(name));
        assert_eq!((calls.take(), left), (once, [98, 199]));
        assert_eq!(next.take(), if is_replaced { once } else { [0; 6] });
    }
}

#[tokio::test]
async fn a_final_rejection_that_the_store_cannot_count_is_handled_as_configured_and_stays_one() {
    for (action, rejecting) in [
        (OnStoreError::Admit, vec!["p"]),
        (OnStoreError::Reject, vec!["p"]),
        (LocalFallback::shared_by(1).into(), vec!["p", "abuse"]),
    ] {
        let text = format!("{action:?}");
        // The store counts no rejection by hand.
        let store = StubStore::responding(|op| {
            (op == Op::ForceAcquire).then(|| StoreResponse::Ready(Err(StoreError::Timeout)))
        });
        let abuse = Policy::new("abuse", hourly(1)).strategy(Ban::for_duration(HOUR));
        let builder = Limiter::builder().store(store).on_store_error(action);
        let limiter = stores::limiter(builder, [Policy::new("p", hourly(1)), abuse]);
        let _ = limiter.wait(KEY, Duration::ZERO).await.expect("the first");
        let rejected = limiter.wait(KEY, Duration::ZERO).await;
        let rejected = rejected.expect_err("no time");
        assert_eq!(rejected.status(), 429, "{text}");
        let policies = rejected.decision().policies().filter(|own| own.rejected());
        let names: Vec<_> = policies.map(|own| own.policy()).collect();
        assert_eq!(names, rejecting, "{text}");
        assert_eq!(used(&limiter, "p", Key::new(KEY)).await, 1, "{text}");
    }
}

//! A history, played on both stores and on the model.

use std::{
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
};

use testkit::Clock as ServerClock;
use tokio::runtime::Runtime;
use tollgate::limiter::Keys as RequestKeys;
use tollgate_tests::prelude::*;

use self::{operations::Block, permits::Taken};
use crate::differential::{
    generate::LAST,
    history::{History, KEYS, Op, PolicySpec, Rate, Request, Role, Step, key_named, policy_name},
    keys::{Keys, PolicyKey},
    model::{Model, Quotas},
    response::OpResult,
};

mod operations;
mod permits;

/// How long, in microseconds, a key that is over and has no TTL can be distinguished from a full one.
const IDLE: u64 = 1_200 * 86_400_000_000;

/// How old a cached rejection may be.
const BOUND: Duration = secs(1);

/// A key that is never charged.
const UNUSED: usize = KEYS * 2;

/// How often the server's scripts are flushed: each choice of strategies has its own.
const HISTORIES_PER_SCRIPT_FLUSH: u64 = 100;

/// A server on which one history after the other is played.
pub(crate) struct Stores {
    runtime: Runtime,
    clock: ServerClock,
    server: Server,
    histories: u64,
    /// How many steps were compared with the model, too.
    pub(crate) modelled: u64,
}

/// Where a history failed, and why.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) step: usize,
    pub(crate) text: String,
}

/// The limiter over a store, and what it decided.
struct Side {
    limiter: Limiter,
    /// Which quota is each policy's own.
    own: Vec<usize>,
    decisions: Vec<Held>,
}

/// What a request left that charges or refunds.
enum Held {
    /// It was rejected, not sent, or several in one.
    Nothing,
    Admission(Admission),
}

/// A history that is being played.
struct Run<'a> {
    history: &'a History,
    server: &'a Server,
    clock: &'a ServerClock,
    local: ManualClock,
    now: u64,
    /// Those in force.
    policies: Vec<PolicySpec>,
    /// What operators have set: a quota, or none.
    overrides: HashMap<PolicyKey, Option<Rate>>,
    memory: Side,
    redis: Side,
    model: Option<Model>,
    keys: Keys,
    /// On Redis, and in process.
    stores: (RedisStore, MemoryStore),
    /// The permits of another process.
    taken: Vec<Taken>,
    /// Those, and permits that were charged by hand.
    unheld: HashSet<Key>,
    /// One for each policy, by which the memory store removes a key's state.
    single: Vec<Limiter>,
    /// The last rejection's wait.
    last_wait: Duration,
    /// When a request was admitted last.
    changed: u64,
}

type Outcome<T = ()> = Result<T, String>;

impl Stores {
    pub(crate) fn new() -> Self {
        let clock = ServerClock::at(1);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build();
        Self {
            runtime: runtime.expect("a runtime"),
            server: Server::builder().clock(&clock).start(),
            clock,
            histories: 0,
            modelled: 0,
        }
    }

    /// Runs a history from its beginning. A panic is a failure of the current step.
    pub(crate) fn run(&mut self, history: &History) -> Result<(), Failure> {
        self.histories += 1;
        self.clock.set(history.start);
        self.server.flush();
        if self.histories.is_multiple_of(HISTORIES_PER_SCRIPT_FLUSH) {
            self.server.command(&["SCRIPT", "FLUSH"]).ok();
        }
        let mut step = 0;
        let (runtime, server, clock) = (&self.runtime, &self.server, &self.clock);
        let modelled = &mut self.modelled;
        let caught = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                let mut run = Run::new(history, server, clock);
                while step < history.steps.len() {
                    run.step(&history.steps[step]).await?;
                    step += 1;
                    *modelled += u64::from(run.model.is_some());
                }
                run.compare_shadows()
            })
        }));
        let outcome = caught.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("a panic: {}", text.unwrap_or_default()))
        });
        outcome.map_err(|text| Failure { step, text })
    }
}

/// Whether a limiter can be built of these policies.
pub(crate) fn is_sound(policies: &[PolicySpec]) -> bool {
    let all = policies.iter().enumerate();
    let policies = all.filter(|(_, policy)| policy.is_present());
    let tiers = policies.clone().all(|(place, policy)| {
        policy.quotas.iter().all(|quota| {
            let tier = PolicySpec {
                quotas: vec![*quota],
                declared: false,
                role: Role::Live,
                ..policy.clone()
            };
            let store = MemoryStore::new();
            build(Limiter::builder().store(store), [tier.plain(place)]).is_ok()
        })
    });
    // A request whose policies all have leases might be decided by one on Redis, at a time that no clock here sets.
    let is_unleased = |policy: &PolicySpec| policy.lease.is_none() && !policy.is_ban();
    let has_leases = policies.clone().any(|(_, policy)| policy.lease.is_some());
    let is_counted = !has_leases || policies.clone().any(|(_, policy)| is_unleased(policy));
    let policies = policies.map(|(place, policy)| policy.policy(place, 0));
    tiers && is_counted && build(Limiter::builder().store(MemoryStore::new()), policies).is_ok()
}

fn build(
    builder: LimiterBuilder,
    policies: impl IntoIterator<Item = Policy>,
) -> Result<Limiter, tollgate::ConfigError> {
    let builder = policies.into_iter().fold(builder, LimiterBuilder::policy);
    builder.on_store_error(OnStoreError::Reject).build()
}

/// The settings of a limiter of these policies, each with one of its quotas as its own.
fn settings(builder: LimiterBuilder, policies: &[PolicySpec], own: &[usize]) -> LimiterBuilder {
    let policies = policies.iter().zip(own).enumerate();
    let present = policies.filter(|(_, (policy, _))| policy.is_present());
    let builder = present.fold(builder, |builder, (place, (policy, own))| {
        builder.policy(policy.policy(place, *own))
    });
    builder.on_store_error(OnStoreError::Reject)
}

impl Side {
    fn new(store: impl Store, policies: &[PolicySpec]) -> Self {
        let own = vec![0; policies.len()];
        let limiter = settings(Limiter::builder().store(store), policies, &own).build();
        Self {
            limiter: limiter.expect("a limiter"),
            own,
            decisions: Vec::new(),
        }
    }

    /// The limiter of these policies for a request, which is reconfigured if one of its quotas can be no tier of the last one's.
    fn limiter(&mut self, policies: &[PolicySpec], request: &Request) -> Limiter {
        let policies_of_request = policies.iter().enumerate();
        let own = policies_of_request
            .map(|(place, policy)| policy.own(request.tier(policy, place)))
            .collect();
        if own != self.own {
            self.reconfigure(policies, own);
        }
        self.limiter.clone()
    }

    fn reconfigure(&mut self, policies: &[PolicySpec], own: Vec<usize>) {
        let settings = settings(Limiter::builder(), policies, &own);
        self.limiter.reconfigure(settings).expect("valid settings");
        self.own = own;
    }

    /// What a shadow counted.
    fn compared(&self, policy: &str) -> [u64; 2] {
        let compared = self.limiter.shadow_stats(policy).expect("a shadow");
        [compared.evaluated, compared.would_reject]
    }
}

impl<'a> Run<'a> {
    fn new(history: &'a History, server: &'a Server, clock: &'a ServerClock) -> Self {
        let local = ManualClock::at(Timestamp::from_micros(history.start as i64));
        let memory = MemoryStore::builder().clock(local.clone()).build();
        let bound = if history.cache { BOUND } else { Duration::ZERO };
        let redis = RedisStore::builder()
            .url(server.url())
            .timeout(TEST_TIMEOUT)
            .rejection_cache_staleness(bound)
            .rejection_cache_clock(local.clone());
        let redis = redis.build().expect("a store");
        let policies = &history.policies;
        let single = policies.iter().enumerate().map(|(place, policy)| {
            let builder = Limiter::builder().store(memory.clone());
            build(builder, [policy.plain(place)]).expect("a limiter")
        });
        Self {
            history,
            server,
            clock,
            local,
            now: history.start,
            policies: policies.clone(),
            overrides: HashMap::new(),
            single: single.collect(),
            memory: Side::new(memory.clone(), policies),
            redis: Side::new(redis.clone(), policies),
            stores: (redis, memory),
            taken: Vec::new(),
            unheld: HashSet::new(),
            model: Model::new(policies),
            keys: Keys::default(),
            last_wait: Duration::ZERO,
            changed: 0,
        }
    }

    async fn step(&mut self, step: &Step) -> Outcome {
        let then = self.then(step);
        if then < self.now {
            self.forget_what_is_over().await?;
        }
        if then < self.now && self.now - then <= 2_000 {
            // The current window is cut by as much.
            self.drop_decisions_of_windows().await;
        }
        self.move_clock(then).await?;
        self.check_keys().await?;
        match &step.op {
            Op::Check(request) => self.check(request).await?,
            Op::AtOnce(requests) => self.check_at_once(requests, None).await?,
            Op::Reload { policies, pending } => self.reload(policies, pending).await?,
            Op::Charge(request) => self.charge(request).await?,
            Op::Peek(request) => self.peek(request).await?,
            Op::Reset(key) => self.reset(*key).await?,
            Op::Refund { of, units } => self.refund(*of, *units).await?,
            Op::Settle { of, how, units } => self.settle(*of, *how, *units).await?,
            Op::Credit {
                place,
                request,
                units,
            } => self.credit(*place, request, *units).await?,
            Op::Override {
                place,
                key,
                setting,
            } => self.set_override((*place, *key), *setting).await?,
            Op::Drop { of } => self.drop_decision(*of).await,
            Op::Take { place, key, units } => self.take((*place, *key), *units).await?,
            Op::Renew => self.renew_taken().await?,
            Op::Block { key, ms } => self.block(*key, Block::For(*ms)).await?,
            Op::ProlongBlock { key, ms } => self.block(*key, Block::ForAtLeast(*ms)).await?,
            Op::Unblock { key } => self.block(*key, Block::End).await?,
            Op::Persist { of } => self.spoil(*of, None),
            Op::Prolong { of, ms } => self.spoil(*of, Some(*ms)),
        }
        if step.peek {
            for request in step.op.requests() {
                self.peek(&request).await?;
            }
        }
        Ok(())
    }

    /// What the clock shows at a step.
    fn then(&self, step: &Step) -> u64 {
        let last_wait = self.last_wait.as_micros() as i64;
        let wait = step.wait + if step.after_wait { last_wait } else { 0 };
        let policies = &self.policies;
        // What is over under them can't be peeked at.
        let hides = policies.iter().any(|policy| !policy.is_present())
            || self.overrides.values().any(Option::is_none);
        let wait = if hides { wait.max(0) } else { wait };
        // Times to live that are a millisecond or two too long are left as they are.
        let lax = policies.iter().any(PolicySpec::is_ban);
        let slight = lax && (-10_000..0).contains(&wait);
        let then = self
            .now
            .saturating_add_signed(if slight { 0 } else { wait });
        let then = then.next_multiple_of(self.history.grain);
        if (1..=LAST).contains(&then) {
            then.min(self.latest())
        } else {
            self.now
        }
    }

    fn set_clock(&mut self, micros: u64) {
        self.now = micros;
        self.clock.set(micros);
        self.local.set(Timestamp::from_micros(micros as i64));
        if let Some(model) = &mut self.model
            && !model.set(micros)
        {
            self.model = None;
        }
    }

    /// Compares the keys on Redis, and removes from the others what ended there.
    async fn check_keys(&mut self) -> Outcome {
        self.keys
            .remove_stale(self.server, &self.policies, self.now, IDLE);
        for place in self.keys.check_keys(self.server, self.now)? {
            self.forget(place).await;
        }
        Ok(())
    }

    /// Removes from all what is over: a store may or may not have, and if the clock steps back it shows.
    async fn forget_what_is_over(&mut self) -> Outcome {
        for key in self.keys.unknown(self.now) {
            self.touch(&Request::of(key)).await?;
        }
        self.check_keys().await?;
        for place in self.keys.remove_over(self.server, self.now) {
            self.forget(place).await;
        }
        Ok(())
    }

    async fn forget(&mut self, (policy, key): PolicyKey) {
        let keys = RequestKeys::from([(policy_name(policy), key_named(key))]);
        drop(self.single[policy].reset(keys).await.expect("a response"));
        if let Some(model) = &mut self.model {
            model.forget(policy, key);
        }
    }

    /// By which quotas a request is counted; `by_hand`, also under policies that its key is exempt from.
    fn quotas(&self, request: &Request, by_hand: bool) -> Quotas {
        let policies = self.policies.iter().enumerate();
        let quotas = policies.map(|(place, policy)| {
            let tier = request.tier(policy, place);
            match self.overrides.get(&(place, request.key(place))) {
                _ if !policy.is_present() => None,
                Some(None) if !by_hand => None,
                Some(Some(rate)) => {
                    let quota = policy.quotas.iter().position(|quota| quota == rate);
                    let counts = |quota: &usize| policy.share_tiers(policy.own(tier), *quota);
                    Some(quota.filter(counts).unwrap_or(tier))
                }
                _ => Some(tier),
            }
        });
        quotas.collect()
    }

    /// Records what Redis returned about the keys.
    fn record(&mut self, request: &Request, result: &OpResult, alone: bool) {
        let quotas = self.quotas(request, false);
        for (place, policy) in self.policies.iter().enumerate() {
            let key = request.key(place);
            let Some(tier) = quotas[place] else {
                // A charge by hand changes it, and a peek does not show it.
                self.keys.change((place, key), self.now);
                continue;
            };
            let is_free = request.cost == Some(0);
            let repairs = alone && (is_free || result.admitted == Some(0));
            match result.under.get(&policy_name(place)) {
                Some(under) => self.keys.record(
                    (place, key),
                    policy,
                    tier,
                    under,
                    (self.now, repairs, !is_free),
                ),
                None => self.keys.change((place, key), self.now),
            }
        }
    }

    fn change_all(&mut self) {
        let policies = 0..self.policies.len();
        let places = policies.flat_map(|place| (0..KEYS).map(move |key| (place, key)));
        for place in places.collect::<HashSet<PolicyKey>>() {
            self.keys.change(place, self.now);
        }
    }

    /// What shadows counted.
    fn compare_shadows(&self) -> Outcome {
        for (place, policy) in self.policies.iter().enumerate() {
            if policy.role == Role::Shadow {
                let name = policy_name(place);
                let compared = [&self.redis, &self.memory].map(|side| side.compared(&name));
                if compared[0] != compared[1] {
                    return Err(format!("compared: {compared:?}"));
                }
            }
        }
        Ok(())
    }
}

impl Op {
    /// What may be peeked at afterwards.
    fn requests(&self) -> Vec<Request> {
        match self {
            Self::Check(request) | Self::Charge(request) | Self::Peek(request) => {
                vec![request.clone()]
            }
            Self::AtOnce(requests) => {
                let requests = requests.iter();
                requests.map(|(request, _)| request.clone()).collect()
            }
            Self::Reset(key)
            | Self::Override { key, .. }
            | Self::Block { key, .. }
            | Self::ProlongBlock { key, .. }
            | Self::Unblock { key }
            | Self::Take { key, .. } => {
                vec![Request::of(*key)]
            }
            Self::Refund { of, .. } | Self::Settle { of, .. } | Self::Drop { of } => {
                vec![Request::of(of % KEYS)]
            }
            Self::Credit { request, .. } => vec![request.clone()],
            Self::Renew | Self::Reload { .. } => (0..KEYS).map(Request::of).collect(),
            Self::Persist { .. } | Self::Prolong { .. } => Vec::new(),
        }
    }
}

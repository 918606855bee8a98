//! One process's part: tasks that acquire, charge, refund, settle, and drop, at random.

use std::sync::atomic::AtomicI64;

use tollgate_tests::prelude::*;

use super::{
    counts::AdmittedUnits,
    records::{Action, Record},
    request::{ActiveRequest, Drops, Handle, Mode},
    store::{LIMIT, QUOTA},
};

const TASKS: u64 = 16;

/// What each task does in one round.
const STEPS: u64 = 6;

/// The last is without the process that was killed.
pub(super) const ROUNDS: u64 = 4;

/// The most requests that a task has in flight.
const MAX_ACTIVE: usize = 3;

/// What a request costs at most.
pub(super) const COST: u64 = 8;

/// How far tasks charge past what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not at all: what is charged never exceeds the limit.
    Never,
    /// By little, so that nothing is cut short at a debt of one capacity.
    Little,
    /// By more than the capacity; then they settle at no more than before.
    Debts,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Never, Self::Little, Self::Debts];
}

/// Where a process writes down what it does.
pub(super) type Recorder = Arc<dyn Fn(u64, Record) + Send + Sync>;

/// One process, over many rounds.
pub(super) struct Process {
    shared: Arc<Shared>,
    tasks: Vec<Task>,
}

/// What its tasks share.
pub(super) struct Shared {
    pub(super) kind: Kind,
    pub(super) limiter: Limiter,
    /// Policies of all modes over the same counts.
    modes: [(Mode, RateLimitLayer); 4],
    recorder: Recorder,
    pub(super) admitted_units: AdmittedUnits,
    next: AtomicU64,
    /// Units that may be charged past what is left, so that no charge is cut short at a debt of one capacity.
    spare: AtomicI64,
}

struct Task {
    rng: Rng,
    active: Vec<ActiveRequest>,
}

impl Process {
    /// `base` distinguishes its requests from those of other processes.
    pub(super) fn new(
        (strategy, kind, seed): (StrategyKind, Kind, u64),
        limiter: impl Fn(Policy) -> Limiter,
        (recorder, admitted_units): (Recorder, AdmittedUnits),
        base: u64,
    ) -> Self {
        let policy = || strategy.policy("p", QUOTA).key(extract::global());
        let policy = || policy().cost_with(|parts| *parts.extensions.get().unwrap_or(&1_u64));
        let layer = |mode, policy| (mode, RateLimitLayer::new(limiter(policy)));
        let reserve = || policy().refund_unless(outcome::success);
        let plain = limiter(policy());
        let shared = Shared {
            kind,
            modes: [
                // Those that share a limiter share batches, and equal ones are merged.
                (Mode::Arrival, RateLimitLayer::new(plain.clone())),
                layer(Mode::Reserve, reserve()),
                layer(Mode::Lenient, reserve().charge_dropped(false)),
                layer(Mode::Response, policy().charge_after(outcome::success)),
            ],
            limiter: plain,
            recorder,
            admitted_units,
            next: AtomicU64::new(base),
            spare: AtomicI64::new(0),
        };
        let task = |task: u64| Task {
            rng: Rng::new(seed ^ (base + task).wrapping_mul(0x2545_f491_4f6c_dd1d)),
            active: Vec::new(),
        };
        Self {
            shared: Arc::new(shared),
            tasks: (0..TASKS).map(task).collect(),
        }
    }

    /// Opens the window of this instant, where there is none, so that no request needs to know which one did.
    pub(super) async fn open(&self, instant: u64) {
        let number = self.shared.number();
        let shared = &self.shared;
        shared.record(number, Record::Starts(Action::Acquire(1)));
        if !admitted_by_store(&shared.limiter.check(KEY).cost(1).await) {
            return shared.record(number, Record::Rejected);
        }
        shared.admitted(instant, 1).await;
        shared.record(number, Record::Done);
    }

    /// All tasks at once, each for some steps; then nothing of it is in flight.
    pub(super) async fn round(&mut self, instant: u64) {
        // Both processes together: one capacity in all rounds.
        let spare = LIMIT / 2 / ROUNDS as i64;
        self.shared.spare.fetch_add(spare, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        for mut task in self.tasks.drain(..) {
            let shared = self.shared.clone();
            tasks.spawn(async move {
                for _ in 0..STEPS {
                    task.step(&shared, instant).await;
                }
                task
            });
        }
        self.tasks = tasks.join_all().await;
        self.drain().await;
    }

    /// Ends all requests.
    pub(super) async fn finish(&mut self, instant: u64) {
        for task in &mut self.tasks {
            for active in std::mem::take(&mut task.active) {
                let ending = task.rng.below(6);
                active.end(&self.shared, instant, ending).await;
            }
        }
        self.drain().await;
    }

    /// Waits for what was sent without waiting: an operation queues behind all that were sent before. Dropped results
    /// send once more when they come.
    async fn drain(&self) {
        for _ in 0..4 {
            let peeked = self.shared.limiter.peek(KEY).cost(1).await;
            let _ = peeked.expect("a response");
        }
    }
}

impl Shared {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn record(&self, number: u64, record: Record) {
        (self.recorder)(number, record);
    }

    /// At every moment: what was admitted at one instant, less what was refunded, is within the limit.
    async fn admitted(&self, instant: u64, units: i64) {
        let sum = self.admitted_units.add(instant, units).await;
        assert!(sum <= LIMIT, "{sum} units admitted at one instant");
    }

    /// Whether `units` more may be charged.
    pub(super) fn may_charge(&self, units: i64) -> bool {
        let left = self.spare.fetch_sub(units, Ordering::Relaxed) - units;
        if left < 0 {
            self.spare.fetch_add(units, Ordering::Relaxed);
        }
        left >= 0
    }
}

impl Task {
    async fn step(&mut self, shared: &Arc<Shared>, instant: u64) {
        let choice = self.rng.below(10);
        if self.active.is_empty() || self.active.len() < MAX_ACTIVE && choice < 4 {
            let active = self.start(shared, instant).await;
            self.active.extend(active);
            return;
        }
        let place = self.rng.below(self.active.len() as u64) as usize;
        if choice < 7 {
            let active = &mut self.active[place];
            return active.adjust(shared, &mut self.rng, instant).await;
        }
        let ending = self.rng.below(6);
        let active = self.active.swap_remove(place);
        active.end(shared, instant, ending).await;
    }

    /// A request arrives.
    async fn start(&mut self, shared: &Arc<Shared>, instant: u64) -> Option<ActiveRequest> {
        // Most cost the same, so that they are merged.
        let cost = [2, 2, 2, 1 + self.rng.below(COST)][self.rng.below(4) as usize];
        let number = shared.number();
        // One in six is dropped in flight.
        let drops = Drops::one_in(6, &mut self.rng);
        let mode_index = self.rng.below(6) as usize;
        let layer = shared.modes.get(mode_index);
        let mode = layer.map_or(Mode::Arrival, |(mode, _)| *mode);
        let may_charge = || shared.kind == Kind::Little && shared.may_charge(cost as i64);
        if mode == Mode::Response && !may_charge() {
            // What it charges in the end might be cut short, or exceed the limit.
            return None;
        }
        let units = if mode == Mode::Response {
            0
        } else {
            cost as i64
        };
        shared.record(number, Record::Starts(Action::Acquire(units)));
        let handle = match layer {
            Some((_, layer)) => Handle::pass(shared, layer, cost, drops).await,
            None => {
                let admit = shared.limiter.admit(KEY).cost(cost).into_future();
                let admitted = drops.run(shared, admit).await.filter(admitted_by_store);
                let by_policy = mode_index == shared.modes.len();
                admitted
                    .and_then(Result::ok)
                    .map(|admission| match by_policy {
                        true => Handle::ByPolicy(admission),
                        false => Handle::Whole(admission),
                    })
            }
        };
        let Some(handle) = handle else {
            let record = match drops {
                Drops::Not => Record::Rejected,
                _ => Record::Dropped,
            };
            shared.record(number, record);
            return None;
        };
        shared.admitted(instant, units).await;
        shared.record(number, Record::Done);
        Some(ActiveRequest {
            number,
            mode,
            cost,
            counted: (instant, units),
            net: units,
            charged: false,
            handle,
        })
    }
}

//! Queues over a model of a rate limit, in simulated time.

use std::time::Duration;

use proptest::prelude::*;
use tokio::{
    task::{JoinHandle, yield_now},
    time::{sleep, sleep_until, timeout},
};

use super::*;

/// A rate limit by GCRA.
struct Model {
    capacity: u32,
    interval: Duration,
    /// When all units are free.
    full_at: Instant,
    is_failing: bool,
    attempts: usize,
}

/// A model, its queues, and the numbers of the calls that were admitted, and when.
struct Scene {
    model: Mutex<Model>,
    queues: WaitQueues<&'static str, &'static str>,
    /// The time between an attempt's decision and its response.
    latency: Duration,
    admitted: Mutex<Vec<(Instant, usize)>>,
}

/// Units that are given back when it is dropped, as those of an attempt that was cancelled.
struct Charge<'a>(&'a Arc<Scene>, u32);

type Outcome = Result<(), WaitError<&'static str>>;

fn counter() -> Counter {
    ("policy".into(), Key::new("alice"))
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Model {
    fn acquire(&mut self, units: u32) -> Attempt<(), &'static str> {
        self.attempts += 1;
        if self.is_failing {
            return Attempt::Rejected(rejection("store failed", None));
        }
        let now = Instant::now();
        let full_at = self.full_at.max(now) + self.interval * units;
        let tolerance = self.interval * self.capacity;
        if full_at > now + tolerance {
            return Attempt::Rejected(rejection("exhausted", Some(full_at - tolerance)));
        }
        self.full_at = full_at;
        let next = full_at + self.interval * units;
        if next > now + tolerance {
            let rejection = rejection("exhausted", Some(next - tolerance));
            return Attempt::Done((), Next::Rejects(rejection));
        }
        Attempt::Done((), Next::Admits((self.free() / units) as usize))
    }

    fn free(&self) -> u32 {
        let used = self.full_at.saturating_duration_since(Instant::now());
        let free = self.interval * self.capacity - used;
        (free.as_nanos() / self.interval.as_nanos()) as u32
    }
}

fn rejection(reason: &'static str, retry_at: Option<Instant>) -> Rejection<&'static str> {
    Rejection {
        reason,
        retry_at,
        counters: [counter()].into_iter().collect(),
    }
}

impl Scene {
    fn new(capacity: u32, interval: Duration, latency: Duration) -> Arc<Self> {
        Arc::new(Self {
            model: Mutex::new(Model {
                capacity,
                interval,
                full_at: Instant::now(),
                is_failing: false,
                attempts: 0,
            }),
            queues: WaitQueues::default(),
            latency,
            admitted: Mutex::default(),
        })
    }

    /// All units are taken.
    fn exhausted(capacity: u32, interval: Duration) -> Arc<Self> {
        let scene = Self::new(capacity, interval, Duration::ZERO);
        assert!(matches!(scene.model().acquire(capacity), Attempt::Done(..)));
        scene.model().attempts = 0;
        scene
    }

    fn model(&self) -> std::sync::MutexGuard<'_, Model> {
        lock(&self.model)
    }

    fn release(&self, units: u32) {
        let mut model = self.model();
        let time = model.interval * units;
        model.full_at -= time;
        drop(model);
        let (policy, key) = counter();
        self.queues.released(&policy, &key);
    }

    async fn attempt(self: &Arc<Self>, units: u32) -> Attempt<(), &'static str> {
        let attempt = self.model().acquire(units);
        let is_admitted = matches!(attempt, Attempt::Done(..));
        let charge = is_admitted.then(|| Charge(self, units));
        if !self.latency.is_zero() {
            sleep(self.latency).await;
        }
        mem::forget(charge);
        attempt
    }

    async fn wait(self: &Arc<Self>, call: WaitCall<&'static str>, cost: u32) -> Outcome {
        let attempt = || self.attempt(cost);
        self.queues.wait(call, attempt(), attempt).await
    }

    /// A call that waits in a task of its own, once it has been polled.
    async fn arrive(
        self: &Arc<Self>,
        number: usize,
        cost: u32,
        timeout: Option<Duration>,
    ) -> JoinHandle<Outcome> {
        let scene = self.clone();
        let call = call(cost, timeout);
        let task = tokio::spawn(async move {
            let outcome = scene.wait(call, cost).await;
            if outcome.is_ok() {
                lock(&scene.admitted).push((Instant::now(), number));
            }
            outcome
        });
        yield_now().await;
        task
    }

    fn waiting(&self) -> usize {
        let queues = lock(&self.queues.queues);
        queues
            .by_key
            .values()
            .map(|queue| queue.waiters.len())
            .sum()
    }

    /// When the first waiting call attempts again.
    fn next_attempt_at(&self) -> Instant {
        lock(&self.queues.queues).by_key["queue"].last.retry_at
    }

    /// No more are invited than there are units.
    fn check_invitations(&self) {
        let free = self.model().free() as usize;
        for queue in lock(&self.queues.queues).by_key.values() {
            let invited = queue.waiters.values().filter(|waiter| waiter.is_invited);
            assert_eq!(queue.invited, invited.count());
            assert!(queue.invited <= free.max(1) || !self.latency.is_zero());
        }
    }

    /// No call was admitted before one that had arrived earlier. Those that are invited together attempt in any order.
    fn assert_in_order(&self) {
        let mut admitted = lock(&self.admitted);
        admitted.sort();
        assert!(admitted.is_sorted_by_key(|(_, number)| *number));
    }

    fn assert_unused(&self) {
        let queues = lock(&self.queues.queues);
        assert!(queues.by_key.is_empty() && queues.by_counter.is_empty());
        assert_eq!(self.queues.len.load(Ordering::SeqCst), 0);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

fn call(cost: u32, timeout: Option<Duration>) -> WaitCall<&'static str> {
    WaitCall {
        key: "queue",
        cost: smallvec::smallvec![(0, cost.into(), None)],
        deadline: timeout.map(|timeout| Instant::now() + timeout),
        max_waiting: usize::MAX,
    }
}

#[derive(Clone, Debug)]
enum Event {
    Arrive {
        cost: u32,
        timeout: Option<u64>,
    },
    /// One of the calls is dropped, wherever it is.
    Drop(prop::sample::Index),
    Release(u32),
    ReplacePolicies,
    Fail(bool),
    Pass(u64),
}

fn events(costs: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = Vec<Event>> {
    let timeout = prop::option::of(0..2_000_u64);
    let event = prop_oneof![
        8 => (costs, timeout).prop_map(|(cost, timeout)| Event::Arrive { cost, timeout }),
        3 => any::<prop::sample::Index>().prop_map(Event::Drop),
        2 => (1..4_u32).prop_map(Event::Release),
        1 => Just(Event::ReplacePolicies),
        1 => any::<bool>().prop_map(Event::Fail),
        8 => (0..60_u64).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..120)
}

/// Runs a history to its end, at which all calls that have no deadline are admitted in as much time as their units take.
async fn run(history: Vec<Event>, latency: Duration) -> Arc<Scene> {
    const INTERVAL: Duration = Duration::from_millis(10);
    let scene = Scene::new(5, INTERVAL, latency);
    let mut tasks = Vec::new();
    for (number, event) in history.into_iter().enumerate() {
        match event {
            Event::Arrive { cost, timeout } => {
                let deadline = timeout.map(|timeout| Instant::now() + millis(timeout));
                let task = scene.arrive(number, cost, timeout.map(millis)).await;
                tasks.push((cost, deadline, task));
            }
            Event::Drop(index) if !tasks.is_empty() => {
                let (_, _, task) = tasks.swap_remove(index.index(tasks.len()));
                task.abort();
                let _ = task.await;
            }
            Event::Drop(_) => {}
            Event::Release(units) => scene.release(units),
            Event::ReplacePolicies => scene.queues.wake_all(),
            Event::Fail(is_failing) => scene.model().is_failing = is_failing,
            Event::Pass(time) => sleep(millis(time)).await,
        }
        scene.check_invitations();
    }
    scene.model().is_failing = false;
    let began_at = Instant::now();
    let mut time = MAX_PAUSE + REFUND_TIMEOUT + INTERVAL * 5;
    for (cost, _, task) in &tasks {
        let is_waiting = u32::from(!task.is_finished());
        time += is_waiting * (INTERVAL * *cost + latency * 3);
    }
    for (_, deadline, task) in tasks {
        let outcome = match timeout(time, task).await {
            Ok(outcome) => outcome.unwrap(),
            Err(_) => panic!("a call is stranded, {} wait", scene.waiting()),
        };
        assert!(
            began_at.elapsed() <= time,
            "{:?} of {time:?}",
            began_at.elapsed()
        );
        match outcome {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind, WaitErrorKind::Late);
                assert!(deadline.is_some());
                assert!(error.rejected_at <= Instant::now());
            }
        }
    }
    scene.assert_unused();
    scene
}

fn simulate<T>(scene: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(scene)
}

proptest! {
    #[test]
    fn no_call_is_stranded_by_any_history(history in events(1..=3), latency in 0..15_u64) {
        simulate(run(history, millis(latency)));
    }

    #[test]
    fn calls_of_equal_cost_are_admitted_in_order_of_arrival(history in events(1..=1)) {
        simulate(async {
            let scene = run(history, Duration::ZERO).await;
            scene.assert_in_order();
        });
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_admitted_invites_as_many_calls_as_there_are_units() {
    let scene = Scene::exhausted(10_000, millis(1));
    let mut tasks = Vec::new();
    for number in 0..10_000 {
        tasks.push(scene.arrive(number, 1, None).await);
    }
    // The first call: when it arrives, and when it is in the queue.
    assert_eq!((scene.model().attempts, scene.waiting()), (2, 10_000));
    let began_at = Instant::now();
    scene.release(6_000);
    for _ in 0..10_000 {
        yield_now().await;
    }
    assert_eq!(
        (scene.waiting(), began_at.elapsed()),
        (4_000, Duration::ZERO)
    );
    assert!(scene.model().attempts < 6_010, "{}", scene.model().attempts);
    for task in tasks {
        assert_eq!(task.await.unwrap(), Ok(()));
    }
    assert!(began_at.elapsed() <= millis(4_010));
    // An admission that leaves no unit says when the next is free.
    let attempts = scene.model().attempts;
    assert!(attempts <= 10_010, "{attempts}");
    scene.assert_in_order();
}

#[tokio::test(start_paused = true)]
async fn a_refill_of_many_units_takes_two_round_trips() {
    let scene = Scene::new(100, millis(1_000), millis(10));
    assert!(matches!(scene.model().acquire(100), Attempt::Done(..)));
    let mut tasks = Vec::new();
    for number in 0..100 {
        tasks.push(scene.arrive(number, 1, None).await);
    }
    sleep(millis(100)).await;
    let began_at = Instant::now();
    scene.release(100);
    for task in tasks {
        assert_eq!(task.await.unwrap(), Ok(()));
    }
    assert!(began_at.elapsed() <= millis(22), "{:?}", began_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_starts_when_units_are_released() {
    let scene = Scene::exhausted(1_000, millis(10));
    let began_at = Instant::now();
    let task = scene.arrive(0, 500, None).await;
    sleep(millis(300)).await;
    assert_eq!(scene.waiting(), 1);
    scene.release(900);
    assert_eq!(task.await.unwrap(), Ok(()));
    assert_eq!(began_at.elapsed(), millis(300));
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_arrives_late_is_found_by_another_attempt() {
    let scene = Scene::exhausted(10, millis(10_000));
    let task = scene.arrive(0, 1, None).await;
    sleep(millis(300)).await;
    let (policy, key) = counter();
    scene.queues.released(&policy, &key);
    sleep(millis(20)).await;
    scene.model().full_at -= millis(10_000);
    sleep(millis(20)).await;
    assert!(task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn attempts_are_made_after_growing_pauses_if_no_rejection_says_when_one_can_succeed() {
    let scene = Scene::new(10, millis(10), Duration::ZERO);
    scene.model().is_failing = true;
    let task = scene.arrive(0, 1, Some(millis(10_000))).await;
    sleep(millis(1_255)).await;
    // At 0 twice, and at 5, 15, 35, 75, 155, 315, 565, 815 and 1,065 ms.
    assert_eq!(scene.model().attempts, 11);
    let late = scene.arrive(1, 1, Some(millis(40))).await;
    sleep(millis(41)).await;
    assert_eq!(late.await.unwrap().unwrap_err().kind, WaitErrorKind::Late);
    // Not late at once, since nothing says when it can succeed.
    let in_time = scene.arrive(2, 1, Some(millis(10))).await;
    scene.release(0);
    yield_now().await;
    assert_eq!(scene.model().attempts, 12);
    scene.model().is_failing = false;
    sleep(millis(6)).await;
    assert!(task.is_finished() && in_time.is_finished());
    assert_eq!(in_time.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn full_queues_and_calls_that_would_be_late_are_rejected_at_once() {
    let scene = Scene::exhausted(1, millis(100));
    let first = scene.arrive(0, 1, None).await;
    let attempts = scene.model().attempts;
    let late = scene.arrive(1, 1, Some(millis(99))).await;
    assert!(late.is_finished());
    assert_eq!(late.await.unwrap().unwrap_err().kind, WaitErrorKind::Late);
    let wait = |max_waiting| {
        let call = WaitCall {
            max_waiting,
            ..call(1, None)
        };
        scene.wait(call, 1)
    };
    for full in [0, 1] {
        assert_eq!(wait(full).await.unwrap_err().kind, WaitErrorKind::Full);
    }
    assert_eq!(scene.model().attempts, attempts);
    assert_eq!(first.await.unwrap(), Ok(()));
    // Without a queue it is known after an attempt.
    assert_eq!(wait(0).await.unwrap_err().kind, WaitErrorKind::Full);
    assert_eq!(scene.model().attempts, attempts + 2);
}

#[tokio::test(start_paused = true)]
async fn calls_behind_one_that_is_late_use_its_rejection() {
    let scene = Scene::exhausted(100, millis(100));
    let mut tasks = Vec::new();
    for number in 0..100 {
        tasks.push(scene.arrive(number, 1, Some(millis(100))).await);
    }
    let attempts = scene.model().attempts;
    scene.model().full_at += millis(10_000);
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap_err().kind, WaitErrorKind::Late);
    }
    assert_eq!(scene.model().attempts, attempts + 1);
    scene.assert_unused();
}

/// The timeouts of all calls end when their units are free, and the first one's attempt takes a while.
#[tokio::test(start_paused = true)]
async fn calls_whose_timeout_ends_during_the_attempt_of_the_first_one_have_its_result() {
    for is_admitted in [true, false] {
        let scene = Scene::new(10, millis(10), millis(20));
        assert!(matches!(scene.model().acquire(10), Attempt::Done(..)));
        let mut tasks = vec![scene.arrive(0, 1, Some(millis(2_000))).await];
        // Nothing says when the store is back.
        scene.model().is_failing = true;
        sleep(millis(500)).await;
        for number in 1..8 {
            let attempts_at = scene.next_attempt_at();
            let timeout = attempts_at.saturating_duration_since(Instant::now());
            tasks.push(scene.arrive(number, 1, Some(timeout)).await);
        }
        scene.model().is_failing = !is_admitted;
        let attempts = scene.model().attempts;
        let behind = tasks.split_off(1);
        for task in behind {
            let outcome = task.await.unwrap();
            assert_eq!(outcome.is_ok(), is_admitted, "{outcome:?}");
        }
        if !is_admitted {
            assert_eq!(scene.model().attempts, attempts + 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_behind_one_that_is_not_polled_attempts_at_its_deadline() {
    let scene = Scene::exhausted(2, millis(100));
    let mut idle = Box::pin(scene.wait(call(1, None), 1));
    tokio::select! {
        biased;
        _ = &mut idle => unreachable!(),
        () = async {} => {}
    }
    let early = scene.arrive(1, 1, Some(millis(1_000))).await;
    let late = scene.arrive(2, 1, Some(millis(2_000))).await;
    let began_at = Instant::now();
    assert_eq!(early.await.unwrap(), Ok(()));
    // A second after the first call's attempt was due.
    assert_eq!(began_at.elapsed(), millis(1_100));
    assert_eq!(late.await.unwrap(), Ok(()));
    assert_eq!(began_at.elapsed(), millis(2_000));
    let attempts = scene.model().attempts;
    let late = scene.arrive(3, 9, Some(millis(1))).await;
    let error = late.await.unwrap().unwrap_err();
    assert_eq!(error.rejected_at, Instant::now());
    assert_eq!(scene.model().attempts, attempts + 1);
    drop(idle);
    scene.assert_unused();
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_task_are_all_admitted() {
    let scene = Scene::exhausted(3, millis(10));
    let calls = (0..50).map(|_| scene.wait(call(1, None), 1));
    let outcomes = timeout(millis(520), futures_util::future::join_all(calls)).await;
    assert!(outcomes.unwrap().iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_are_counted_by_the_policies_that_reject_them() {
    let scene = Scene::exhausted(3, millis(10));
    let first = scene.arrive(0, 1, None).await;
    let second = scene.arrive(1, 1, None).await;
    assert_eq!(
        scene.queues.waiting(),
        HashMap::from_iter([("policy".into(), 2)])
    );
    scene.queues.wake_all();
    sleep(millis(1)).await;
    assert_eq!(
        scene.queues.waiting(),
        HashMap::from_iter([("policy".into(), 2)])
    );
    assert_eq!(first.await.unwrap(), Ok(()));
    assert_eq!(second.await.unwrap(), Ok(()));
    assert!(scene.queues.waiting().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_release_without_effect_delays_no_attempt() {
    let scene = Scene::exhausted(1, millis(100));
    let began_at = Instant::now();
    let task = scene.arrive(0, 1, None).await;
    sleep(millis(1)).await;
    scene.release(0);
    assert_eq!(task.await.unwrap(), Ok(()));
    assert_eq!(began_at.elapsed(), millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_call_of_another_cost_is_not_rejected_by_the_first_one() {
    let scene = Scene::exhausted(10, millis(100));
    let began_at = Instant::now();
    let large = scene.arrive(0, 5, None).await;
    let small = scene.arrive(1, 1, Some(millis(200))).await;
    large.abort();
    assert_eq!(small.await.unwrap(), Ok(()));
    assert_eq!(began_at.elapsed(), millis(100));
}

/// Calls under one key whose attempts take 300 ms each, and have these results in turn.
struct Script {
    queues: WaitQueues<&'static str, ()>,
    attempts: Mutex<std::vec::IntoIter<Attempt<(), ()>>>,
}

impl Script {
    fn new<const N: usize>(attempts: [Attempt<(), ()>; N]) -> Arc<Self> {
        Arc::new(Self {
            queues: WaitQueues::default(),
            attempts: Mutex::new(Vec::from(attempts).into_iter()),
        })
    }

    async fn arrive(self: &Arc<Self>) -> JoinHandle<()> {
        let script = self.clone();
        let attempt = move || {
            let script = script.clone();
            async move {
                let result = lock(&script.attempts).next().expect("an attempt");
                sleep(millis(300)).await;
                result
            }
        };
        let script = self.clone();
        let wait = async move {
            let waited = script.queues.wait(call(1, None), attempt(), attempt);
            waited.await.unwrap();
        };
        let task = tokio::spawn(wait);
        yield_now().await;
        task
    }

    fn assert_done(&self) {
        assert_eq!(lock(&self.attempts).len(), 0);
    }
}

fn done(more: usize) -> Attempt<(), ()> {
    Attempt::Done((), Next::Admits(more))
}

fn rejected_by(policy: &str, seconds: u64) -> Attempt<(), ()> {
    Attempt::Rejected(Rejection {
        reason: (),
        retry_at: Some(Instant::now() + Duration::from_secs(seconds)),
        counters: [(policy.into(), Key::new("alice"))].into_iter().collect(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_repeated_if_units_were_released_during_the_attempt() {
    let script = Script::new([rejected_by("a", 9), rejected_by("a", 9), done(0)]);
    let began_at = Instant::now();
    let task = script.arrive().await;
    sleep(millis(310)).await;
    script.queues.released("a", &Key::new("alice"));
    task.await.unwrap();
    assert_eq!(began_at.elapsed(), millis(900));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_by_another_policy_is_repeated() {
    let script = Script::new([
        rejected_by("a", 9),
        rejected_by("b", 9),
        rejected_by("b", 9),
        rejected_by("c", 9),
        rejected_by("c", 9),
        done(0),
    ]);
    let task = script.arrive().await;
    sleep(millis(1_000)).await;
    let waiting = |policies: &[&str]| policies.iter().map(|name| ((*name).into(), 1)).collect();
    assert_eq!(script.queues.waiting(), waiting(&["a", "b"]));
    // After 250 ms a release has arrived.
    script.queues.wake_all();
    sleep(millis(1_000)).await;
    assert_eq!(script.queues.waiting(), waiting(&["c"]));
    script.queues.released("a", &Key::new("alice"));
    sleep(millis(1_000)).await;
    assert!(!task.is_finished());
    script.queues.released("c", &Key::new("alice"));
    task.await.unwrap();
    script.assert_done();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_rejected_is_invited_again() {
    let script = Script::new([
        rejected_by("a", 9),
        rejected_by("a", 9),
        // The first call, which invites the second and the third.
        done(2),
        rejected_by("a", 9),
        done(1),
        // The second, which leaves none.
        done(0),
        // The fourth, which did not wait for the time of the second.
        done(0),
    ]);
    let mut tasks = vec![script.arrive().await];
    sleep(millis(350)).await;
    for _ in 0..3 {
        tasks.push(script.arrive().await);
    }
    sleep(millis(450)).await;
    let began_at = Instant::now();
    script.queues.released("a", &Key::new("alice"));
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(began_at.elapsed(), millis(1_200));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_until_now_is_followed_by_a_pause() {
    let script = Script::new([rejected_by("a", 0), rejected_by("a", 0), done(0)]);
    let began_at = Instant::now();
    script.arrive().await.await.unwrap();
    assert_eq!(began_at.elapsed(), millis(905));
}

/// Timers fire at whole milliseconds, and units are free in between. With a burst of one unit, those of a late attempt would be lost:
/// attempts charge units ahead that are free within 3 ms, and the calls start when they are.
#[tokio::test(start_paused = true)]
async fn a_burst_of_one_unit_reaches_its_rate_if_attempts_charge_ahead() {
    const AHEAD: Duration = Duration::from_millis(3);
    for per_second in [3_000, 1_000, 700, 300] {
        let scene = Scene::new(1, Duration::from_secs(1) / per_second, Duration::ZERO);
        let attempt = async || {
            let mut model = scene.model();
            match model.acquire(1) {
                Attempt::Done(_, next) => Attempt::Done(Instant::now(), next),
                Attempt::Rejected(mut rejection) => match rejection.retry_at {
                    Some(free_at) if free_at <= Instant::now() + AHEAD => {
                        let interval = model.interval;
                        model.full_at += interval;
                        Attempt::Done(free_at, Next::Admits(0))
                    }
                    free_at => {
                        rejection.retry_at = free_at.map(|free_at| free_at - AHEAD);
                        Attempt::Rejected(rejection)
                    }
                },
            }
        };
        let calls = (0..per_second).map(async |_| {
            let waited = scene.queues.wait(call(1, None), attempt(), &attempt);
            let start_at = waited.await.unwrap();
            sleep_until(start_at).await;
        });
        let began_at = Instant::now();
        futures_util::future::join_all(calls).await;
        let rate = f64::from(per_second) / began_at.elapsed().as_secs_f64();
        assert!(
            rate >= 0.95 * f64::from(per_second),
            "{rate} of {per_second}/s"
        );
    }
}

/// Timers fire at whole milliseconds, while units are free in between.
#[tokio::test(start_paused = true)]
async fn waiting_calls_use_all_units_although_timers_are_late() {
    for (capacity, per_second, least) in [(1, 1_000, 950), (4, 1_900, 1_805), (3, 7_000, 2_900)] {
        let scene = Scene::new(
            capacity,
            Duration::from_secs(1) / per_second,
            Duration::ZERO,
        );
        let mut tasks = Vec::new();
        for number in 0..10_000 {
            tasks.push(scene.arrive(number, 1, None).await);
        }
        sleep(Duration::from_secs(1)).await;
        let admitted = lock(&scene.admitted).len();
        assert!(admitted >= least, "{admitted} of {per_second}/s");
        tasks.iter().for_each(JoinHandle::abort);
    }
}

#[test]
fn a_release_during_an_attempt_is_not_missed() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let hour = Duration::from_secs(3_600);
    runtime.block_on(async {
        for _ in 0..20_000 {
            let scene = Scene::exhausted(1, hour);
            let waiting = scene.clone();
            let task = tokio::spawn(async move { waiting.wait(call(1, None), 1).await });
            let releasing = scene.clone();
            tokio::spawn(async move { releasing.release(1) });
            let outcome = timeout(Duration::from_secs(20), task).await;
            assert_eq!(outcome.expect("woken").unwrap(), Ok(()));
        }
    });
}

#[test]
fn a_call_that_would_wait_is_rejected_without_timers() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let scene = Scene::exhausted(1, millis(1_000));
    let wait = scene.wait(call(1, None), 1);
    let error = runtime.block_on(wait).unwrap_err();
    assert_eq!(
        (error.kind, error.reason),
        (WaitErrorKind::NoTimers, "exhausted")
    );
}

//! Random histories: replies, delays and failures in any order.

use std::sync::atomic::AtomicU64;

use proptest::{
    prelude::{Just, ProptestConfig, prop_oneof, proptest},
    strategy::Strategy,
};
use tokio::{
    runtime::Builder,
    time::{advance, timeout},
};

use super::*;

/// What happens to one call or request.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request after a pause, whose caller leaves after a time.
    Request {
        pause: u64,
        leaves: Option<u64>,
    },
    /// The next calls are answered so.
    Answer(Answer),
    Connect(Connect),
    /// The clock jumps, as after a suspension of the process.
    Jump(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request = (0..12_u64, proptest::option::weighted(0.15, 0..120_u64));
    let request = request.prop_map(|(pause, leaves)| Step::Request { pause, leaves });
    let answer = prop_oneof![
        6 => (0..40_u64).prop_map(|after| Answer::Reply(ms(after))),
        2 => (90..400_u64).prop_map(|after| Answer::Reply(ms(after))),
        1 => Just(Answer::Hold),
        1 => Just(Answer::NotTaken),
        1 => (0..150_u64).prop_map(|after| Answer::Break(ms(after))),
        1 => (0..150_u64).prop_map(|after| Answer::Error("BUSY a script runs", ms(after))),
        1 => (0..150_u64).prop_map(|after| Answer::Error("READONLY a replica", ms(after))),
        1 => (0..150_u64).prop_map(|after| Answer::Error("NOSCRIPT none", ms(after))),
        1 => Just(Answer::EntryErrors("OOM used memory")),
        1 => Just(Answer::EntryErrors("READONLY a replica")),
        1 => (0..150_u64).prop_map(|after| Answer::Error("CLUSTERDOWN no slot", ms(after))),
    ];
    let connect = prop_oneof![
        3 => (1..150_u64).prop_map(|after| Connect::OpensAfter(ms(after))),
        1 => Just(Connect::Refused),
        1 => Just(Connect::Hangs),
    ];
    let step = prop_oneof![
        12 => request,
        4 => answer.prop_map(Step::Answer),
        1 => connect.prop_map(Step::Connect),
        1 => (1..300_u64).prop_map(Step::Jump),
    ];
    proptest::collection::vec(step, 1..120)
}

/// What has become of a request.
#[derive(Debug)]
enum Outcome {
    Admitted,
    Failed { may_have_run: bool },
    Left,
}

impl Outcome {
    /// Checks a request against the calls that had its key, which no other request has.
    fn check(&self, key: u32, calls: &[SentCall]) {
        let name = format!("tg:g3:requests:k{key}");
        let fates = |op: i64| {
            let sent = calls.iter().filter(move |call| {
                let mut entries = call.entries.iter();
                entries.any(|entry| entry.op == op && entry.keys[0] == name)
            });
            sent.map(|call| call.fate)
        };
        let may_run = |fate: &Fate| *fate != Fate::Refused;
        let is_sent = fates.clone()(ACQUIRE).next().is_some();
        let charges: Vec<_> = fates.clone()(ACQUIRE).filter(may_run).collect();
        let refunds: Vec<_> = fates(ADJUST).filter(may_run).collect();
        let is_refunded = match (self, &charges[..]) {
            (Self::Admitted, [Fate::Executed]) => false,
            (Self::Failed { may_have_run }, []) => {
                assert!(is_sent || !may_have_run, "request {key} was not sent");
                false
            }
            (Self::Failed { may_have_run: true } | Self::Left, [charged]) => {
                *charged == Fate::Executed
            }
            (Self::Left, []) => false,
            _ => panic!("request {key}: {self:?}, but {charges:?}"),
        };
        assert_eq!(
            refunds.len(),
            usize::from(is_refunded),
            "request {key}: {self:?}, {charges:?}, {refunds:?}"
        );
    }
}

async fn run(steps: Vec<Step>, has_breaker: bool) {
    let scene = Scene::with(|builder| {
        if has_breaker {
            builder
        } else {
            builder.no_circuit_breaker()
        }
    });
    scene.connect(Connect::OpensAfter(ms(1)));
    let jumped = Arc::new(AtomicU64::new(0));
    let mut requests = Vec::new();
    for (key, step) in (0..).zip(steps) {
        match step {
            Step::Answer(answer) => scene.answer_all(answer),
            Step::Connect(connect) => scene.connect(connect),
            Step::Jump(time) => {
                jumped.fetch_add(time, Ordering::Relaxed);
                advance(ms(time)).await;
            }
            Step::Request { pause, leaves } => {
                pass(ms(pause)).await;
                let (response, begun) = (scene.push(key), Instant::now());
                let (jumped, before) = (jumped.clone(), jumped.load(Ordering::Relaxed));
                let request = async move {
                    let patience = leaves.map_or(Duration::MAX, ms);
                    let outcome = match timeout(patience, response.result()).await {
                        Err(_) => Outcome::Left,
                        Ok(Ok(result)) => {
                            assert_eq!(result.admitted, 1);
                            Outcome::Admitted
                        }
                        Ok(Err(error)) => Outcome::Failed {
                            may_have_run: error.may_have_run(),
                        },
                    };
                    let jumped = jumped.load(Ordering::Relaxed) - before;
                    let elapsed = begun.elapsed();
                    assert!(elapsed <= TIMEOUT + ms(jumped + 1), "{elapsed:?}");
                    (key, outcome)
                };
                requests.push(tokio::spawn(request));
            }
        }
    }
    scene.connect(Connect::OpensAfter(ms(1)));
    scene.answer_all(Answer::Reply(ms(1)));
    // Calls without a reply end after a minute.
    sleep(Duration::from_secs(70)).await;
    let calls = scene.calls();
    for request in requests {
        let (key, outcome) = request.await.expect("no panic");
        outcome.check(key, &calls);
    }
    let stats = scene.store.stats();
    assert_eq!((stats.queued_refunds, stats.dropped_refunds), (0, 0));
    assert!(scene.waiting_calls().is_empty());
    scene.request(u32::MAX).await.expect("a reply");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each request ends once and in time; what a request charges that does not end with an admission is refunded once, if that is
    /// known; nothing that may have run is sent again; the actor waits between events.
    #[test]
    fn no_charge_is_lost_or_made_twice(steps in steps(), has_breaker: bool) {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(run(steps, has_breaker));
    }
}

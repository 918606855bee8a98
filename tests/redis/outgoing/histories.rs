//! Random histories of calls that wait, against a model of a queue: first come, first served, and each as soon as it fits.

use std::{collections::VecDeque, mem};

use proptest::{prelude::*, sample::Index};
use tokio::{task::JoinHandle, time::sleep};
use tollgate::limiter::Override;
use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

/// Longer than a window.
const LONG: Duration = secs(10 * 86_400);

#[derive(Clone, Debug)]
enum Event {
    Arrive {
        cost: u64,
        timeout: Option<u64>,
    },
    /// A call that waits is dropped.
    Drop(Index),
    /// An admitted call costs less than it was charged.
    Settle(Index, u64),
    Refund(Index, u64),
    Credit(u64),
    Reset,
    Block,
    Unblock,
    Reload(u64),
    SetOverride(u64),
    RemoveOverride,
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let timeout = prop::option::weighted(0.2, 0..40_u64);
    let event = prop_oneof![
        12 => (1..=3_u64, timeout).prop_map(|(cost, timeout)| Event::Arrive { cost, timeout }),
        3 => any::<Index>().prop_map(Event::Drop),
        3 => (any::<Index>(), 0..3_u64).prop_map(|(call, cost)| Event::Settle(call, cost)),
        3 => (any::<Index>(), 1..3_u64).prop_map(|(call, units)| Event::Refund(call, units)),
        1 => (1..4_u64).prop_map(Event::Credit),
        1 => Just(Event::Reset),
        1 => Just(Event::Block),
        2 => Just(Event::Unblock),
        1 => (3..9_u64).prop_map(Event::Reload),
        1 => (3..9_u64).prop_map(Event::SetOverride),
        1 => Just(Event::RemoveOverride),
        3 => (0..400_u64).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..80)
}

fn policies(quota: u64) -> [Policy; 2] {
    let window = window("p", &format!("{quota}/day"));
    [window, Policy::block_list("blocked").key(extract::global())]
}

struct Waiting {
    cost: u64,
    has_timeout: bool,
    task: JoinHandle<Result<Admission, Rejected>>,
}

struct Admitted {
    admission: Admission,
    /// What may still be refunded, of what was not credited.
    units: u64,
}

struct History {
    limiter: Limiter,
    /// In the order of their arrival.
    waiting: VecDeque<Waiting>,
    /// Since the last reset.
    admitted: Vec<Admitted>,
    used: u64,
    quota: u64,
    override_quota: Option<u64>,
    is_blocked: bool,
}

impl History {
    fn new() -> Self {
        Self {
            limiter: limiter(policies(5)).0,
            waiting: VecDeque::new(),
            admitted: Vec::new(),
            used: 0,
            quota: 5,
            override_quota: None,
            is_blocked: false,
        }
    }

    async fn apply(&mut self, event: Event) {
        let p = self.limiter.policy("p").expect("its policy");
        let blocked = self.limiter.policy("blocked").expect("its policy");
        match event {
            Event::Arrive { cost, timeout } => {
                let wait = self.limiter.wait(KEY, timeout.map_or(LONG, ms)).cost(cost);
                self.waiting.push_back(Waiting {
                    cost,
                    has_timeout: timeout.is_some(),
                    task: tokio::spawn(wait.into_future()),
                });
            }
            Event::Drop(index) if !self.waiting.is_empty() => {
                let index = index.index(self.waiting.len());
                let dropped = self.waiting.remove(index).expect("it waits");
                dropped.task.abort();
                dropped.task.await.expect_err("it is dropped");
            }
            Event::Settle(index, cost) if !self.admitted.is_empty() => {
                let index = index.index(self.admitted.len());
                let call = &mut self.admitted[index];
                let cost = cost.min(call.units);
                let policy = call.admission.policy("p").expect("its policy");
                policy.settle(cost).await.expect("a response");
                let refunded = (call.units - cost).min(self.used);
                self.used -= refunded;
                call.units -= refunded;
            }
            Event::Refund(index, units) if !self.admitted.is_empty() => {
                let index = index.index(self.admitted.len());
                let call = &mut self.admitted[index];
                let units = units.min(call.units).min(self.used);
                let policy = call.admission.policy("p").expect("its policy");
                policy.refund(units).await.expect("a response");
                self.used -= units;
                call.units -= units;
            }
            Event::Drop(_) | Event::Settle(..) | Event::Refund(..) => {}
            Event::Credit(units) => {
                p.credit(KEY, units).await.expect("a response");
                self.used = self.used.saturating_sub(units);
            }
            Event::Reset => {
                let _ = p.reset(KEY).await.expect("a response");
                self.used = 0;
                self.admitted.clear();
            }
            Event::Block => {
                let day = secs(86_400);
                blocked.block(KEY, day).await.expect("a response");
                self.is_blocked = true;
            }
            Event::Unblock => {
                let _ = blocked.unblock(KEY).await.expect("a response");
                self.is_blocked = false;
            }
            Event::Reload(quota) => {
                let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
                let builder = policies(quota)
                    .into_iter()
                    .fold(builder, LimiterBuilder::policy);
                self.limiter.reconfigure(builder).expect("valid settings");
                self.quota = quota;
            }
            Event::SetOverride(quota) => {
                let quota_text = stores::quota(&format!("{quota}/day"));
                let set = p.set_override(KEY, Override::quota(quota_text)).await;
                set.expect("a response");
                self.override_quota = Some(quota);
            }
            Event::RemoveOverride => {
                p.remove_override(KEY).await.expect("a response");
                self.override_quota = None;
            }
            Event::Pass(time) => sleep(ms(time)).await,
        }
        // Until all tasks wait for a timer.
        sleep(ms(1)).await;
    }

    /// Removes the calls that are decided, and compares them with the first ones that fit.
    async fn compare(&mut self) {
        let mut is_first_waiting = false;
        for mut call in mem::take(&mut self.waiting) {
            if !call.task.is_finished() {
                let quota = self.override_quota.unwrap_or(self.quota);
                let fits = !self.is_blocked && self.used + call.cost <= quota;
                assert!(is_first_waiting || !fits, "a call that fits waits");
                is_first_waiting = true;
                self.waiting.push_back(call);
                continue;
            }
            match (&mut call.task).await.expect("no panic") {
                Ok(admission) => {
                    assert!(!is_first_waiting, "a call that waits was overtaken");
                    let units = call.cost;
                    self.used += units;
                    self.admitted.push(Admitted { admission, units });
                }
                Err(rejected) => assert!(call.has_timeout, "{rejected:?}"),
            }
        }
        let status = self.limiter.peek([("p", KEY)]).await.expect("a response");
        let quota = self.override_quota.unwrap_or(self.quota);
        assert_eq!(status.left("p"), quota.saturating_sub(self.used));
    }
}

proptest! {
    #[test]
    fn calls_are_served_in_their_order_and_as_soon_as_they_fit(events in events()) {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let mut history = History::new();
            for event in events {
                history.apply(event).await;
                history.compare().await;
            }
        });
    }
}

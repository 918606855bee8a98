//! What happens to a process whose ledger is replayed.

use proptest::prelude::*;

use super::{fleet::MS, settings::Setting};

/// What happens to a process. Times are in microseconds.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Advance(i64),
    /// The machine sleeps: the monotonic clock stands still.
    Sleep(i64),
    /// The wall clock is set forward, or back.
    SetWall(i64),
    /// So many requests, of these costs under the policies.
    Decide(u32, [u64; 2]),
    /// A request of these costs that the store decides, and responds to at once.
    Ask([u64; 2]),
    /// The store charges a lease that was requested, of so many times as many requests.
    Charge(u32),
    /// The response to the oldest request of a lease that was charged comes, or to the newest one.
    Respond {
        newest: bool,
    },
    Fail,
    Reclaim(usize),
    TakeBackAll,
    Refund,
    /// Requests of other processes.
    Others(u32),
}

/// The costs of a request, one of which is not zero.
fn costs() -> impl Strategy<Value = [u64; 2]> {
    let cost = || prop_oneof![6 => 1_u64..4, 1 => Just(30)];
    let other = prop_oneof![6 => cost(), 1 => Just(0)];
    (cost(), other).prop_map(|(first, second)| [first, second])
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3 * MS).prop_map(Step::Advance),
        2 => (0..60 * MS).prop_map(Step::Advance),
        1 => prop_oneof![0..2 * MS, 0..200 * MS].prop_map(Step::Sleep),
        1 => prop_oneof![-2 * MS..2 * MS, -200 * MS..200 * MS].prop_map(Step::SetWall),
        16 => (1_u32..8, costs()).prop_map(|(requests, costs)| Step::Decide(requests, costs)),
        4 => costs().prop_map(Step::Ask),
        6 => (1_u32..12).prop_map(Step::Charge),
        6 => prop::bool::weighted(0.2).prop_map(|newest| Step::Respond { newest }),
        1 => Just(Step::Fail),
        3 => (0_usize..4).prop_map(Step::Reclaim),
        1 => Just(Step::TakeBackAll),
        2 => Just(Step::Refund),
        2 => (1_u32..20).prop_map(Step::Others),
    ]
}

pub(super) fn settings() -> impl Strategy<Value = Vec<Setting>> {
    prop::sample::select(vec![
        vec![Setting::gcra(1_000, 1_000 * MS, 300, 50 * MS)],
        vec![Setting::fixed_window(200, 130 * MS, 50 * MS)],
        vec![
            Setting::token_bucket(1_000, 1_000 * MS, 400, 60 * MS),
            Setting::fixed_window(150, 90 * MS, 50 * MS),
        ],
        vec![
            Setting::calendar_window(300, 200 * MS, 50 * MS),
            Setting::gcra(500, 1_000 * MS, 200, 80 * MS),
        ],
    ])
}

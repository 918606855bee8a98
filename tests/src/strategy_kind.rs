//! Every strategy to count by.

use tollgate::{
    CalendarWindow, FixedWindow, Gcra, ListWindow, Policy, Quota, SlidingLog, SlidingWindow,
    TokenBucket,
};

/// How a policy is counted: whatever is promised holds for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyKind {
    Gcra,
    Bucket,
    Fixed,
    Calendar,
    List,
    Log,
    Sliding(u32),
}

impl StrategyKind {
    pub const ALL: [Self; 8] = [
        Self::Gcra,
        Self::Bucket,
        Self::Fixed,
        Self::Calendar,
        Self::List,
        Self::Log,
        Self::Sliding(1),
        Self::Sliding(10),
    ];

    /// Its name in configuration documents, and in traces of the model.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::Bucket => "token_bucket",
            Self::Fixed => "fixed_window",
            Self::Calendar => "calendar_window",
            Self::List => "list_window",
            Self::Log => "sliding_log",
            Self::Sliding(_) => "sliding_window",
        }
    }

    /// What it counts, from which follows what the tests expect of it.
    pub fn counting(self) -> Counting {
        match self {
            Self::Gcra | Self::Bucket => Counting::EvenRate,
            Self::Fixed | Self::List => Counting::OpenedWindows,
            Self::Calendar => Counting::CalendarWindows,
            Self::Log => Counting::Log,
            Self::Sliding(buckets) => Counting::Buckets(buckets),
        }
    }

    #[track_caller]
    pub fn policy(self, name: &str, quota: &str) -> Policy {
        self.count(name, quota.parse().expect(quota))
    }

    pub fn count(self, name: &str, quota: Quota) -> Policy {
        self.of(Policy::new(name, quota))
    }

    /// The policy with this strategy.
    pub fn of(self, policy: Policy) -> Policy {
        match self {
            Self::Gcra => policy.strategy(Gcra),
            Self::Bucket => policy.strategy(TokenBucket),
            Self::Fixed => policy.strategy(FixedWindow),
            Self::Calendar => policy.strategy(CalendarWindow::utc()),
            Self::List => policy.strategy(ListWindow),
            Self::Log => policy.strategy(SlidingLog),
            Self::Sliding(buckets) => policy.strategy(SlidingWindow::buckets(buckets)),
        }
    }

    /// Whether units come back one by one, at an even rate, so that a burst of its own has a meaning.
    pub fn is_even(self) -> bool {
        self.counting() == Counting::EvenRate
    }
}

/// What a strategy counts: what holds for one that counts so holds for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// The time until all units are back.
    EvenRate,
    /// The units of a window that begins with its first charge.
    OpenedWindows,
    CalendarWindows,
    /// The units of each instant.
    Log,
    /// The units of so many buckets.
    Buckets(u32),
}

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

    #[track_caller]
    pub fn policy(self, name: &str, quota: &str) -> Policy {
        self.count(name, quota.parse().expect(quota))
    }

    pub fn count(self, name: &str, quota: Quota) -> Policy {
        let policy = Policy::new(name, quota);
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

    /// Whether a burst of its own has a meaning.
    pub fn has_burst(self) -> bool {
        matches!(self, Self::Gcra | Self::Bucket)
    }
}

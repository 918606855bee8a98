//! The rules of a service: for each domain a tree. Documents are read into it, requests are matched against it.

use std::{collections::BTreeMap, time::Duration};

/// All domains, by name.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The tree of each domain.
    pub domains: BTreeMap<String, Vec<Rule>>,
}

/// A node of a domain's tree: what it matches, and what it limits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The key of the descriptor's entry at this depth.
    pub key: String,
    /// The value of that entry; `None` matches every value.
    pub value: Option<String>,
    /// What counts requests that match this node and whose descriptor ends here. Requests pass if there is none. In the reference format
    /// there is at most one.
    pub limits: Vec<Limit>,
    /// Whether its rejections are only reported.
    pub shadow_mode: bool,
    /// Whether it rejects only if all descriptors of the request in this mode would.
    pub quota_mode: bool,
    /// Whether the metrics name the whole descriptor.
    pub detailed_metric: bool,
    /// Whether the metrics name the value.
    pub value_to_metric: bool,
    /// Whether all values that a wildcard matches share one counter.
    pub share_threshold: bool,
    /// Fields that are returned as dynamic metadata of requests that it admits; never empty.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The nodes of the next depth, in the order of the document.
    pub descriptors: Vec<Rule>,
}

/// What a node limits.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The limit's name.
    pub name: Option<String>,
    /// The names of the limits that it replaces in the request.
    pub replaces: Vec<String>,
    /// The quota and how it is counted; `None` if requests pass, and are not counted.
    pub counted: Option<CountedBy>,
}

/// A quota and how it is counted.
#[derive(Clone, Debug)]
pub struct CountedBy {
    /// What the protocol reports: requests per unit. Of 0, every request that costs anything is over the limit.
    pub requests_per_unit: u64,
    /// What the protocol reports; `None` for another period, for which it has no unit.
    pub unit: Option<Unit>,
    /// The policy, which applies to calls by hand, and charges rejected requests too if the rule says so. It enforces its quota also if the
    /// rule is in shadow or quota mode. Its name is unique among all domains, and the same whenever the same rule is read, whatever its
    /// quota: it names the rule's counters. No limiter can be built with it if `requests_per_unit` is 0.
    pub policy: tollgate::Policy,
    /// Whether it is decided beside the request's other descriptors. If not, they are charged together or not at all.
    pub independent: bool,
}

/// A unit of the protocol, with its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Unit {
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// A week.
    Week = 7,
    /// 30 days, or a month of the calendar.
    Month = 5,
    /// 365 days, or a year of the calendar.
    Year = 6,
}

impl Unit {
    /// All units, the shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// The unit of a number of the protocol; `None` if there is none.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as i32 == number)
    }

    /// The unit of a period; `None` if there is none.
    pub fn of_period(period: Duration) -> Option<Self> {
        let mut units = Self::ALL.into_iter();
        units.find(|unit| unit.quota(1).period() == period)
    }

    /// The name in the protocol, such as `MINUTE`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The name of a number of the protocol; `UNKNOWN` if there is none.
    pub(crate) fn name_of(number: i32) -> &'static str {
        Self::from_number(number).map_or("UNKNOWN", Self::name)
    }

    /// A quota of `n` units in this time.
    pub fn quota(self, n: u64) -> tollgate::Quota {
        let quota = tollgate::Quota::units(n);
        match self {
            Self::Second => quota.per_second(),
            Self::Minute => quota.per_minute(),
            Self::Hour => quota.per_hour(),
            Self::Day => quota.per_day(),
            Self::Week => quota.per_week(),
            Self::Month => quota.per_month(),
            Self::Year => quota.per_year(),
        }
    }
}

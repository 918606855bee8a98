//! What a reader of the report has to know about the log and the run.

use super::{
    policy::{Policy, Role},
    tally::Tally,
    unreadable::Unreadable,
};

/// What is known about a run besides its counts.
#[derive(Debug, Default)]
pub(in crate::replay) struct Circumstances {
    pub(in crate::replay) unreadable: Unreadable,
    /// Requests that came too late to be sorted.
    pub(in crate::replay) late: u64,
    /// The log and the line of the first of them.
    pub(in crate::replay) first_late: Option<(String, u64)>,
    /// Keys that the store has evicted.
    pub(in crate::replay) evicted: u64,
    /// Whether requests are spread over their second.
    pub(in crate::replay) spreads: bool,
}

impl Circumstances {
    pub(super) fn notes(&self, tally: &Tally, policies: &[Policy]) -> Vec<String> {
        let mut notes = Vec::new();
        let all = tally.requests;
        if all == 0 {
            return notes;
        }
        if let Some((log, line)) = &self.first_late {
            notes.push(format!(
                "lines too far out of order, counted later than they arrived: {}, the first at {log}:{line}; use --sort",
                self.late
            ));
        }
        let in_flight = policies.iter().filter(|policy| policy.is_in_flight);
        for policy in in_flight.filter(|_| tally.without_duration > 0) {
            notes.push(format!(
                "{:?} limits requests in flight and is not replayed for lines without a duration, whose requests end at once: {}",
                policy.name, tally.without_duration
            ));
        }
        if tally.whole_seconds > 0 && !self.spreads {
            notes.push(
                "times are whole seconds: requests of the same second arrive together, and small bursts are rejected more \
                 often than they would be; --spread spreads them over the second"
                    .to_owned(),
            );
        }
        if tally.rejected_before > 0 {
            notes.push(format!(
                "lines with status 429, which may be why their clients came back later: {}",
                tally.rejected_before
            ));
        }
        for (policy, counts) in policies.iter().zip(&tally.policies) {
            if policy.is_by_hand {
                continue;
            }
            let name = &policy.name;
            let without_key = match policy.is_for_all {
                true => tally.requests - counts.applied,
                false => counts.without_key,
            };
            if without_key > 0 {
                notes.push(format!(
                    "requests whose key for {name:?} is not in the log: {without_key}"
                ));
            } else if counts.applied == 0 && policy.role != Role::Ban {
                notes.push(format!("{name:?} applied to no request"));
            }
        }
        if !tally.clients.is_exact() || tally.policies.iter().any(|policy| !policy.keys.is_exact())
        {
            notes.push(
                "numbers of clients and keys with ~ are estimated by a sample, to within 1 %"
                    .to_owned(),
            );
        }
        if tally
            .policies
            .iter()
            .any(|policy| !policy.rejected_keys.is_exact())
        {
            notes.push(
                "more keys were rejected than are counted one by one: counts of most rejected keys may be too high by as much \
                 as the report says (Space-Saving)"
                    .to_owned(),
            );
        }
        if self.evicted > 0 {
            notes.push(format!(
                "keys evicted, whose next requests found a full quota: {}; allow more by --max-keys",
                self.evicted
            ));
        }
        if tally.failed > 0 {
            notes.push(format!("requests that were not decided: {}", tally.failed));
        }
        notes
    }
}

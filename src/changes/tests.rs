use std::time::Duration;

use super::*;
use crate::{
    Ban, CalendarWindow, Concurrency, FixedWindow, Gcra, Lease, ListWindow, OnStoreError, Policy,
    Quota, SlidingLog, SlidingWindow, TokenBucket,
    error::InvalidValue,
    extract,
    strategy::{Rule, Strategy, Terms},
};

fn policy(quota: &str) -> Policy {
    Policy::new("api", quota.parse::<Quota>().expect(quota))
}

/// The only policy's line after its name.
fn line(before: &Policy, after: &Policy) -> String {
    let changes = Changes::between([before], [after]);
    let line = changes.to_string();
    line.strip_prefix("api: ").expect("the name").to_owned()
}

fn under(strategy: impl Strategy + Clone, from: &str, to: &str) -> String {
    let [before, after] = [from, to].map(|quota| policy(quota).strategy(strategy.clone()));
    let line = line(&before, &after);
    let change = format!("altered: quota {from} -> {to} (");
    let counts = line.strip_prefix(&change).expect(&line);
    counts.strip_suffix(')').expect(&line).to_owned()
}

#[test]
fn a_policy_is_kept_altered_added_or_removed() {
    let named =
        |name: &'static str, quota: &str| Policy::new(name, quota.parse::<Quota>().expect(quota));
    let before = [
        named("api", "10/min"),
        named("login", "5/h"),
        named("uploads", "1/s"),
    ];
    let after = [
        named("new", "7/day").strategy(FixedWindow),
        named("login", "5/h"),
        named("api", "20/min").cost(2),
    ];
    let changes = Changes::between(&before, &after);
    assert_eq!(
        changes.to_string(),
        "new: added: quota 7/day, strategy fixed_window\n\
         login: kept\n\
         api: altered: quota 10/min -> 20/min, cost 1 -> 2 (the used share stays: 6 of 10 are 12 of 20)\n\
         uploads: removed (its counts expire by themselves)"
    );
    let kinds: Vec<_> = changes.policies().map(PolicyChange::kind).collect();
    use PolicyChangeKind::{Added, Altered, Kept, Removed};
    assert_eq!(kinds, [Added, Kept, Altered, Removed]);
    assert!(!changes.is_empty());
    let api = changes.policy("api").expect("a policy");
    let quota = &api.settings()[0];
    assert_eq!(
        (quota.setting(), quota.from(), quota.to()),
        ("quota", "10/min", "20/min")
    );
    assert!(Changes::between(&before, &before).is_empty());
}

#[test]
fn settings_outside_of_policies_are_compared_one_by_one() {
    let differences = |after: OnStoreError| {
        let before = OnStoreError::Admit;
        let differences = Difference::between("on_store_error", &before, &after);
        differences.into_iter().collect()
    };
    let policy = policy("1/s");
    let changes = Changes::between([&policy], [&policy]);
    let same = changes
        .clone()
        .with_settings(differences(OnStoreError::Admit));
    assert!(same.is_empty());
    let changes = changes.with_settings(differences(OnStoreError::Reject));
    assert!(!changes.is_empty());
    assert_eq!(
        changes.to_string(),
        "on_store_error: admit -> reject\napi: kept"
    );
}

#[test]
fn an_even_rate_keeps_the_share_the_time_or_the_units() {
    const SHARE: &str = "the used share stays";
    const TIME: &str = "the time until the used units are free stays";
    const UNITS: &str = "the used units stay";
    for (from, to, what, counts) in [
        ("10/min", "20/min", SHARE, ": 6 of 10 are 12 of 20"),
        ("10/min", "5/min", SHARE, ": 6 of 10 are 3 of 5"),
        (
            "10/s burst 20",
            "20/s burst 40",
            SHARE,
            ": 12 of 20 are 24 of 40",
        ),
        ("10/min", "10/h", TIME, ": 6 of 10 are 1 of 10"),
        (
            "10/h",
            "10/min",
            TIME,
            ", up to a debt of one burst: 6 of 10 are all 10",
        ),
        (
            "10/min",
            "10/40s",
            TIME,
            ", up to a debt of one burst: 6 of 10 are 9 of 10",
        ),
        ("10/min", "10/min burst 20", UNITS, ": 6 of 10 are 6 of 20"),
        (
            "10/min burst 20",
            "10/min",
            UNITS,
            ", up to a debt of one burst: 12 of 20 are more than all 10",
        ),
        ("10/min", "600/h", UNITS, ": 6 of 10 are 6 of 600"),
        ("10/min", "10/min burst 10", "the counts stay", ""),
    ] {
        let text = format!("{what}{counts}");
        assert_eq!(under(Gcra, from, to), text);
        assert_eq!(under(TokenBucket, from, to), text);
    }
}

#[test]
fn a_window_keeps_its_count_and_its_end() {
    for (from, to, counts) in [
        ("10/min", "20/min", ": 6 of 10 are 6 of 20"),
        ("10/min", "5/min", ": 6 of 10 are more than all 5"),
        (
            "10/min",
            "10/h",
            "; an open window ends when it would have, and the next lasts for the new period",
        ),
        (
            "10/min",
            "20/s",
            ": 6 of 10 are 6 of 20; an open window ends one new period after the next access, or earlier",
        ),
    ] {
        let text = format!("the count stays{counts}");
        assert_eq!(under(FixedWindow, from, to), text);
        assert_eq!(under(ListWindow, from, to), text);
    }
}

#[test]
fn calendar_windows_logs_and_sliding_windows_keep_their_counts() {
    let calendar = |from, to| under(CalendarWindow::utc(), from, to);
    assert_eq!(
        calendar("10/min", "20/min"),
        "the count stays: 6 of 10 are 6 of 20"
    );
    let carried = "the count stays; the current window's count counts in the new one";
    assert_eq!(calendar("10/min", "10/h"), carried);
    assert_eq!(calendar("10/h", "10/min"), carried);
    let log = "the count stays; each stored charge counts for the new period";
    assert_eq!(under(SlidingLog, "10/min", "10/h"), log);
    assert_eq!(under(SlidingLog, "10/h", "10/min"), log);
    let sliding = "the count stays; each old bucket counts in the new one in which it ends";
    assert_eq!(under(SlidingWindow::new(), "10/min", "10/h"), sliding);
    let [two, ten] =
        [2, 10].map(|buckets| policy("10/min").strategy(SlidingWindow::buckets(buckets)));
    assert_eq!(
        line(&two, &ten),
        format!(
            "altered: strategy sliding_window buckets 2 -> sliding_window buckets 10 ({sliding})"
        )
    );
    let [utc, east] = [
        CalendarWindow::utc(),
        CalendarWindow::east_of_utc(Duration::from_secs(7_200)),
    ]
    .map(|strategy| policy("10/day").strategy(strategy));
    assert_eq!(
        line(&utc, &east),
        format!(
            "altered: strategy calendar_window utc -> calendar_window east_of_utc 2h ({carried})"
        )
    );
}

#[test]
fn permits_and_bans_stay() {
    let [two, three] = ["2 concurrent", "3 concurrent"].map(policy);
    let more =
        "altered: quota 2 concurrent -> 3 concurrent (requests in flight keep their permits)";
    assert_eq!(line(&two, &three), more);
    assert_eq!(
        line(
            &three,
            &two.clone()
                .strategy(Concurrency::with_ttl(Duration::from_secs(9)))
        ),
        "altered: quota 3 concurrent -> 2 concurrent, strategy concurrency -> concurrency ttl 9s (requests in flight keep \
         their permits, and none is admitted until there are fewer than 2; a permit has the new TTL from its next renewal on)"
    );
    let ban = Ban::for_duration(Duration::from_secs(60));
    assert_eq!(
        under(ban, "3/min", "5/min"),
        "counted rejections and bans stay, and the next ban follows the new settings"
    );
}

#[test]
fn another_strategy_starts_afresh() {
    let afresh = "another strategy: the counts start afresh, and the old ones expire by themselves";
    let gcra = policy("10/min");
    let window = gcra.clone().strategy(FixedWindow);
    let bucket = gcra.clone().strategy(TokenBucket);
    for (text, other) in [
        ("strategy gcra -> fixed_window", window),
        ("strategy gcra -> token_bucket", bucket),
        ("quota 10/min -> 2 concurrent", policy("2 concurrent")),
    ] {
        assert_eq!(line(&gcra, &other), format!("altered: {text} ({afresh})"));
    }
}

#[test]
fn leases_leave_the_counts_and_make_the_burst_of_an_even_rate_smaller() {
    let leased = |policy: &Policy| policy.clone().lease(Lease::max_units(64));
    let value = "{ max_units = 64, ttl = 50ms }";
    let even = policy("100/s");
    let added = format!(
        "altered: lease none -> {value} (the counts stay; the burst in force is 94 rather than 100)"
    );
    assert_eq!(line(&even, &leased(&even)), added);
    let bucket = even.clone().strategy(TokenBucket);
    assert_eq!(line(&bucket, &leased(&bucket)), added);
    assert_eq!(
        line(&leased(&even), &even),
        format!(
            "altered: lease {value} -> none (the counts stay; the burst in force is 100 rather than 94)"
        )
    );
    let larger = even.clone().lease(Lease::max_units(128));
    assert_eq!(
        line(&leased(&even), &larger),
        format!("altered: lease {value} -> {{ max_units = 128, ttl = 50ms }} (the counts stay)")
    );
    let keyed = leased(&even.clone().key(extract::header("x-tenant")));
    assert_eq!(
        line(&even, &keyed),
        format!(
            "altered: key peer -> header:x-tenant, lease none -> {value} (a request that has another key now is counted \
             afresh; the burst in force is 94 rather than 100)"
        )
    );
    assert_eq!(
        line(&leased(&even), &leased(&policy("200/s"))),
        "altered: quota 100/s -> 200/s (the used share stays: 57 of 94 are 114 of 189)"
    );
    for window in [
        policy("100/min").strategy(FixedWindow),
        policy("100/min").strategy(SlidingLog),
        policy("100/min").strategy(SlidingWindow::new()),
    ] {
        assert_eq!(
            line(&window, &leased(&window)),
            format!("altered: lease none -> {value} (the counts stay)")
        );
    }
    let window = |quota: &str| policy(quota).strategy(FixedWindow);
    assert_eq!(
        line(&window("10/min"), &leased(&window("20/min"))),
        format!(
            "altered: quota 10/min -> 20/min, lease none -> {value} (the count stays: 6 of 10 are 6 of 20)"
        )
    );
}

/// A strategy of the application, without a text.
#[derive(Debug)]
struct Own;

impl Strategy for Own {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        SlidingWindow::new().bind(quota, terms)
    }
}

#[test]
fn a_strategy_without_a_text_is_the_same_if_its_code_is() {
    let own = || policy("10/min").strategy(Own);
    assert_eq!(
        line(&own(), &own().cost(2)),
        "altered: cost 1 -> 2 (the counts stay)"
    );
    assert_eq!(
        line(&own().strategy(SlidingWindow::new()), &own()),
        "altered: strategy sliding_window -> code (the count stays; each old bucket counts in the new one in which it ends)"
    );
}

#[test]
fn a_policy_that_was_called_by_hand_has_other_keys_now() {
    let policy = policy("10/min");
    assert_eq!(
        line(&policy.clone().by_hand(), &policy),
        "altered: by_hand true -> false (a request that has another key now is counted afresh)"
    );
}

#[test]
fn other_keys_start_afresh_and_other_settings_leave_the_counts() {
    let policy = policy("10/min");
    assert_eq!(
        line(&policy, &policy.clone().key(extract::header("x-tenant"))),
        "altered: key peer -> header:x-tenant (a request that has another key now is counted afresh)"
    );
    let stay = "(the counts stay)";
    assert_eq!(
        line(&policy, &policy.clone().cost(5)),
        format!("altered: cost 1 -> 5 {stay}")
    );
    assert_eq!(
        line(&policy, &policy.clone().shadow()),
        format!("altered: shadow false -> true {stay}")
    );
    let code = |units: u64| policy.clone().cost_with(move |_| units);
    assert_eq!(
        line(&policy, &code(1)),
        format!("altered: cost 1 -> code {stay}")
    );
    assert_eq!(
        line(&code(1), &code(1)),
        format!("altered: cost other code {stay}")
    );
}

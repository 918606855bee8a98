//! What each strategy stores.

use tollgate::strategy::Strategy;
use tollgate_tests::prelude::*;

use super::{Scene, policy, scene};
use crate::strategies::formats::calls::{Call, check, credit, refund, script, wait};

pub(super) fn all() -> Vec<Scene> {
    let scenes = [costs(), calendars(), tiers(), callers(), bans()];
    scenes.into_iter().flatten().collect()
}

/// Under the policy `p`, each strategy: requests of several costs, several at once, charges into debt, refunds and resets.
fn costs() -> Vec<Scene> {
    let of = |name, policies| scene(name, policies, several_costs(), later_costs());
    let mut scenes = vec![
        of("gcra", || vec![policy("p", "5/min", Gcra)]),
        of("gcra, 7 per minute and a burst of 20", || {
            vec![policy("p", "7/min burst 20", Gcra)]
        }),
        of("gcra, 5 per month", || vec![policy("p", "5/month", Gcra)]),
        of("token bucket", || vec![policy("p", "5/min", TokenBucket)]),
        of("token bucket, 7 per minute and a burst of 20", || {
            vec![policy("p", "7/min burst 20", TokenBucket)]
        }),
        of("fixed window", || vec![policy("p", "5/min", FixedWindow)]),
        of("calendar window", || {
            vec![policy("p", "5/min", CalendarWindow::utc())]
        }),
        of("list window", || vec![policy("p", "5/min", ListWindow)]),
        of("sliding log", || vec![policy("p", "5/min", SlidingLog)]),
        of("sliding window, 1 bucket", || {
            vec![policy("p", "5/min", SlidingWindow::new())]
        }),
        of("sliding window, 10 buckets", || {
            vec![policy("p", "5/min", SlidingWindow::buckets(10))]
        }),
    ];
    // Credits are for strategies that do not store each charge.
    for scene in &mut scenes {
        let by_charge = ["list", "sliding"];
        if !by_charge
            .iter()
            .any(|strategy| scene.name.starts_with(strategy))
        {
            scene.calls.push(credit("carol", 2));
            scene.later.push(credit("dave", 1));
        }
    }
    scenes
}

fn several_costs() -> Vec<Call> {
    script(
        "wait 123456us, check alice, check alice cost 3, wait 7654321us, check alice, \
             check bob times 3, check bob cost 19, charge carol 7, check dave cost 4, \
             wait 1500ms, refund 2, check erin, reset erin, check frank, wait 1us, \
             refund 1, check grace cost 0",
    )
}

fn later_costs() -> Vec<Call> {
    script(
        "wait 2345678us, check alice, check bob cost 2, check carol, \
             check dave times 4, check erin, wait 24s, peek alice cost 3, charge bob 1, \
             check carol cost 2, wait 30s, check alice cost 2, check dave cost 5, \
             peek frank",
    )
}

/// Windows of the calendar: days, weeks, months and years of time zones, and those of fixed length.
fn calendars() -> Vec<Scene> {
    let calls = || {
        script(
            "wait 123456us, check alice, check alice cost 3, charge bob 7, \
             check carol times 2, wait 3600s, refund 1",
        )
    };
    let later = || {
        script(
            "check alice cost 2, wait 57600s, check alice, check bob, wait 604800s, \
             check alice cost 2, check bob, wait 2678400s, check carol",
        )
    };
    let of = |name, policies| scene(name, policies, calls(), later());
    vec![
        of("calendar window, days in UTC", || {
            vec![policy("p", "5/day", CalendarWindow::utc())]
        }),
        of("calendar window, months in Shanghai", || {
            vec![policy(
                "p",
                "5/month",
                CalendarWindow::zone("Asia/Shanghai"),
            )]
        }),
        of("calendar window, years in UTC", || {
            vec![policy("p", "5/year", CalendarWindow::utc())]
        }),
        of("calendar window, months from the epoch", || {
            vec![policy("p", "5/month", CalendarWindow::from_epoch())]
        }),
        of("calendar window, weeks from Sunday, west of UTC", || {
            let weeks = CalendarWindow::west_of_utc(secs(5 * 3_600));
            vec![policy("p", "5/week", weeks.week_starts_on(Weekday::Sunday))]
        }),
        of("calendar window, 90 minutes, east of UTC", || {
            let windows = CalendarWindow::east_of_utc(secs(19_800));
            vec![policy("p", "5/90min", windows)]
        }),
    ]
}

/// One count for all tiers of a policy.
fn tiers() -> Vec<Scene> {
    fn tiered<S: Strategy>(strategy: S) -> Vec<Policy> {
        let tiers = ["20/min", "3/min"].map(|quota| quota.parse().expect(quota));
        vec![policy("p", "5/min", strategy).tier_quotas(tiers)]
    }
    let of = |name, policies| {
        let calls = [
            wait(Duration::from_micros(123_456)),
            check("alice").cost(12).quota("p", "20/min"),
            check("bob").cost(2).quota("p", "3/min"),
            check("carol").cost(2),
            wait(secs(4)),
            check("carol").cost(2).quota("p", "20/min"),
        ];
        let later = [
            check("alice"),
            check("alice").quota("p", "20/min"),
            check("bob").quota("p", "3/min"),
            check("carol").quota("p", "3/min"),
            wait(secs(20)),
            check("alice").cost(2).quota("p", "20/min"),
            check("bob").cost(3),
            check("carol").cost(2).quota("p", "3/min"),
        ];
        scene(name, policies, calls, later)
    };
    vec![
        of("tiers of gcra", || tiered(Gcra)),
        of("tiers of a token bucket", || tiered(TokenBucket)),
        of("tiers of a fixed window", || tiered(FixedWindow)),
        of("tiers of a calendar window", || {
            tiered(CalendarWindow::utc())
        }),
        of("tiers of a list window", || tiered(ListWindow)),
        of("tiers of a sliding log", || tiered(SlidingLog)),
        of("tiers of a sliding window", || {
            tiered(SlidingWindow::buckets(6))
        }),
    ]
}

/// What stores its callers: list windows by their keys, in-flight limits by unique numbers.
fn callers() -> Vec<Scene> {
    let list = scene(
        "list window, with callers",
        || vec![policy("p", "5/min", ListWindow)],
        [
            wait(Duration::from_micros(123_456)),
            check("office").caller("alice"),
            check("office").cost(2).caller("bob"),
            check("office").caller("a name of more than 23 characters"),
            refund(1),
            check("away").times(2).caller("carol"),
        ],
        script(
            "check office cost 2 by carol, check office by carol, wait 60s, \
             check office by carol",
        ),
    );
    let in_flight = scene(
        "concurrency",
        || {
            // Renewed three times in its TTL, so not while the test runs.
            let permits = Concurrency::with_ttl(secs(3_600));
            vec![policy("p", "5 concurrent", permits)]
        },
        script(
            "wait 123456us, check alice, wait 2ms, check alice cost 3, wait 3ms, \
             check alice cost 2, check bob cost 2, release bob, wait 1ms, check bob, \
             check carol times 2",
        ),
        script(
            "check alice, check alice, wait 3599994000us, check alice cost 2, wait 2ms, \
             check alice, wait 3600s, peek bob, check carol cost 5",
        ),
    );
    vec![list, in_flight]
}

/// Rejections counted, bans that grow, and bans by hand.
fn bans() -> Vec<Scene> {
    let policies = || {
        let ban = Ban::for_duration(secs(600)).max_duration(secs(1_800));
        vec![
            policy("once", "1/365days", FixedWindow),
            policy("abuse", "3/min", ban),
        ]
    };
    let admitted_by_store = scene(
        "ban",
        policies,
        script(
            "wait 123456us, check alice, check alice, wait 1234ms, check alice, check bob, \
             check bob, check bob, check bob, check bob, check carol, check carol times 3",
        ),
        script(
            "check alice, check bob, wait 600s, check alice, check bob, check bob, \
             check bob, check bob, wait 1200s, check bob times 3",
        ),
    );
    let by_hand = scene(
        "ban by hand",
        policies,
        script(
            "wait 123456us, block alice 3600s, block bob 1500ms, block carol 60s, \
             unblock carol, check dave, check dave times 3, block dave 31536000s",
        ),
        script(
            "check alice, wait 1500ms, check bob, check bob, check carol, unblock dave, \
             check dave, wait 3600s, check alice",
        ),
    );
    vec![admitted_by_store, by_hand]
}

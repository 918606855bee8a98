//! A program without async code: threads mask the addresses in the lines of a log, of which each tenant may have five a minute. A
//! line is decided at once where that is possible, and by a call of the store that blocks the thread elsewhere. In process; on
//! Redis, for any number of processes together, if `REDIS_URL` is set.
//!
//! ```text
//! cargo run --example threads
//! cargo run --example threads access.log
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    error::Error,
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tollgate::{Decision, FixedWindow, Lease, Limiter, Policy, Quota, RedisStore};

/// The first word of a line is its tenant.
const LOG: &str = "\
acme 192.0.2.1 GET /
acme 192.0.2.2 GET /cart
globex 192.0.2.3 GET /
acme 192.0.2.1 GET /pay
acme 192.0.2.4 GET /
acme 192.0.2.1 GET /paid
acme 192.0.2.4 GET /cart
globex 192.0.2.3 GET /cart
acme 192.0.2.5 GET /
";

/// The masked lines of a tenant, and how many it was not allowed.
#[derive(Default)]
struct Tenant {
    lines: Vec<String>,
    rejected: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let log = env::args()
        .nth(1)
        .map_or(Ok(LOG.to_owned()), fs::read_to_string)?;
    let limiter = limiter()?;

    let lines: Mutex<VecDeque<&str>> = Mutex::new(log.lines().collect());
    let tenants = Mutex::new(BTreeMap::<&str, Tenant>::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(line) = lock(&lines).pop_front() else {
                        break;
                    };
                    let (name, text) = line.split_once(' ').unwrap_or((line, ""));
                    let masked = decide(&limiter, name).is_admitted().then(|| mask(text));
                    let mut tenants = lock(&tenants);
                    let tenant = tenants.entry(name).or_default();
                    match masked {
                        Some(masked) => tenant.lines.push(masked),
                        None => tenant.rejected += 1,
                    }
                }
            });
        }
    });

    for (name, tenant) in lock(&tenants).iter() {
        let masked = tenant.lines.len();
        println!(
            "{name}: {masked} lines masked, {} left out",
            tenant.rejected
        );
    }
    Ok(())
}

/// Decides about a line without waiting, if that is possible; otherwise the thread waits for the store.
fn decide(limiter: &Limiter, tenant: &str) -> Decision {
    let check = limiter.check(tenant);
    check.clone().now().unwrap_or_else(|_| check.blocking())
}

fn mask(text: &str) -> String {
    let mask = |digit: char| if digit.is_ascii_digit() { 'x' } else { digit };
    text.chars().map(mask).collect()
}

fn limiter() -> Result<Limiter, Box<dyn Error>> {
    let policy = Policy::new("lines", Quota::requests(5).per_minute()).strategy(FixedWindow);
    let Ok(url) = env::var("REDIS_URL") else {
        return Ok(Limiter::builder().policy(policy).build()?);
    };
    // A tenant with hundreds of lines per second is then decided in process.
    let policy = policy.lease(Lease::max_units(1_000).ttl(Duration::from_millis(50)));
    let store = RedisStore::open(url)?;
    Ok(Limiter::builder().store(store).policy(policy).build()?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! for now
use std::{sync::Arc, time::Duration};
use testkit::Server;
use tollgate_bench::{drive::*, house::*, redis::*};

async fn compare<A: Contender, B: Contender>(
    what: &str,
    a: (&str, A),
    b: (&str, B),
    tasks: usize,
    server: Option<&Server>,
    stint: u32,
) {
    let load = Load {
        tasks,
        time: Duration::from_millis(1000),
        stint,
    };
    let (a, b) = ((a.0, Arc::new(a.1)), (b.0, Arc::new(b.1)));
    let mut ratios = Vec::new();
    let cpu = || {
        server
            .and_then(|s| s.info("cpu", "used_cpu_user_main_thread"))
            .and_then(|t| t.parse::<f64>().ok())
            .unwrap_or(0.0)
            + server
                .and_then(|s| s.info("cpu", "used_cpu_sys_main_thread"))
                .and_then(|t| t.parse::<f64>().ok())
                .unwrap_or(0.0)
    };
    for round in 0..4 {
        let c0 = cpu();
        if let Some(s) = server {
            s.reset_stats();
        }
        let sa = drive(a.1.clone(), load).await;
        let calls = server.map(|s| {
            (
                s.calls("evalsha"),
                s.info("commandstats", "cmdstat_evalsha"),
                s.info("commandstats", "cmdstat_set"),
                s.info("commandstats", "cmdstat_get"),
            )
        });
        println!(
            "decisions per call {:?} {:?}",
            calls.as_ref().map(|c| sa.decisions as f64 / c.0 as f64),
            calls
        );
        let c1 = cpu();
        let sb = drive(b.1.clone(), load).await;
        let c2 = cpu();
        if round > 0 {
            println!(
                "{what}: {} {:.0}/s p50 {:?} p99 {:?} cpu {:?} server {:.2}us | {} {:.0}/s p50 {:?} p99 {:?} cpu {:?} server {:.2}us",
                a.0,
                sa.rate,
                sa.p50,
                sa.p99,
                sa.cpu,
                (c1 - c0) * 1e6 / sa.decisions as f64,
                b.0,
                sb.rate,
                sb.p50,
                sb.p99,
                sb.cpu,
                (c2 - c1) * 1e6 / sb.decisions as f64
            );
            ratios.push(sa.rate / sb.rate);
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!("== {what}: {:.2}x", ratios[ratios.len() / 2]);
}

#[tokio::main]
async fn main() {
    let which = std::env::args().nth(1).unwrap_or_default();
    let server = Server::start();
    let url = server.url();
    let n = 100_000;
    if "cold512".contains(&which) {
        compare(
            "512 cold",
            ("ours", House::on_redis(&url, n, 1, false)),
            ("mux", Mux::open(&url, n).await),
            512,
            Some(&server),
            1,
        )
        .await;
    }
    if "cold64".contains(&which) {
        compare(
            "64 cold",
            ("ours", House::on_redis(&url, n, 1, false)),
            ("mux", Mux::open(&url, n).await),
            64,
            Some(&server),
            1,
        )
        .await;
    }
    if "one1".contains(&which) {
        compare(
            "1 cold",
            ("ours", House::on_redis(&url, n, 1, false)),
            ("mux", Mux::open(&url, n).await),
            1,
            Some(&server),
            1,
        )
        .await;
    }
    if "pool".contains(&which) {
        compare(
            "512 pool",
            ("ours", House::on_redis(&url, n, 1, false)),
            ("pool", Pooled::open(&url, 64, n)),
            512,
            Some(&server),
            1,
        )
        .await;
    }
    if "hot".contains(&which) {
        compare(
            "512 hot",
            ("ours", House::on_redis(&url, 1, 1, false)),
            ("mux", Mux::open(&url, 1).await),
            512,
            Some(&server),
            1,
        )
        .await;
    }
    if "three".contains(&which) {
        compare(
            "3 apart",
            ("ours", House::on_redis(&url, n, 3, true)),
            ("one", House::on_redis(&url, n, 1, false)),
            512,
            Some(&server),
            1,
        )
        .await;
        compare(
            "3 same",
            ("ours", House::on_redis(&url, n, 3, false)),
            ("one", House::on_redis(&url, n, 1, false)),
            512,
            Some(&server),
            1,
        )
        .await;
    }
    if which == "hotalone" || which == "coldalone" {
        let (n, tasks) = if which == "hotalone" {
            (1, 512)
        } else {
            (n, 512)
        };
        let ours = Arc::new(House::on_redis(&url, n, 1, false));
        let load = Load {
            tasks,
            time: Duration::from_millis(3000),
            stint: 1,
        };
        let s = drive(ours, load).await;
        println!("{s:?}");
        return;
    }
    if which == "alone" {
        let ours = Arc::new(House::in_process(n, ample()));
        let load = Load {
            tasks: 64,
            time: Duration::from_millis(4000),
            stint: 256,
        };
        println!("{:?}", drive(ours, load).await);
        return;
    }
    if "memory".contains(&which) {
        compare(
            "in process",
            ("ours", House::in_process(n, ample())),
            ("gov", Governor::new(n)),
            64,
            None,
            256,
        )
        .await;
    }
}
use governor::{
    Quota as Q, RateLimiter, clock::DefaultClock, state::keyed::DefaultKeyedStateStore,
};
struct Governor {
    limiter: RateLimiter<tollgate::Key, DefaultKeyedStateStore<tollgate::Key>, DefaultClock>,
    keys: Vec<tollgate::Key>,
}
impl Governor {
    fn new(n: usize) -> Self {
        let q = Q::with_period(std::time::Duration::from_micros(604_800))
            .unwrap()
            .allow_burst(std::num::NonZeroU32::new(100_000_000).unwrap());
        Self {
            limiter: RateLimiter::keyed(q),
            keys: tollgate_bench::keys::keys(n),
        }
    }
}
impl Contender for Governor {
    async fn decide(&self, dice: &mut Dice) -> bool {
        let key = &self.keys[dice.roll(self.keys.len())];
        self.limiter.check_key(key).is_ok()
    }
}

//! A log that is the same in each run: few clients have most of the requests, and some come in bursts.

use std::fmt::Write;

/// A request of the log. All times are in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) arrived: i64,
    pub(crate) duration: i64,
    pub(crate) client: u32,
    pub(crate) path: u32,
    pub(crate) status: u16,
}

/// Requests in the order of their ends, in which a server logs them.
pub(crate) fn requests(count: usize) -> Vec<Logged> {
    let mut random = Random(0x5eed);
    let mut requests = Vec::with_capacity(count);
    let mut now = 1_800_000_000_000_000;
    while requests.len() < count {
        now += random.below(40_000) as i64;
        let client = random.skewed(3_000);
        let burst = match random.below(150) {
            0 => 10 + random.below(60),
            _ => 1,
        };
        for _ in 0..burst {
            now += if burst > 1 {
                random.below(4_000) as i64
            } else {
                0
            };
            requests.push(Logged {
                arrived: now,
                duration: random.below(1 + random.clone().below(2_000_000)) as i64,
                client,
                path: random.skewed(40),
                status: [200, 200, 200, 200, 200, 304, 404, 500][random.below(8) as usize],
            });
        }
    }
    requests.truncate(count);
    requests.sort_by_key(|request| request.arrived + request.duration);
    requests
}

impl Logged {
    pub(crate) fn address(&self) -> String {
        format!("10.{}.{}.1", self.client / 256, self.client % 256)
    }

    pub(crate) fn path(&self) -> String {
        format!("/path/{}", self.path)
    }

    /// The line of JSON in Caddy's format.
    pub(crate) fn write_json(&self, log: &mut String) {
        let seconds = |micros: i64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        let (ends, duration) = (
            seconds(self.arrived + self.duration),
            seconds(self.duration),
        );
        writeln!(
            log,
            r#"{{"level":"info","ts":{ends},"logger":"http.log.access","msg":"handled request","request":{{"remote_ip":"{}","remote_port":"4321","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"{}?page=2","headers":{{"User-Agent":["curl/8.5.0"]}}}},"duration":{duration},"size":10900,"status":{}}}"#,
            self.address(), self.path(), self.status
        )
        .expect("text");
    }
}

/// A generator of random numbers (SplitMix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// A number below the bound, of which small ones are more frequent.
    fn skewed(&mut self, bound: u64) -> u32 {
        let bound = 1 + self.below(bound);
        let bound = 1 + self.below(bound);
        self.below(bound) as u32
    }
}

//! The baselines on Redis: the same rule as a one-key script, called once for each request.

use deadpool_redis::{Manager, Pool, Runtime};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, Script,
    aio::MultiplexedConnection, io::tcp::TcpSettings,
};

use crate::{
    keys::{Rule, names},
    load::{Contender, Rng},
};

/// GCRA with server time, as one writes it for one key.
const GCRA: &str = r"
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then
  tat = now
end
local new = tat + interval
local over = new - now - tolerance
if over > 0 then
  return { 0, 0, over }
end
redis.call('SET', KEYS[1], string.format('%d', new), 'PX', math.ceil((new - now) / 1000))
return { 1, math.floor(-over / interval), 0 }
";

/// One shared multiplexed connection, one script call a request: what the best peers on Redis do.
#[derive(Debug)]
pub struct Mux {
    connection: MultiplexedConnection,
    script: Script,
    rule: Micros,
    names: Vec<String>,
}

/// The same on a cluster: a connection to each master, and each call goes to the master of its key.
#[derive(Debug)]
pub struct Muxes {
    nodes: Vec<Mux>,
    /// Each key, and the place of its master.
    names: Vec<(usize, String)>,
}

/// A checkout from a pool for each request: the naive design at its best.
pub struct Pooled {
    pool: Pool,
    script: Script,
    rule: Micros,
    names: Vec<String>,
}

/// A rule as the script takes it: microseconds between two units, and those that a whole burst takes.
#[derive(Clone, Copy, Debug)]
struct Micros {
    interval: u64,
    tolerance: u64,
}

impl From<Rule> for Micros {
    fn from(rule: Rule) -> Self {
        let interval = u64::try_from(rule.interval().as_micros()).expect("a short interval");
        Self {
            interval,
            tolerance: interval * rule.burst,
        }
    }
}

fn passed(reply: redis::RedisResult<(i64, i64, i64)>) -> bool {
    reply.expect("a reply").0 == 1
}

impl Mux {
    /// On the server at `url`, with so many keys.
    pub async fn open(url: &str, rule: Rule, keys: usize) -> Self {
        let client = Client::open(address(url)).expect("an address");
        Self {
            connection: client
                .get_multiplexed_async_connection_with_config(&config())
                .await
                .expect("a connection"),
            script: Script::new(GCRA),
            rule: rule.into(),
            names: names("mux:", keys),
        }
    }
}

impl Contender for Mux {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let name = &self.names[rng.below(self.names.len())];
        let mut connection = self.connection.clone();
        let mut call = self.script.key(name);
        let call = call.arg(self.rule.interval).arg(self.rule.tolerance);
        passed(call.invoke_async(&mut connection).await)
    }
}

impl Muxes {
    /// On masters that share the slots evenly, in order.
    pub async fn open(urls: &[String], rule: Rule, keys: usize) -> Self {
        let mut nodes = Vec::new();
        for url in urls {
            nodes.push(Mux::open(url, rule, 0).await);
        }
        let count = nodes.len();
        let serves = |node: usize, slot| usize::from(slot) < (node + 1) * SLOTS / count;
        let names = names("muxes:", keys).into_iter().map(|name| {
            let slot = slot(&name);
            let node = (0..count).find(|node| serves(*node, slot));
            (node.expect("a master serves each slot"), name)
        });
        Self {
            names: names.collect(),
            nodes,
        }
    }
}

impl Contender for Muxes {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let (node, name) = &self.names[rng.below(self.names.len())];
        let node = &self.nodes[*node];
        let mut connection = node.connection.clone();
        let mut call = node.script.key(name);
        let call = call.arg(node.rule.interval).arg(node.rule.tolerance);
        passed(call.invoke_async(&mut connection).await)
    }
}

const SLOTS: usize = 16_384;

/// A key's slot: CRC-16/XMODEM.
fn slot(name: &str) -> u16 {
    let step = |crc: u16| match crc & 0x8000 {
        0 => crc << 1,
        _ => (crc << 1) ^ 0x1021,
    };
    let crc = name.bytes().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| step(crc))
    });
    crc % SLOTS as u16
}

impl Pooled {
    /// On the server at `url`, with so many connections and keys.
    pub fn open(url: &str, connections: usize, rule: Rule, keys: usize) -> Self {
        let manager = Manager::new_with_config(address(url), config()).expect("an address");
        Self {
            pool: Pool::builder(manager)
                .max_size(connections)
                .runtime(Runtime::Tokio1)
                .build()
                .expect("a pool"),
            script: Script::new(GCRA),
            rule: rule.into(),
            names: names("pool:", keys),
        }
    }
}

impl Contender for Pooled {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let name = &self.names[rng.below(self.names.len())];
        let mut connection = self.pool.get().await.expect("a connection");
        let mut call = self.script.key(name);
        let call = call.arg(self.rule.interval).arg(self.rule.tolerance);
        passed(call.invoke_async(&mut connection).await)
    }
}

/// The server at `url`, on connections with TCP_NODELAY, as tollgate's are: without it a request on a shared connection waits
/// until the server has acknowledged the one before.
///
/// # Panics
///
/// If the URL can't be read.
pub fn address(url: &str) -> ConnectionInfo {
    let info = url.into_connection_info().expect("an address");
    info.set_tcp_settings(TcpSettings::default().set_nodelay(true))
}

/// A machine that stalls for long must not end in an error.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

impl std::fmt::Debug for Pooled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pooled").finish_non_exhaustive()
    }
}

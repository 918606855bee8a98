//! The baselines on Redis: the same rule as a one-key script, called once for each request.

use deadpool_redis::{Manager, Pool, Runtime};
use redis::{AsyncConnectionConfig, Client, Script, aio::MultiplexedConnection};

use crate::{
    drive::{Contender, Dice},
    keys::{BURST, PER_WEEK},
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
    names: Vec<String>,
}

/// A checkout from a pool for each request: the naive design at its best.
pub struct Pooled {
    pool: Pool,
    script: Script,
    names: Vec<String>,
}

fn names(prefix: &str, keys: usize) -> Vec<String> {
    let name = |key| format!("{prefix}:{}", crate::keys::name(key));
    (0..keys).map(name).collect()
}

/// Microseconds between two units, and those a whole burst takes.
fn rule() -> (u64, u64) {
    let interval = 7 * 86_400 * 1_000_000 / PER_WEEK;
    (interval, interval * BURST)
}

fn passed(answer: redis::RedisResult<(i64, i64, i64)>) -> bool {
    answer.expect("an answer").0 == 1
}

impl Mux {
    /// On the server at `url`, with so many keys.
    pub async fn open(url: &str, keys: usize) -> Self {
        let client = Client::open(url).expect("an address");
        Self {
            connection: client
                .get_multiplexed_async_connection_with_config(&config())
                .await
                .expect("a connection"),
            script: Script::new(GCRA),
            names: names("mux", keys),
        }
    }
}

impl Contender for Mux {
    async fn decide(&self, dice: &mut Dice) -> bool {
        let (interval, tolerance) = rule();
        let name = &self.names[dice.roll(self.names.len())];
        let mut connection = self.connection.clone();
        let mut call = self.script.key(name);
        let call = call.arg(interval).arg(tolerance);
        passed(call.invoke_async(&mut connection).await)
    }
}

impl Pooled {
    /// On the server at `url`, with so many connections and keys.
    pub fn open(url: &str, connections: usize, keys: usize) -> Self {
        let manager = Manager::new_with_config(url, config()).expect("an address");
        Self {
            pool: Pool::builder(manager)
                .max_size(connections)
                .runtime(Runtime::Tokio1)
                .build()
                .expect("a pool"),
            script: Script::new(GCRA),
            names: names("pool", keys),
        }
    }
}

impl Contender for Pooled {
    async fn decide(&self, dice: &mut Dice) -> bool {
        let (interval, tolerance) = rule();
        let name = &self.names[dice.roll(self.names.len())];
        let mut connection = self.pool.get().await.expect("a connection");
        let mut call = self.script.key(name);
        let call = call.arg(interval).arg(tolerance);
        passed(call.invoke_async(&mut connection).await)
    }
}

fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

impl std::fmt::Debug for Pooled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pooled").finish_non_exhaustive()
    }
}

//! The health check of the Redis store.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value, cmd};
use tokio::time::Instant;

use super::{
    RedisStore,
    batch::{Batch, wire},
    io::ServerRef,
    request::{PendingRequest, RequestState, Retry, ended, op::OwnedCounterOp},
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    error::StoreError,
    key::Key,
    store::{
        CounterOp, LimitHandle, Op,
        health::{HealthIssue, HealthReport},
    },
};

/// The oldest version with `PXAT`, which the scripts need.
const MIN_VERSION: (u32, u32) = (6, 2);

/// Clock difference that is reported.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

/// How long to wait for the first response of a server at least, with its connection, TLS and login. The store's timeout, if
/// that is longer.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for each further response of a server that has responded.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

impl RedisStore {
    /// Checks each server, and tries each limit there.
    pub(crate) async fn check_health(&self, limits: &[LimitHandle]) -> HealthReport {
        let mut health = HealthReport::default();
        let io = &self.inner.io;
        let servers = match io.servers().await {
            Ok(servers) => servers,
            Err(error) => {
                let server = "the cluster".into();
                health.add_issue(HealthIssue::Unreachable { server, error });
                return health;
            }
        };
        let single = io.tags().is_none();
        for server in &servers {
            let checked = self.check_server(server, single, &mut health).await;
            if let Err(error) = checked {
                let server = server.name.clone();
                health.add_issue(HealthIssue::Unreachable { server, error });
                continue;
            }
            if limits.iter().any(|limit| limit.info().counts_rejections) {
                self.try_scan(server, &mut health).await;
            }
            for limit in limits {
                if !self.try_policy(server, limit, &mut health).await {
                    break;
                }
            }
        }
        health
    }

    /// Whether the user may list blocked keys.
    async fn try_scan(&self, server: &ServerRef, health: &mut HealthReport) {
        let mut scan = cmd("SCAN");
        scan.arg(0).arg("COUNT").arg(1);
        if self
            .run::<Value>(server, scan)
            .await
            .is_err_and(|error| is_refused(&error))
        {
            health.add_unchecked("blocks");
        }
    }

    /// What a server reports of itself.
    async fn check_server(
        &self,
        server: &ServerRef,
        single: bool,
        health: &mut HealthReport,
    ) -> Result<(), StoreError> {
        let io = &self.inner.io;
        let first = FIRST_RESPONSE_TIMEOUT.max(io.timeout());
        let ping = io.run_on_server::<Value>(server, cmd("PING"), first);
        // An error reply is an answer, too.
        match ping.await {
            Err(error) if !is_refused(&error) => return Err(error),
            _ => {}
        }
        let name = || server.name.clone();
        match self.run::<String>(server, cmd("INFO")).await {
            Err(error) if is_refused(&error) => {
                for what in ["version", "eviction", "role"] {
                    health.add_unchecked(what);
                }
            }
            Err(error) => return Err(error),
            Ok(info) => {
                let info = InfoReply(&info);
                info.check(&name(), health);
                if single && info.field("cluster_enabled") == Some("1") {
                    health.add_issue(HealthIssue::ClusterNode { server: name() });
                }
            }
        }
        let before = SystemClock.wall();
        match self.run::<(i64, i64)>(server, cmd("TIME")).await {
            Err(error) if is_refused(&error) => health.add_unchecked("clock"),
            Err(error) => return Err(error),
            Ok((secs, micros)) => {
                let (after, theirs) = (
                    SystemClock.wall(),
                    Timestamp::from_micros(secs.saturating_mul(1_000_000).saturating_add(micros)),
                );
                io.server_clock.set(theirs);
                let ahead = theirs > after;
                let by = theirs.since(after).max(before.since(theirs));
                if by > MAX_CLOCK_SKEW {
                    let server = name();
                    health.add_issue(HealthIssue::ClockSkew { server, by, ahead });
                }
            }
        }
        Ok(())
    }
}

/// A server's reply to `INFO`.
pub(crate) struct InfoReply<'a>(pub(crate) &'a str);

impl InfoReply<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    pub(crate) fn check(&self, server: &Arc<str>, health: &mut HealthReport) {
        match self.field("redis_version") {
            None => health.add_unchecked("version"),
            Some(version) if version_of(version).is_some_and(|its| its < MIN_VERSION) => {
                health.add_issue(HealthIssue::UnsupportedVersion {
                    server: server.clone(),
                    version: version.into(),
                });
            }
            Some(_) => {}
        }
        match self.field("maxmemory_policy") {
            None => health.add_unchecked("eviction"),
            // Without `maxmemory` nothing is ever evicted.
            Some(policy) if policy != "noeviction" && self.field("maxmemory") != Some("0") => {
                health.add_issue(HealthIssue::EvictionEnabled {
                    server: server.clone(),
                    policy: policy.into(),
                });
            }
            Some(_) => {}
        }
        if self.field("role") == Some("slave") {
            let server = server.clone();
            health.add_issue(HealthIssue::Replica { server });
        }
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Whether the server answered that it does not run a command for this user.
fn is_refused(error: &StoreError) -> bool {
    matches!(error, StoreError::Server { code, .. } if matches!(&**code, "NOPERM" | "ERR"))
}

impl RedisStore {
    /// Charges a request under a limit to a key of its own. Returns whether the server still responds.
    async fn try_policy(
        &self,
        server: &ServerRef,
        limit: &LimitHandle,
        health: &mut HealthReport,
    ) -> bool {
        let counter = OwnedCounterOp::of(&CounterOp::new(limit, self.key_at(server)));
        let Err(error) = self.charge_and_reset(server, &counter).await else {
            return true;
        };
        let responds = !matches!(error, StoreError::Timeout { .. });
        let (policy, server) = (limit.policy().into(), server.name.clone());
        health.add_issue(match error {
            StoreError::Server { code, message } if &*code == "NOPERM" => {
                HealthIssue::MissingPermission {
                    policy,
                    server,
                    message,
                }
            }
            error => HealthIssue::PolicyFailed {
                policy,
                server,
                error,
            },
        });
        responds
    }

    /// Executes the script once, beside the lanes: it charges the key, and resets it.
    async fn charge_and_reset(
        &self,
        server: &ServerRef,
        counter: &OwnedCounterOp,
    ) -> Result<(), StoreError> {
        let (mut batch, mut responses) = (Batch::default(), Vec::new());
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        for op in [Op::Acquire(1), Op::Reset] {
            let state = RequestState::new(op, [counter.clone()].into(), deadline, 0);
            let (mut request, response) = PendingRequest::with_response(state);
            // It is not sent again.
            request.time_synced = true;
            request.retry = Retry::Never;
            batch.push(request).map_err(|_| ended())?;
            responses.push(response);
        }
        let io = &self.inner.io;
        let (script, now) = (io.script(), io.server_clock.now());
        let mut call = |with_text| batch.call(&script, with_text, now);
        let reply = match self.run::<Value>(server, call(false)).await {
            Err(StoreError::Server { code, .. }) if &*code == "NOSCRIPT" => {
                self.run(server, call(true)).await
            }
            reply => reply,
        };
        let _ = wire::decode_and_complete(&mut batch, reply?, &io.server_clock)?;
        for response in responses {
            response.await?;
        }
        Ok(())
    }

    async fn run<T: redis::FromRedisValue>(
        &self,
        server: &ServerRef,
        cmd: Cmd,
    ) -> Result<T, StoreError> {
        let io = &self.inner.io;
        io.run_on_server(server, cmd, RESPONSE_TIMEOUT).await
    }

    /// A key that nothing else uses, on a certain server.
    fn key_at(&self, server: &ServerRef) -> Key {
        loop {
            let key = Key::unique();
            if self.inner.io.tag_of(&key) == server.tag {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_too_old_or_may_evict_keys_are_reported() {
        for (version, policy, maxmemory, issue) in [
            ("6.0.16", "noeviction", 0, Some("6.0.16")),
            ("5.0.7", "noeviction", 0, Some("5.0.7")),
            ("6.1.240", "noeviction", 0, Some("6.1.240")),
            ("2.8", "noeviction", 0, Some("2.8")),
            ("6.2.0", "allkeys-lru", 0, None),
            ("6.10.1", "noeviction", 5_000_000, None),
            ("255.255.255", "noeviction", 0, None),
            ("unknown", "noeviction", 0, None),
            ("7.0.15", "allkeys-lru", 5_000_000, Some("allkeys-lru")),
            ("7.0.15", "allkeys-random", 1, Some("allkeys-random")),
            ("7.0.15", "volatile-ttl", 1, Some("volatile-ttl")),
            ("7.0.15", "volatile-lru", 1, Some("volatile-lru")),
        ] {
            let info = format!(
                "# Server\r\nredis_version:{version}\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n"
            );
            let mut health = HealthReport::default();
            InfoReply(&info).check(&"the server".into(), &mut health);
            let found: Vec<_> = health.issues().iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), issue.iter().len(), "{info}: {found:?}");
            let named = found.iter().zip(issue);
            assert!(
                named
                    .into_iter()
                    .all(|(found, issue)| found.contains(issue))
            );
        }
    }
}

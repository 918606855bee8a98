//! The health check of the Redis store.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value, cmd};
use tokio::time::{Instant, timeout};

use super::{
    RedisStore,
    batch::{Batch, wire},
    request::{
        PendingRequest, RefundRetry, RequestState, ended, limit::RedisLimit, op::OwnedCounterOp,
        response_handle::RollbackGuard,
    },
    topology::Topology,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    error::StoreError,
    key::Key,
    runtime::runtime_with_io,
    store::{
        CounterOp, LimitHandle, Op, OpResult, Store,
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

/// A server, and a hash tag of keys that it has.
pub(crate) struct ServerRef {
    pub(crate) name: Arc<str>,
    pub(crate) tag: usize,
}

impl RedisStore {
    /// Checks each server, and tries each limit there.
    pub(crate) async fn check_health(&self, limits: &[LimitHandle]) -> HealthReport {
        let mut health = HealthReport::default();
        if runtime_with_io().is_none() {
            let server = "the server".into();
            let error = StoreError::NoRuntime("`health_check` waits for the server");
            health.add_issue(HealthIssue::Unreachable { server, error });
            return health;
        }
        let single = matches!(self.inner.shared.topology, Topology::One(_));
        let servers = match timeout(RESPONSE_TIMEOUT, self.inner.shared.topology.servers()).await {
            Ok(Ok(servers)) => servers,
            failed => {
                let server = "the cluster".into();
                let error = failed.ok().and_then(Result::err);
                let error = error.unwrap_or(StoreError::Timeout);
                health.add_issue(HealthIssue::Unreachable { server, error });
                return health;
            }
        };
        for (tag, source) in servers {
            let name = source.server().clone();
            let server = &ServerRef { name, tag };
            let checked = self.check_server(server, single, &mut health).await;
            if let Err(error) = checked {
                let server = server.name.clone();
                health.add_issue(HealthIssue::Unreachable { server, error });
                continue;
            }
            if limits.iter().any(|limit| limit.info().counts_rejections) {
                self.try_scan(server.tag, &mut health).await;
            }
            for limit in limits {
                if !self.self_test_policy(server, limit, &mut health).await {
                    break;
                }
            }
        }
        health
    }

    /// Whether the user may list blocked keys.
    async fn try_scan(&self, tag: usize, health: &mut HealthReport) {
        let mut scan = cmd("SCAN");
        scan.arg(0).arg("COUNT").arg(1);
        let denied = matches!(
            self.run::<Value>(tag, scan).await,
            Err(StoreError::Server { code, .. }) if &*code == "NOPERM"
        );
        if denied {
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
        let first = FIRST_RESPONSE_TIMEOUT.max(self.inner.shared.timeout);
        let ping = self.run::<String>(server.tag, cmd("PING"));
        let _ = timeout(first, ping)
            .await
            .map_err(|_| StoreError::Timeout)??;
        let name = || server.name.clone();
        match self.run::<String>(server.tag, cmd("INFO")).await {
            Err(StoreError::Server { code, .. }) if &*code == "NOPERM" => {
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
        if let Ok((secs, micros)) = self.run::<(i64, i64)>(server.tag, cmd("TIME")).await {
            let (after, theirs) = (
                SystemClock.wall(),
                Timestamp::from_micros(secs.saturating_mul(1_000_000).saturating_add(micros)),
            );
            let ahead = theirs > after;
            let by = theirs.since(after).max(before.since(theirs));
            if by > MAX_CLOCK_SKEW {
                let server = name();
                health.add_issue(HealthIssue::ClockSkew { server, by, ahead });
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

/// Redis's error in a script that runs a command without the right to.
const ACL_ERROR: &str = "user executing the script can't run this command";

impl RedisStore {
    /// Tries every operation on a key under a limit, checks whether the user may run each command that they need, and removes
    /// the key, which also expires by itself. Returns whether the server still responds.
    pub(crate) async fn self_test_policy(
        &self,
        server: &ServerRef,
        limit: &LimitHandle,
        health: &mut HealthReport,
    ) -> bool {
        let Some(context) = limit.context::<RedisLimit>() else {
            return true;
        };
        let key = self.key_at(server);
        let outcome = self.try_operations(server, limit, key).await;
        if let Err(error @ StoreError::Timeout) = outcome {
            health.add_issue(HealthIssue::PolicyFailed {
                policy: limit.policy().into(),
                server: server.name.clone(),
                error,
            });
            return false;
        }
        let script = limit.rule().script();
        let commands = script.map_or_else(Vec::new, |script| commands(script.source));
        let missing_commands = self.missing_commands(server, context.names.of(&key), &commands);
        let (policy, server): (Arc<str>, _) = (limit.policy().into(), server.name.clone());
        let permission_issue = |message: Arc<str>| HealthIssue::MissingPermission {
            policy: policy.clone(),
            server: server.clone(),
            message,
        };
        let named = match missing_commands.await {
            Ok(missing_commands) if missing_commands.is_empty() => None,
            Ok(missing_commands) => Some(permission_issue(missing_message(&missing_commands))),
            Err(StoreError::Server { code, message }) if &*code == "NOPERM" => {
                Some(permission_issue(message))
            }
            // Whatever that is, the operations report it, too.
            Err(_) => None,
        };
        let problem = match outcome {
            Ok(()) => named,
            Err(StoreError::Server { code, message })
                if &*code == "NOPERM" || message.contains(ACL_ERROR) =>
            {
                Some(named.unwrap_or_else(|| permission_issue(message)))
            }
            Err(error) => {
                let (policy, server) = (policy.clone(), server.clone());
                health.add_issue(HealthIssue::PolicyFailed {
                    policy,
                    server,
                    error,
                });
                named
            }
        };
        if let Some(problem) = problem {
            health.add_issue(problem);
        }
        true
    }

    /// Peeks as a request does, with a request's timeout, so that no request in the same batch is delayed.
    async fn peek(&self, counter: &OwnedCounterOp) -> Result<OpResult, StoreError> {
        let (workers, until) = (&self.inner.workers, Instant::now() + RESPONSE_TIMEOUT);
        loop {
            let counters = [counter.clone()].into();
            let response = workers.execute(
                Op::Peek,
                counters,
                workers.deadline(),
                Default::default(),
                RefundRetry::IfUnread,
            )?;
            match response.into_rollback_guard().await {
                Err(StoreError::Timeout) if Instant::now() < until => {}
                result => return read(result?),
            }
        }
    }

    /// Peeks, and then executes all other operations on connections of its own.
    async fn try_operations(
        &self,
        server: &ServerRef,
        limit: &LimitHandle,
        key: Key,
    ) -> Result<(), StoreError> {
        let brief = self.brief_ban(limit)?;
        let limit = brief.as_ref().unwrap_or(limit);
        let counter = OwnedCounterOp::of(&CounterOp::new(limit, key));
        self.peek(&counter).await?;
        let acquired = self
            .execute_direct(server, Op::Acquire(1), &counter)
            .await?;
        let charged = charged(&counter, &acquired);
        if limit.info().permit_ttl.is_some() {
            self.execute_direct(server, Op::Renew, &charged).await?;
        }
        self.execute_direct(server, Op::Refund, &charged).await?;
        let forced = self
            .execute_direct(server, Op::ForceAcquire, &counter)
            .await?;
        let charged = self::charged(&counter, &forced);
        self.execute_direct(server, Op::Refund, &charged).await?;
        self.execute_direct(server, Op::Peek, &counter).await?;
        self.execute_direct(server, Op::Reset, &counter).await?;
        Ok(())
    }

    /// A copy, with blocks of one millisecond, of a limit that blocks on the first charge; `None` for other limits.
    fn brief_ban(&self, limit: &LimitHandle) -> Result<Option<LimitHandle>, StoreError> {
        let blocks = limit.info().counts_rejections && limit.info().capacity == 1;
        let brief = limit.rule().manual_ban(Duration::from_millis(1));
        let Some(brief) = brief.filter(|_| blocks) else {
            return Ok(None);
        };
        const NO_BAN: StoreError = StoreError::Unsupported("a ban of a millisecond");
        let registered = brief.and_then(|rule| self.register(limit.policy(), rule));
        registered.map(Some).map_err(|_| NO_BAN)
    }

    /// Executes an operation beside the workers, without invalidating cached rejections. Its key expires after ten seconds.
    async fn execute_direct(
        &self,
        server: &ServerRef,
        op: Op,
        counter: &OwnedCounterOp,
    ) -> Result<OpResult, StoreError> {
        let mut batch = Batch::default();
        let (counters, deadline) = ([counter.clone()].into(), Instant::now() + RESPONSE_TIMEOUT);
        let (mut request, response) =
            PendingRequest::with_response(RequestState::new(op, counters, deadline, 0), None);
        // It is not sent again, nor later: by then its key would live longer.
        (request.time_synced, request.send_alone) = (true, true);
        request.refund_retry = RefundRetry::Never;
        batch.push(request).map_err(|_| ended())?;
        let shared = &self.inner.shared;
        let script = shared.script().within(include_str!("temporary.lua"));
        let now = shared.server_clock.now();
        let mut call = |with_text| batch.call(&script, with_text, now);
        let reply = match self.run::<Value>(server.tag, call(false)).await {
            Err(StoreError::Server { code, .. }) if &*code == "NOSCRIPT" => {
                self.run(server.tag, call(true)).await
            }
            reply => reply,
        };
        let _ = wire::decode_and_complete(&mut batch, reply?)?;
        read(response.into_rollback_guard().await?)
    }

    /// The commands that the user may not run on a key.
    async fn missing_commands(
        &self,
        server: &ServerRef,
        key: String,
        commands: &[&str],
    ) -> Result<Vec<String>, StoreError> {
        let mut eval = cmd("EVAL");
        eval.arg(include_str!("acl_check.lua")).arg(1).arg(key);
        self.run(server.tag, eval.arg(commands).clone()).await
    }

    pub(crate) async fn run<T: redis::FromRedisValue>(
        &self,
        tag: usize,
        cmd: Cmd,
    ) -> Result<T, StoreError> {
        let result = timeout(RESPONSE_TIMEOUT, self.inner.shared.topology.run(tag, &cmd)).await;
        Ok(result.map_err(|_| StoreError::Timeout)??)
    }

    /// A key that nothing else uses, on a certain server.
    fn key_at(&self, server: &ServerRef) -> Key {
        loop {
            let key = Key::unique();
            if self.inner.shared.topology.tag_of(&key) == server.tag {
                return key;
            }
        }
    }
}

fn read(mut guard: RollbackGuard) -> Result<OpResult, StoreError> {
    guard.read().ok_or_else(ended)
}

/// The counter that refunds what was charged.
fn charged(counter: &OwnedCounterOp, result: &OpResult) -> OwnedCounterOp {
    let mut counter = counter.clone();
    if let Some(snapshot) = result.counters.first().map(|counter| &counter.snapshot) {
        counter.set_refund(1, snapshot, result.at);
    }
    counter
}

fn missing_message(commands: &[String]) -> Arc<str> {
    let names: Vec<_> = commands.iter().map(|name| format!("'{name}'")).collect();
    format!("the user may not run {}", names.join(", ")).into()
}

/// The commands that the functions of a strategy call, and those that the driver calls for them. A fast path leaves requests
/// to the functions if it may not run a command.
fn commands(source: &'static str) -> Vec<&'static str> {
    let calls = source.split("call(").skip(1);
    let calls = calls.chain(source.split("call, ").skip(1));
    let names = calls.filter_map(|rest| rest.strip_prefix('\'')?.split('\'').next());
    let mut names: Vec<_> = names.chain(["DEL", "TIME"]).collect();
    if source.contains("expiry(") || source.contains("cap_ttl(") {
        names.push("PEXPIRETIME");
    }
    if source.contains("cap_ttl(") {
        names.push("PEXPIREAT");
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(info: &str) -> Vec<String> {
        let mut health = HealthReport::default();
        InfoReply(info).check(&"the server".into(), &mut health);
        health.issues().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn servers_before_six_two_are_old() {
        let info = |version| format!("# Server\r\nredis_version:{version}\r\nmaxmemory:0\r\n");
        for old in ["6.0.16", "5.0.7", "6.1.240", "2.8"] {
            let found = problems(&info(old));
            assert_eq!(found.len(), 1, "{old}");
            assert!(found[0].contains(old), "{found:?}");
        }
        for new in [
            "6.2.0",
            "6.10.1",
            "7.0.15",
            "8.2.1",
            "255.255.255",
            "unknown",
        ] {
            assert_eq!(problems(&info(new)), [""; 0], "{new}");
        }
    }

    #[test]
    fn a_server_that_evicts_keys_is_distinguished_from_one_that_does_not() {
        let info = |policy, max| format!("maxmemory:{max}\r\nmaxmemory_policy:{policy}\r\n");
        assert_eq!(problems(&info("allkeys-lru", "0")), [""; 0]);
        assert_eq!(problems(&info("noeviction", "5000000")), [""; 0]);
        for policy in [
            "allkeys-lru",
            "volatile-ttl",
            "volatile-lru",
            "allkeys-random",
        ] {
            let found = problems(&info(policy, "5000000"));
            assert!(found.len() == 1 && found[0].contains(policy), "{found:?}");
        }
    }

    #[test]
    fn commands_are_found_in_the_functions_of_a_strategy() {
        let source = "local x = call('GET', key)\npcall(call, 'SET', key)\ncall('GET', key)";
        assert_eq!(commands(source), ["DEL", "GET", "SET", "TIME"]);
        let source = "call('GET', key)\ncap_ttl(key, 5)";
        let found = commands(source);
        assert_eq!(found, ["DEL", "GET", "PEXPIREAT", "PEXPIRETIME", "TIME"]);
    }
}

//! Blocks of the documents that are not compared with the output of a session.

/// Blocks that other tests compare or read: the page, the language of the blocks, and the test.
pub(crate) const COMPARED_ELSEWHERE: &str = r#"
docs/configuration.md | toml | tests/memory/documents/guide.rs
docs/configuration.md | text | tests/memory/documents/guide.rs
docs/guide/envoy.md | yaml | server/src/document/tests.rs
docs/guide/migration.md | text | benches/ours/tests/migration/main.rs
"#;

/// Blocks that no test compares: the page, the first line of the block, and the reason.
pub(crate) const NOT_COMPARED: &str = r#"
docs/guide/migration-from-counters.md | limiter = Limiter(get_remote_address, app=app, application_limits=["1000 per hour"], | another project's program, which is replaced
docs/guide/migration-from-counters.md | app.set('trust proxy', 1) | another project's program, which is replaced
docs/guide/testing.md | services: | a part of a workflow, which GitHub runs
docs/metrics.md | 187 + 22 * policies + 3 * shadow policies + 36 * servers | a formula: tests/redis/metrics/series.rs counts by it
docs/metrics.md | sum by (policy) (rate(tollgate_policy_requests_total{result="over"}[5m])) | a query without an output
examples/README.md | $ REDIS_URL=redis://127.0.0.1:6379 cargo run --example llm_client | how many calls are refused depends on when they arrive: tests/process/examples runs it without any
docs/operations.md | tg:g3:burst:192.0.2.1 | forms of keys: tests/redis/strategies/formats has those of each strategy
"#;

/// The lines of such a list.
pub(crate) fn rows(list: &'static str) -> impl Iterator<Item = [&'static str; 3]> {
    let row = |line: &'static str| {
        let mut parts = line.split(" | ");
        [(); 3].map(|()| parts.next().expect("a page, a block and why"))
    };
    list.trim().lines().map(row)
}

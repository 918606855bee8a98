//! Random documents, which survive being written, built and described.

use crate::documents::support::*;
use proptest::prelude::*;

/// One of these lines, or none.
fn line(lines: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::option::of(prop::sample::select(lines)).prop_map(|line| match line {
        Some(line) => format!("{line}\n"),
        None => String::new(),
    })
}

/// A quota, and a strategy that counts it.
const QUOTAS: &[&str] = &[
    "quota = '100/min'",
    "quota = '100/min burst 20'\nstrategy = 'token_bucket'",
    "quota = '5000 per day'\nstrategy = 'calendar_window zone Europe/Berlin week_starts_on sunday'",
    "quota = '60/h'\nstrategy = 'sliding_window buckets 10'",
    "quota = '60/h'\nstrategy = 'sliding_log'",
    "quota = '60/h'\nstrategy = 'own'",
    "quota = '60/90s'\nstrategy = 'fixed_window'",
];

const KEYS: &[&str] = &[
    "key = 'peer ipv6_prefix 56'",
    "key = 'client_ip'",
    "key = ['header:x-tenant readable', 'path']",
    "key = 'user | same(header:x-api-key, bearer) | global'",
    "key = \"header:x-a | [query:a, cookie:b readable]\"",
    "key = 'bearer'\nmissing_key = 'skip'",
    "by_hand = true",
];

const COSTS: &[&str] = &[
    "cost = 5",
    "cost = 0",
    "cost = 'tokens'",
    "cost = [{ method = 'POST', path = '/upload/*', cost = 10 }, { path = '/a', cost = 0 }]",
];

const CHARGES: &[&str] = &[
    "charge = 'arrival'",
    "charge = { after = 'teapot' }\ncharge_dropped = false",
    "charge = { refund_unless = 'success' }",
    "charge_rejected = true",
];

const TIERS: &[&str] = &["quota_with = 'quota'"];

const CONDITIONS: &[&str] = &[
    "skip = { paths = ['/health', '/static/*'], methods = ['OPTIONS'], with = ['internal'] }",
    "only = { paths = ['/api/*'] }\nskip = { with = ['paid', 'internal'] }",
];

const ON_STORE_ERROR: &[&str] = &[
    "on_store_error = 'admit'",
    "on_store_error = 'reject'",
    "on_store_error = { local_fallback = { processes = 4 } }",
    "on_store_error = { local_fallback = { processes = 4 } }",
];

/// A lease that each of the quotas has room for.
const LEASES: &[&str] = &[
    "lease = { max_units = 64 }",
    "lease = { max_units = 2, ttl = '5ms' }",
    "lease = { ttl = '7500us', max_units = 1000000 }",
];

fn policy() -> impl Strategy<Value = String> {
    let quota = prop::sample::select(QUOTAS).prop_map(|quota| format!("{quota}\n"));
    let settings = (
        quota,
        line(KEYS),
        line(COSTS),
        line(CHARGES),
        line(TIERS),
        line(CONDITIONS),
        line(ON_STORE_ERROR),
        line(&["caller = '[peer, method]'"]),
        line(LEASES),
    );
    settings.prop_map(|(a, b, c, d, e, f, g, h, lease)| {
        let text = [a, b, c, d, e, f, g, h].concat();
        // What is charged later, or although it is rejected, is not leased.
        match text.contains("after =") || text.contains("charge_rejected") {
            true => text,
            false => text + &lease,
        }
    })
}

/// The text of a document.
fn text() -> impl Strategy<Value = String> {
    let settings = (
        line(&[
            "headers = 'x_ratelimit'",
            "headers = { format = 'x_ratelimit', jitter = '2s' }",
            "headers = 'none'",
            "headers = { format = 'openai', requests = 'p0' }\nrejections = 'openai'",
            "headers = { format = 'anthropic', tokens = 'p0', output_tokens = 'p0' }",
        ]),
        line(&[
            "on_rejection = 'page'",
            "rejection = { body = 'Wait {retry_after} s.' }",
        ]),
        line(&[
            "enabled = false",
            "refund_handler_rejections = true",
            "count_preflights = true",
        ]),
        line(ON_STORE_ERROR),
        line(CONDITIONS),
        line(&[
            "deny = [{ addresses = ['192.0.2.0/24', '2001:db8::1/128'] }]\non_unknown_address = 'reject'",
        ]),
        line(&["on_misconfiguration = 'as_store_error'"]),
        line(&[
            "client_ip = { trusted_proxies = ['10.0.0.0/8'], ipv6_prefix = 48 }",
            "client_ip.hops = 2",
        ]),
        line(&[
            "store = { url = 'redis://127.0.0.1:1/3', timeout = '50ms', rejection_cache = false }",
            "store = { cluster = ['redis://127.0.0.1:1', 'redis://127.0.0.1:2'], hash_tags = 64, overrides = false }",
            "store = { sentinel = { master = 'm', urls = ['redis://127.0.0.1:1'] }, circuit_breaker_threshold = false }",
        ]),
    );
    (settings, prop::collection::vec((policy(), 0..4), 1..4)).prop_map(|(s, policies)| {
        let (a, b, c, d, e, f, g, h, i) = s;
        let mut text = [a, b, c, d, e, f, g, h, i].concat();
        for (index, (policy, kind)) in policies.into_iter().enumerate() {
            text.push_str(&format!("[policies.p{index}]\n{policy}"));
            // A policy that charges rejections, or has leases, is no shadow.
            let is_charged = policy.contains("charge_rejected") || policy.contains("lease");
            if kind == 1 && !is_charged {
                text.push_str("shadow = true\n");
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_document_survives_being_written_and_built_and_described(text in text()) {
        let document = Document::parse(&text, Format::Toml).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        for format in [Format::Toml, Format::Yaml, Format::Json] {
            let written = document.to_text(format).expect("a text");
            prop_assert_eq!(&Document::parse(&written, format).expect("its own text"), &document);
        }
        let registry = registry();
        let layer = document.layer(&registry).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        let described = layer.document();
        let again = described.layer(&registry).map_err(|error| TestCaseError::fail(format!("{error}\n{:?}", described.to_text(Format::Toml))))?;
        prop_assert_eq!(again.document(), described.clone());
        // What it says is what is in force.
        let changes = described.reconfigure_layer(&layer, &registry).expect("the same");
        prop_assert!(changes.is_empty(), "{}\n{:?}", changes, described.to_text(Format::Toml));
        let changes = document.reconfigure_layer(&layer, &registry).expect("the same");
        prop_assert!(changes.is_empty(), "{}\n{}", changes, text);
    }
}

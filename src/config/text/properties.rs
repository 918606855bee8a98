//! Whatever is written as text is read back as the same.

use std::{sync::Arc, time::Duration};

use http::request::Parts;
use proptest::prelude::*;

use super::*;
use crate::{
    Ban, CalendarWindow, Concurrency, SlidingWindow,
    config::Registry,
    extract::{self, KeyExtractor, PeerAddr},
};

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z][a-z0-9-]{0,12}",
        "[!#$%&'*+.^_`|~a-z-]{1,8}",
        r#"[ "\\|(),\[\]a-zé]{1,8}"#
    ]
}

fn field() -> impl Strategy<Value = Arc<dyn KeyExtractor>> {
    (0..3_u8, 0..3_u8, name()).prop_map(|(kind, setting, name)| {
        macro_rules! with {
            ($key:expr) => {
                match setting {
                    0 => Arc::new($key) as Arc<dyn KeyExtractor>,
                    1 => Arc::new($key.secret()),
                    _ => Arc::new($key.readable()),
                }
            };
        }
        match kind {
            0 => with!(extract::header(name)),
            1 => with!(extract::query(name)),
            _ => with!(extract::cookie(name)),
        }
    })
}

fn by_address() -> impl Strategy<Value = Arc<dyn KeyExtractor>> {
    let networks = prop::option::of(prop::collection::vec(
        prop_oneof![
            "10\\.[0-9]\\.0\\.0/16",
            "192\\.0\\.2\\.[1-9]",
            "2001:db8:[1-9a-f]::/48"
        ],
        0..4,
    ));
    let bits = (prop::option::of(0..=128_u8), prop::option::of(0..=32_u8));
    (networks, prop::option::of(1..=64_usize), 0..4_u8, bits).prop_map(
        |(networks, hops, source, (v6, v4))| {
            let mut client_ip = extract::client_ip();
            if let Some(networks) = networks {
                client_ip = client_ip.trusted_proxies(networks);
            }
            if let Some(hops) = hops {
                client_ip = client_ip.hops(hops);
            }
            client_ip = match source {
                0 => client_ip.forwarded(),
                1 => client_ip.header("x-real-ip"),
                _ => client_ip,
            };
            let peer = match v6 {
                Some(bits) => extract::peer().ipv6_prefix(bits),
                None => extract::peer(),
            };
            if let Some(bits) = v4 {
                client_ip = client_ip.ipv4_prefix(bits);
            }
            match client_ip.validate() {
                Ok(()) => Arc::new(client_ip) as Arc<dyn KeyExtractor>,
                Err(_) => Arc::new(peer),
            }
        },
    )
}

/// Any built-in extractor that a limiter accepts, and combinations.
fn extractor() -> impl Strategy<Value = Arc<dyn KeyExtractor>> {
    let plain = (0..8_u8).prop_map(|kind| match kind {
        0 => Arc::new(extract::host()) as Arc<dyn KeyExtractor>,
        1 => Arc::new(extract::path()),
        2 => Arc::new(extract::method()),
        3 => Arc::new(extract::grpc_service()),
        4 => Arc::new(extract::grpc_method()),
        5 => Arc::new(extract::global()),
        6 => Arc::new(extract::bearer()),
        _ => Arc::new(extract::peer()),
    });
    let valid = |extractor: &Arc<dyn KeyExtractor>| extractor.validate().is_ok();
    let leaf = prop_oneof![plain, field(), by_address()].prop_filter("a valid one", valid);
    leaf.prop_recursive(3, 12, 4, |inner| {
        (0..5_u8, prop::collection::vec(inner, 4)).prop_map(|(kind, keys)| {
            let [a, b, c, d] = <[_; 4]>::try_from(keys).expect("four");
            match kind {
                0 => Arc::new(a.or_else(b)) as Arc<dyn KeyExtractor>,
                1 => Arc::new(a.or_else(b).or_else(c)),
                2 => Arc::new(a.or_same(b)),
                3 => Arc::new((a, b, c)),
                _ => Arc::new((a, b, c, d)),
            }
        })
    })
}

fn request() -> impl Strategy<Value = Parts> {
    let value = || prop::option::of("[a-z0-9.]{1,8}");
    (
        value(),
        value(),
        value(),
        any::<[u8; 4]>(),
        "(/[a-z]{1,4}){0,3}",
    )
        .prop_map(|(header, token, cookie, address, path)| {
            let mut request = http::Request::get(format!("/{path}?map=old&x=1"));
            if let Some(header) = header {
                request = request.header("x-forwarded-for", format!("192.0.2.9, {header}"));
                request = request
                    .header("x-real-ip", "192.0.2.77")
                    .header("host", header);
            }
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some(cookie) = cookie {
                request = request.header("cookie", format!("a={cookie}"));
            }
            let address = std::net::SocketAddr::from((address, 80));
            let request = request.extension(PeerAddr(address)).body(());
            request.expect("a request").into_parts().0
        })
}

proptest! {
    #[test]
    fn an_extractor_is_read_back_with_the_same_text_and_keys(
        extractor in extractor(),
        requests in prop::collection::vec(request(), 8),
    ) {
        let text = extractor.config_text().expect("a text");
        let parsed = parse_key(&text, &Registry::new()).map_err(|error| TestCaseError::fail(format!("{text}: {error:?}")))?;
        prop_assert_eq!(parsed.config_text(), Some(text));
        prop_assert_eq!(parsed.on_missing_key(), extractor.on_missing_key());
        prop_assert_eq!(parsed.fixed_key(), extractor.fixed_key());
        for parts in &requests {
            prop_assert_eq!(parsed.extract(parts), extractor.extract(parts));
        }
    }

    #[test]
    fn any_text_is_a_key_or_a_mistake(text in r#"([a-z_]{1,9}|[|()\[\],:" \\]|[0-9./]{1,9}|same|client_ip|header|hops|trusted_proxies){0,20}"#) {
        if let Ok(key) = parse_key(&text, &Registry::new()) {
            let written = key.config_text().expect("a text").into_owned();
            let again = parse_key(&written, &Registry::new()).expect("a key");
            let text = again.config_text();
            prop_assert_eq!(text.as_deref(), Some(&*written));
        }
        let _ = parse_strategy(&text, &Registry::new());
    }

    #[test]
    fn a_strategy_is_read_back(seconds in 1..90_000_u64, more in prop::option::of(0..90_000_u64), buckets in 1..100_u32, day in 0..7_usize) {
        let day = crate::strategy::Weekday::ALL[day];
        let [duration, ttl] = [seconds, seconds * 7 % 86_400].map(Duration::from_secs);
        let ban = Ban::for_duration(duration);
        let longest = more.map(|more| duration + Duration::from_secs(more));
        let strategies: [Arc<dyn crate::strategy::Strategy>; 6] = [
            Arc::new(SlidingWindow::buckets(buckets)),
            Arc::new(CalendarWindow::east_of_utc(ttl).week_starts_on(day)),
            Arc::new(CalendarWindow::west_of_utc(ttl).week_starts_on(day)),
            Arc::new(CalendarWindow::from_epoch().week_starts_on(day)),
            Arc::new(Concurrency::with_ttl(ttl)),
            Arc::new(longest.map_or(ban, |longest| ban.max_duration(longest))),
        ];
        for strategy in strategies {
            let text = strategy.config_text().expect("a text");
            let parsed = parse_strategy(&text, &Registry::new()).expect("a strategy");
            prop_assert_eq!(parsed.config_text(), Some(text));
            prop_assert_eq!(format!("{parsed:?}"), format!("{strategy:?}"));
        }
    }
}

//! Our lists are structured fields (RFC 9651), as another library reads them.

use crate::http::support::*;
use proptest::prelude::*;
use sfv::{BareItem, Item, List, ListEntry, Parser};

/// Every character that a name may have, in names of at most 64.
pub(crate) fn names() -> Vec<String> {
    let allowed: Vec<char> = (' '..='~').filter(|c| !matches!(c, '"' | '\\')).collect();
    let edges = |name: String| name.trim().to_owned();
    allowed
        .chunks(60)
        .map(|chunk| edges(format!("a{}z", String::from_iter(chunk))))
        .collect()
}

/// A field's members.
fn list(response: &TestResponse, name: &str) -> Vec<Item> {
    let field = response.field(name);
    let list: List = Parser::new(&field).parse().expect("a list");
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(inner) => panic!("{inner:?}"),
    });
    items.collect()
}

fn string(item: &Item) -> &str {
    item.bare_item.as_string().expect("a string").as_str()
}

/// A parameter that is an integer.
fn integer(item: &Item, name: &str) -> Option<i64> {
    let value: &BareItem = item.params.get(name)?;
    Some(i64::from(value.as_integer().expect("an integer")))
}

pub(crate) async fn response_of(
    headers: RateLimitHeaders,
    policies: Vec<Policy>,
    times: usize,
) -> TestResponse {
    let (layer, _) = crate::http::support::layer(policies);
    let app = crate::http::support::hello(&layer.headers(headers));
    for _ in 1..times {
        send(&app, to("/")).await;
    }
    send(&app, to("/")).await
}

#[tokio::test]
async fn names_of_all_allowed_characters_parse_unchanged() {
    let names = names();
    let policies = names.iter().map(|name| shared(name, "5/min"));
    let response = response_of(RateLimitHeaders::draft(), policies.collect(), 1).await;
    for field in ["ratelimit", "ratelimit-policy"] {
        let items = list(&response, field);
        assert_eq!(items.iter().map(string).collect::<Vec<_>>(), names);
    }
}

proptest! {
    #[test]
    fn quotas_of_any_size_parse_unchanged(
        requests in prop_oneof![1..=999_999_999_999_999_u64, 1..100_u64],
        seconds in 1..=31_536_000_u64,
        times in 1..4_usize,
        closest: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let quota = Quota::requests(requests).per(std::time::Duration::from_secs(seconds));
        let policy = Policy::new("any", quota).strategy(FixedWindow).key(extract::global());
        let fits = RateLimitLayer::builder().policy(policy.clone()).build().is_ok();
        prop_assume!(fits);
        let [draft, old] = [RateLimitHeaders::draft(), RateLimitHeaders::draft_06()].map(|headers| {
            let headers = if closest { headers.closest() } else { headers };
            runtime.block_on(response_of(headers, vec![policy.clone()], times))
        });
        let used = (times as u64).min(requests);

        let items = list(&draft, "ratelimit-policy");
        prop_assert_eq!(string(&items[0]), "any");
        prop_assert_eq!(integer(&items[0], "q"), Some(requests as i64));
        prop_assert_eq!(integer(&items[0], "w"), Some(seconds as i64));
        let items = list(&draft, "ratelimit");
        prop_assert_eq!(string(&items[0]), "any");
        prop_assert_eq!(integer(&items[0], "r"), Some((requests - used) as i64));
        let t = integer(&items[0], "t").expect("a time");
        prop_assert!((0..=seconds as i64).contains(&t), "{}", t);

        let items = list(&old, "ratelimit-policy");
        let quota = i64::from(items[0].bare_item.as_integer().expect("an integer"));
        prop_assert_eq!(quota, requests as i64);
        prop_assert_eq!(integer(&items[0], "w"), Some(seconds as i64));
        for (name, value) in [("ratelimit-limit", requests), ("ratelimit-remaining", requests - used)] {
            let field = old.field(name);
            let item: Item = Parser::new(&field).parse().expect("an item");
            prop_assert_eq!(i64::from(item.bare_item.as_integer().expect("an integer")), value as i64);
        }
    }
}

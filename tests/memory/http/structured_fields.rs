//! Our lists are structured fields (RFC 9651), as a parser of another language reads them.

use crate::http::{support, support::*};

/// The last of the responses to so many requests.
async fn response_of(headers: Headers, policies: Vec<Policy>, times: usize) -> TestResponse {
    let app = hello(&layer(policies).0.headers(headers));
    statuses(&app, times - 1).await;
    send(&app, to("/")).await
}

/// What Python makes of these fields: each is its type, and its value.
fn read(fields: &[(&str, String)]) -> Vec<Value> {
    let fields = serde_json::to_string(fields).expect("JSON");
    let read = testkit::python("structured.py", &[], &fields);
    serde_json::from_str(&read).expect("a list of JSON")
}

fn list(response: &TestResponse, name: &str) -> (&'static str, String) {
    ("list", response.field(name))
}

#[tokio::test]
async fn a_name_may_have_every_allowed_character_at_any_position() {
    let allowed = || (' '..='~').filter(|c| !matches!(c, '"' | '\\'));
    // What looks like syntax, if it isn't quoted.
    let syntax = ["*", "?1", ":YQ==:", "1.5", "@1", "a;q=1", "a, b", "(a b)"];
    let mut all = syntax.map(String::from).to_vec();
    // As many in a name as it may have.
    let chars: Vec<char> = allowed().collect();
    let long = |chars: &[char]| format!("a{}z", String::from_iter(chars));
    all.extend(chars.chunks(60).map(long));
    all.extend(allowed().map(|c| format!("a{c}z")));
    all.extend(allowed().filter(|c| *c != ' ').map(String::from));
    all.sort();
    all.dedup();
    for some in all.chunks(32) {
        let policies: Vec<_> = some.iter().map(|name| shared(name, "5/min")).collect();
        let response = response_of(Headers::draft(), policies, 1).await;
        let fields = ["ratelimit-policy", "ratelimit"].map(|name| list(&response, name));
        let expected = |parameters: Value| -> Value {
            some.iter().map(|name| json!([name, parameters])).collect()
        };
        let expected = [
            expected(json!({"q": 5, "w": 60})),
            expected(json!({"r": 4, "t": 48})),
        ];
        assert_eq!(read(&fields), expected);
    }
}

/// Quotas of every length that is counted, in windows of every length.
fn quotas() -> Vec<(u64, u64)> {
    let powers = (0..15).map(|power| 10_u64.pow(power));
    let requests = powers.flat_map(|power| [power, 9 * power, 10 * power - 1]);
    let seconds = [1, 2, 59, 60, 3_600, 86_400, 604_800, 31_536_000];
    let every = requests.flat_map(|n| seconds.map(|s| (n, s)));
    every.collect()
}

#[tokio::test]
async fn quotas_of_every_length_parse_unchanged() {
    let (mut fields, mut expected) = (Vec::new(), Vec::new());
    for (requests, seconds) in quotas() {
        let quota = Quota::requests(requests).per(secs(seconds));
        let policy = Policy::new("any", quota).strategy(FixedWindow);
        let policies = vec![policy.key(extract::global())];
        // The last one may be rejected, and shows nothing else.
        let used = requests.min(2);
        let draft = response_of(Headers::draft(), policies, 2).await;
        fields.extend([list(&draft, "ratelimit-policy"), list(&draft, "ratelimit")]);
        let left = requests - used;
        // The clock is frozen: the reset is that of the whole window.
        expected.extend([
            json!([["any", {"q": requests, "w": seconds}]]),
            json!([["any", {"r": left, "t": seconds}]]),
        ]);
    }
    let read = read(&fields);
    assert_eq!(read.len(), expected.len());
    for (field, (read, expected)) in fields.iter().zip(read.iter().zip(&expected)) {
        assert_eq!(read, expected, "{field:?}");
    }
}

#[tokio::test]
async fn windows_of_fractional_seconds_and_in_flight_limits_parse_unchanged() {
    let permit_policy = Policy::new("places", Quota::concurrent(3)).key(extract::global());
    let of = |name, millis| {
        let quota = Quota::requests(7).per(ms(millis));
        let policy = Policy::new(name, quota).strategy(FixedWindow);
        policy.key(extract::global())
    };
    let policies = vec![permit_policy, of("half", 500), of("one and a half", 1_500)];
    let response = response_of(Headers::draft(), policies, 1).await;
    let expected = json!([
        ["places", {"q": 3, "qu": "concurrent-requests"}],
        ["half", {"q": 7}],
        ["one and a half", {"q": 7, "w": 2}],
    ]);
    assert_eq!(read(&[list(&response, "ratelimit-policy")]), [expected]);
}

#[tokio::test]
async fn header_lines_of_stacked_layers_are_one_list() {
    let layer = |name| -> RateLimitLayer { support::layer([shared(name, "5/min")]).0 };
    let app = hello(&layer("inner")).layer(layer("outer"));
    let response = send(&app, to("/")).await;
    assert_eq!(response.headers.get_all("ratelimit").iter().count(), 2);
    let expected = json!([["inner", {"q": 5, "w": 60}], ["outer", {"q": 5, "w": 60}]]);
    assert_eq!(read(&[list(&response, "ratelimit-policy")]), [expected]);
}

#[test]
fn an_invalid_structured_field_is_an_error() {
    #[rustfmt::skip]
    let invalid = ["\"a", "a b", "\"a\\b\"", "1;", "\"\u{7f}\"", "9999999999999999"];
    for value in invalid {
        let read = std::panic::catch_unwind(|| read(&[("list", value.to_owned())]));
        assert!(read.is_err(), "{value}: {read:?}");
    }
}

//! Names of callers beside hashed keys.

use tollgate::admin::{Activity, Admin};
use tollgate_tests::{prelude::*, service::send};
use tracing::Level;

use crate::admin::support::*;

/// A limiter of two requests an hour, whose callers are named by a header, and how often they were.
fn named() -> (Limiter, Arc<Activity>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let by_key = |policy: Policy| policy.key(extract::header("x-api-key"));
    let api = Policy::new("api", Quota::requests(2).per_hour()).label_with(move |parts| {
        counted.fetch_add(1, Ordering::Relaxed);
        let name = parts.headers.get("x-name")?;
        Some(name.to_str().ok()?.to_owned())
    });
    let abuse = Policy::new("abuse", Quota::requests(1).per_hour())
        .strategy(Ban::for_duration(secs(3_600)))
        .label_with(|_| Some("banned".to_owned()));
    let readable = Policy::new("user", Quota::requests(9).per_hour());
    let activity = Arc::new(Activity::new());
    let limiter = Limiter::builder()
        .policy(by_key(api))
        .policy(by_key(abuse))
        .policy(
            readable
                .key(extract::header("x-name"))
                .label_with(|_| Some("unused".to_owned())),
        )
        .observe(activity.clone())
        .build();
    (limiter.expect("a limiter"), activity, calls)
}

fn request(key: &str, name: &str) -> http::request::Builder {
    Request::get("/")
        .header("x-api-key", key)
        .header("x-name", name)
}

fn of<'a>(list: &'a Value, policy: &str) -> &'a Value {
    let mut list = list.as_array().expect("a list").iter();
    let found = list.find(|one| one["policy"] == policy);
    found.expect("the policy")
}

#[tokio::test]
async fn a_rejected_caller_is_named_wherever_its_key_is_shown() {
    let (limiter, activity, calls) = named();
    let layer = RateLimitLayer::new(limiter.clone());
    let log = Log::default();
    let _guard = log.at(Level::DEBUG);
    for _ in 0..2 {
        assert_eq!(send(&layer, request("sk_1", "acme")).await, 200);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0, "of admitted requests");
    assert_eq!(send(&layer, request("sk_1", "acme")).await, 429);
    let lines = log.lines("a request was rejected");
    let [line] = &lines[..] else {
        panic!("logged once: {lines:?}");
    };
    assert!(line.contains("label=\"acme\""), "{line}");

    let admin = Admin::new(&limiter).token("ops", TOKEN).activity(activity);
    let api = Api(admin.router().expect("an admin API"));
    let top = api.get("/top").await.json;
    let top = of(&top["policies"], "api")["keys"][0].clone();
    assert_eq!(
        (&top["key"], &top["label"]),
        (&json!(shown("sk_1")), &json!("acme"))
    );
    let blocks = api.get("/blocks").await.json;
    assert_eq!(of(&blocks["blocks"], "abuse")["label"], "banned");

    // Of a request as given, also one that was never made. A readable key needs no name.
    let head = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_2"], ["x-name", "other"]]});
    let explained = api.done("/explain", head.clone()).await;
    assert_eq!(of(&explained["policies"], "api")["label"], "other");
    assert_eq!(of(&explained["policies"], "user").get("label"), None);
    // The request is not that of the key that is given.
    let mut with_key = head;
    with_key["keys"] = json!({"api": "sk_1"});
    let explained = api.done("/explain", with_key).await;
    assert_eq!(of(&explained["policies"], "api")["label"], "acme");

    api.done("/reset", about("api", "sk_1")).await;
    let lines = log.lines("change=\"reset\"");
    assert!(lines[0].contains("label=\"acme\""), "{lines:?}");
    api.done(
        "/reset",
        about("api", Key::secret("sk_3").as_str().replace('#', "hash:")),
    )
    .await;
    let lines = log.lines("change=\"reset\"");
    assert!(!lines[1].contains("label"), "{lines:?}");
}

#[tokio::test]
async fn names_stay_when_policies_are_replaced_and_a_call_by_hand_has_none() {
    let (limiter, _, _) = named();
    let layer = RateLimitLayer::new(limiter.clone());
    let log = Log::default();
    let _guard = log.at(Level::DEBUG);
    for _ in 0..3 {
        send(&layer, request("sk_1", "acme")).await;
    }
    let (settings, _, _) = named();
    let policies = settings.policies();
    limiter
        .reconfigure(
            policies
                .into_iter()
                .fold(Limiter::builder(), |all, one| all.policy(one)),
        )
        .expect("valid");
    let key = Key::secret("sk_1");
    assert!(!limiter.check([("api", key)]).await.is_admitted());
    let lines = log.lines("a request was rejected");
    assert_eq!(lines.len(), 2);
    assert!(lines[1].contains("label=\"acme\""), "{lines:?}");
}

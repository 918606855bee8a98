//! Rules of documents of tollgate's own format, which can say more than the reference server's.

use tollgate_server::{
    document::{Options, Text, parse},
    rules::Rules,
};
use tonic::Code;

use crate::{
    client::{cost, descriptor, header, is_over, limit_of, request},
    scene::served,
};

fn rules(descriptors: &str) -> Rules {
    let text = format!("format: tollgate/v1\ndomain: test\ndescriptors:\n{descriptors}");
    let text = Text {
        file: "rules",
        text: &text,
    };
    parse(&[text], Options::default()).expect("rules")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_is_over_if_one_of_its_limits_is_and_is_charged_to_all_or_none() {
    let client = served(rules(
        "
  - key: tenant
    limits:
      - { name: burst, quota: 5/h, strategy: calendar_window from_epoch }
      - { name: month, quota: 8/month, calendar: true }
",
    ))
    .await;
    let tenant = || descriptor([("tenant", "a")]);
    let first = client.ask([cost(tenant(), 4)]).await;
    // The limit with the fewest units left.
    assert_eq!(first.statuses[0].limit_remaining, 1);
    assert_eq!(limit_of(&first).name, "burst");
    let both = header(&first, "ratelimit").expect("a field");
    assert_eq!(both.matches(";r=").count(), 2);
    let refused = client.ask([cost(tenant(), 2)]).await;
    assert!(is_over(&refused));
    assert_eq!(
        header(&refused, "ratelimit").expect("a field"),
        "\"burst\";r=1;t=3200, \"month\";r=4;t=1328000"
    );
    assert_eq!(header(&refused, "retry-after"), Some("3200"));
    // Both are over: the longer wait counts.
    let refused = client.ask([cost(tenant(), 5)]).await;
    assert_eq!(limit_of(&refused).name, "month");
    assert_eq!(header(&refused, "retry-after"), Some("1328000"));
    assert!(client.passes(tenant()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn periods_that_the_protocol_has_no_unit_for_are_reported_without_one() {
    let client = served(rules("  - { key: user, limits: [{ quota: 2/30s }] }")).await;
    let response = client.ask([descriptor([("user", "a")])]).await;
    let limit = limit_of(&response);
    assert_eq!((limit.requests_per_unit, limit.unit), (2, 0));
    let policy = header(&response, "ratelimit-policy");
    assert_eq!(policy, Some("\"test/user\";q=2;w=30"));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_limits_than_can_be_charged_together_are_a_mistake_of_the_request() {
    let limits = (0..3).map(|n| format!("{{ name: n{n}, quota: 1000/h }}"));
    let limits = limits.collect::<Vec<_>>().join(", ");
    let client = served(rules(&format!("  - {{ key: user, limits: [{limits}] }}"))).await;
    let mut many = request([]);
    many.descriptors = (0..43)
        .map(|user| descriptor([("user", &*user.to_string())]))
        .collect();
    let status = client.send(many.clone()).await.expect_err("a mistake");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("129 limits"), "{status}");
    many.descriptors.pop();
    assert!(!is_over(&client.send(many).await.expect("a response")));
}

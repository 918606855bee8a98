use super::*;
use crate::{
    ConfigError, FixedWindow, SlidingWindow,
    config::text::{parse_key, parse_strategy},
    extract,
};

fn messages(registry: &Registry) -> Vec<String> {
    let mistakes = registry.mistakes().iter().cloned();
    mistakes
        .map(|mistake| ConfigError::at("", mistake).to_string())
        .collect()
}

#[test]
fn registered_code_is_found_by_its_name() {
    let registry = Registry::new()
        .key("tenant", extract::header("x-tenant"))
        .strategy("slow", SlidingWindow::buckets(3))
        .cost("pages", |_| 7)
        .tier("plan", |_| Some("pro"))
        .outcome("billed", |_| true)
        .condition("internal", |_| true)
        .quota("per-user", |_| None)
        .on_rejection("page", |_, _| {
            Response::new(http_body_util::Full::new(Bytes::new()))
        });
    assert_eq!(messages(&registry), [""; 0]);
    let parts = http::Request::get("/")
        .body(())
        .expect("a request")
        .into_parts()
        .0;
    let cost = registry.find_cost("pages").expect("a cost");
    assert_eq!(cost(&parts), 7);
    let tier = registry.find_tier("plan").expect("a tier");
    assert_eq!(tier(&parts).as_deref(), Some("pro"));
    for outcome in ["billed", "success"] {
        // The same name is the same function, so that a reload sees no other.
        let found = [(); 2].map(|()| registry.find_outcome(outcome).expect(outcome));
        assert_eq!(found[0], found[1]);
    }
    assert!(registry.find_condition("internal").expect("a condition")(
        &parts
    ));
    assert_eq!(
        registry.find_quota("per-user").expect("a quota")(&parts),
        None
    );
    assert!(registry.find_on_rejection("page").is_ok());
    let key = parse_key("tenant | peer", &registry).expect("a key");
    assert_eq!(key.config_text().as_deref(), Some("tenant | peer"));
    let strategy = parse_strategy("slow", &registry).expect("a strategy");
    assert_eq!(strategy.config_text().as_deref(), Some("slow"));
}

#[test]
fn a_name_that_can_not_be_used_is_a_mistake() {
    let registry = Registry::new()
        .key("peer", extract::host())
        .key("header", extract::host())
        .key("x|y", extract::host())
        .strategy("ban", FixedWindow)
        .cost("cost", |_| 1)
        .cost("cost", |_| 2)
        .outcome("success", |_| true);
    let built_in = "registered under a built-in's name; expected a name that has no meaning in documents already";
    assert_eq!(
        messages(&registry),
        [
            format!("the key \"peer\", {built_in}"),
            format!("the key \"header\", {built_in}"),
            "the key \"x|y\", registered under a malformed name; expected 1 to 64 letters, digits, -, _ and ., of which the \
             first is a letter"
                .to_owned(),
            format!("the strategy \"ban\", {built_in}"),
            "the cost \"cost\", registered twice; expected each name once".to_owned(),
            format!("the outcome \"success\", {built_in}"),
        ]
    );
}

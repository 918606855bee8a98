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

fn text<F: ?Sized>(found: Result<Slot<F>, InvalidValue>) -> String {
    found.expect("code").text().expect("its name").to_owned()
}

#[test]
fn registered_code_is_found_by_its_name_and_written_by_it() {
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
    assert_eq!(
        (cost.code().map(|cost| cost(&parts)), cost.text()),
        (Some(7), Some("pages"))
    );
    let tier = registry.find_tier("plan").expect("a tier");
    let found = tier.code().and_then(|tier| tier(&parts));
    assert_eq!((found.as_deref(), tier.text()), (Some("pro"), Some("plan")));
    assert_eq!(text(registry.find_outcome("billed")), "billed");
    assert_eq!(text(registry.find_outcome("success")), "success");
    assert_eq!(text(registry.find_condition("internal")), "internal");
    assert_eq!(text(registry.find_quota("per-user")), "per-user");
    assert_eq!(text(registry.find_on_rejection("page")), "page");
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

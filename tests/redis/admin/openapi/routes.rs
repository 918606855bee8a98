//! The routes, as the document describes them.

use schemars::{JsonSchema, SchemaGenerator};
use tollgate::admin::api;
use tollgate_tests::prelude::*;

/// What the document says of a route.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: Vec<(&'static str, &'static str)>,
    pub(super) body: Option<Value>,
    pub(super) answer: Value,
    /// The statuses of problems.
    pub(super) problems: Vec<u16>,
    pub(super) is_open: bool,
    pub(super) content_type: &'static str,
}

/// The method and path of each route; the types of its body and answer; the statuses of its problems, after `open` if it needs no
/// token; what it is for. The parameters of its query follow.
const ROUTES: &str = "\
get / | html | open | The dashboard, a page without data in it
get /health | Health | open 401 | Whether the store is healthy; with a token, its issues too
get /policies | Policies | 400 401 | The policies in force
get /config | ConfigInForce | 400 401 | The configuration document in force, as it was loaded, and the state of its file
get /shadows | Shadows | 400 401 | How shadow policies would have changed the decisions of this process
get /activity | ActivityReport | 400 401 404 | What the limiters of this process have done since its start
get /events | events | 400 401 404 503 | One event `activity` a second, whose data is the answer of /activity
get /top | TopReport | 400 401 404 | The keys with the most rejections in this process
    policy | The policy's name; all policies if it is left out
    n | The number of keys for each policy, 10 if it is left out
get /blocks | BlocksInfo | 400 401 404 503 | The keys that are blocked now, in any process
    policy | The ban's name; all bans if it is left out
    limit | The most keys in the answer, 100 if it is left out
get /openapi.json | object | 401 | This document
post /peek | PeekRequest -> Status | key | The status of a key under a policy; charges nothing
post /explain | ExplainRequest -> ExplanationInfo | key | Which policies apply to a request, and how it would be decided; charges nothing
post /reset | ResetRequest -> Reset | change | Removes the usage of a key, and ends its bans, under one policy or all
post /credit | CreditRequest -> Credited | change | Adds units to what a key has left under a policy
post /block | BlockRequest -> Blocked | change | Blocks a key in all processes, under one ban or all
post /unblock | UnblockRequest -> Unblocked | change | Ends the bans of a key in all processes, under one ban or all
get /overrides | OverridesInfo | 400 401 404 503 | The keys with a limit of their own, set by operators
    policy | The policy's name; all policies if it is left out
    limit | The most overrides in the answer, 100 if it is left out
put /overrides | OverrideRequest -> OverrideChanged | change | Sets the limit of a key under a policy in all processes, or exempts it, until an instant or for good
delete /overrides | OverrideKey -> OverrideChanged | change | Removes the override of a key under a policy in all processes
post /callers | CallersRequest -> Callers | key | The callers whose charges under a key count now, for strategies that record them
";

/// The routes, and the schemas of their bodies and answers.
pub(super) fn routes(of: &mut SchemaGenerator) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for line in ROUTES.lines() {
        match line.split(" | ").collect::<Vec<_>>()[..] {
            [name, about] => {
                let route = routes.last_mut().expect("a route");
                route.parameters.push((name.trim_start(), about));
            }
            [route, types, problems, summary] => {
                let (method, path) = route.split_once(' ').expect(line);
                let (body, answer) = match types.split_once(" -> ") {
                    Some((body, answer)) => (Some(schema_named(body, of)), answer),
                    None => (None, types),
                };
                let (content_type, answer) = match answer {
                    "html" => ("text/html", json!({"type": "string"})),
                    "events" => ("text/event-stream", json!({"type": "string"})),
                    "object" => ("application/json", json!({"type": "object"})),
                    name => ("application/json", schema_named(name, of)),
                };
                let statuses = match problems {
                    "key" => "400 401 404 413 415 503",
                    // Code of the application that panics is a problem, too, since the change may have been made.
                    "change" => "400 401 404 413 415 500 503",
                    statuses => statuses,
                };
                let statuses = statuses.split(' ');
                let statuses = statuses.filter_map(|status| status.parse().ok());
                routes.push(Route {
                    method,
                    path,
                    summary,
                    parameters: Vec::new(),
                    body,
                    answer,
                    problems: statuses.collect(),
                    is_open: problems.starts_with("open"),
                    content_type,
                });
            }
            _ => panic!("{line}"),
        }
    }
    routes
}

/// The schema of a type, by reference.
pub(super) fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

fn schema_named(name: &str, of: &mut SchemaGenerator) -> Value {
    macro_rules! of_any {
        ($($known:ident)*) => {
            match name {
                $(stringify!($known) => schema::<api::$known>(of),)*
                _ => panic!("no type {name}"),
            }
        };
    }
    of_any!(
        ActivityReport BlockRequest Blocked BlocksInfo Callers CallersRequest
        ConfigInForce CreditRequest Credited ExplainRequest ExplanationInfo
        Health OverrideChanged OverrideKey OverrideRequest OverridesInfo
        PeekRequest Policies Reset ResetRequest Shadows
        Status TopReport UnblockRequest Unblocked
    )
}

//! The routes, as the document describes them.

use schemars::{JsonSchema, SchemaGenerator};
use tollgate::admin::api;
use tollgate_tests::prelude::*;

/// What the document says of a route.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: &'static [(&'static str, &'static str)],
    pub(super) body: Option<Value>,
    pub(super) answer: Value,
    /// The statuses of problems.
    pub(super) problems: &'static [u16],
    pub(super) is_open: bool,
    pub(super) content_type: &'static str,
}

const OF_GET: &[u16] = &[400, 401];
const OF_KEY: &[u16] = &[400, 401, 404, 413, 415, 503];
/// A change in which code of the application panics is an answer, too, since it may have been made.
const OF_CHANGE: &[u16] = &[400, 401, 404, 413, 415, 500, 503];

fn get(path: &'static str, summary: &'static str, answer: Value) -> Route {
    Route {
        method: "get",
        path,
        summary,
        parameters: &[],
        body: None,
        answer,
        problems: OF_GET,
        is_open: false,
        content_type: "application/json",
    }
}

fn post(path: &'static str, summary: &'static str, body: Value, answer: Value) -> Route {
    Route {
        method: "post",
        body: Some(body),
        problems: OF_KEY,
        ..get(path, summary, answer)
    }
}

fn change(path: &'static str, summary: &'static str, body: Value, answer: Value) -> Route {
    Route {
        problems: OF_CHANGE,
        ..post(path, summary, body, answer)
    }
}

/// The schema of a type, by reference.
pub(super) fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// The routes, and the schemas of their bodies and answers.
pub(super) fn routes(of: &mut SchemaGenerator) -> Vec<Route> {
    vec![
        Route {
            problems: &[],
            is_open: true,
            content_type: "text/html",
            ..get(
                "/",
                "The dashboard, a page without data in it",
                json!({"type": "string"}),
            )
        },
        Route {
            problems: &[401],
            is_open: true,
            ..get(
                "/health",
                "Whether the store is healthy; with a token, its issues too",
                schema::<api::Health>(of),
            )
        },
        get(
            "/policies",
            "The policies in force",
            schema::<api::Policies>(of),
        ),
        get(
            "/config",
            "The configuration in force, as a document in TOML without secrets",
            schema::<api::ConfigInForce>(of),
        ),
        get(
            "/shadows",
            "How shadow policies would have changed the decisions of this process",
            schema::<api::Shadows>(of),
        ),
        Route {
            problems: &[400, 401, 404],
            ..get(
                "/activity",
                "What the limiters of this process have done since its start",
                schema::<api::ActivityReport>(of),
            )
        },
        Route {
            problems: &[400, 401, 404, 503],
            content_type: "text/event-stream",
            ..get(
                "/events",
                "One event `activity` a second, whose data is the answer of /activity",
                json!({"type": "string"}),
            )
        },
        Route {
            problems: &[400, 401, 404],
            parameters: &[
                (
                    "policy",
                    "The policy's name; all policies if it is left out",
                ),
                (
                    "n",
                    "The number of keys for each policy, 10 if it is left out",
                ),
            ],
            ..get(
                "/top",
                "The keys with the most rejections in this process",
                schema::<api::TopReport>(of),
            )
        },
        Route {
            problems: &[400, 401, 404, 503],
            parameters: &[
                ("policy", "The ban's name; all bans if it is left out"),
                (
                    "limit",
                    "The most keys in the answer, 100 if it is left out",
                ),
            ],
            ..get(
                "/blocks",
                "The keys that are blocked now, in any process",
                schema::<api::BlocksInfo>(of),
            )
        },
        Route {
            problems: &[401],
            ..get("/openapi.json", "This document", json!({"type": "object"}))
        },
        post(
            "/peek",
            "The status of a key under a policy; charges nothing",
            schema::<api::PeekRequest>(of),
            schema::<api::Status>(of),
        ),
        Route {
            problems: &[400, 401, 404, 413, 415, 503],
            ..post(
                "/explain",
                "Which policies apply to a request, and how it would be decided; charges nothing",
                schema::<api::ExplainRequest>(of),
                schema::<api::ExplanationInfo>(of),
            )
        },
        change(
            "/reset",
            "Removes the usage of a key, and ends its bans, under one policy or all",
            schema::<api::ResetRequest>(of),
            schema::<api::Reset>(of),
        ),
        change(
            "/credit",
            "Adds units to what a key has left under a policy",
            schema::<api::CreditRequest>(of),
            schema::<api::Credited>(of),
        ),
        change(
            "/block",
            "Blocks a key in all processes, under one ban or all",
            schema::<api::BlockRequest>(of),
            schema::<api::Blocked>(of),
        ),
        change(
            "/unblock",
            "Ends the bans of a key in all processes, under one ban or all",
            schema::<api::UnblockRequest>(of),
            schema::<api::Unblocked>(of),
        ),
        Route {
            problems: &[400, 401, 404],
            parameters: &[
                (
                    "policy",
                    "The policy's name; all policies if it is left out",
                ),
                (
                    "limit",
                    "The most overrides in the answer, 100 if it is left out",
                ),
            ],
            ..get(
                "/overrides",
                "The keys with a limit of their own, set by operators",
                schema::<api::OverridesInfo>(of),
            )
        },
        Route {
            method: "put",
            ..change(
                "/overrides",
                "Sets the limit of a key under a policy in all processes, or exempts it, until an instant or for good",
                schema::<api::OverrideRequest>(of),
                schema::<api::OverrideChanged>(of),
            )
        },
        Route {
            method: "delete",
            ..change(
                "/overrides",
                "Removes the override of a key under a policy in all processes",
                schema::<api::OverrideKey>(of),
                schema::<api::OverrideChanged>(of),
            )
        },
        Route {
            problems: &[400, 401, 413, 415, 503],
            ..change(
                "/overrides/restore",
                "Writes the overrides back that the store has lost and this process knows",
                schema::<api::RestoreRequest>(of),
                schema::<api::Restored>(of),
            )
        },
        post(
            "/callers",
            "The callers whose charges under a key count now, for strategies that record them",
            schema::<api::CallersRequest>(of),
            schema::<api::Callers>(of),
        ),
    ]
}

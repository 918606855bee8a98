//! How a request would be decided.

use std::{net::IpAddr, sync::Arc};

use axum::extract::State;
use http::{HeaderName, HeaderValue, Method, Request, Uri, request::Parts};

use super::status::{blocked_until, limit, millis, remaining};
use crate::{
    admin::{
        api::{ExplainRequest, ExplainedPolicyInfo, ExplanationInfo},
        http::{
            input::Body,
            json::Json,
            problem::{Answer, Failure},
        },
        state::AdminState,
    },
    extract::PeerAddr,
    limiter::ExplainedPolicy,
};

/// `POST /explain`.
pub(in crate::admin) async fn explain(
    State(state): State<Arc<AdminState>>,
    Body(request): Body<ExplainRequest>,
) -> Answer<ExplanationInfo> {
    let parts = parts(request)?;
    let explanation = state.limiter().explain(&parts).await?;
    let reason = explanation.list().map(ToString::to_string);
    let reason = reason.or_else(|| explanation.exemption().map(ToString::to_string));
    Ok(Json(ExplanationInfo {
        outcome: explanation.outcome().as_str().to_owned(),
        reason,
        retry_after_ms: explanation.retry_after().duration().map(millis),
        policies: explanation.policies().map(policy).collect(),
    }))
}

fn policy(policy: ExplainedPolicy<'_>) -> ExplainedPolicyInfo {
    let status = policy.status();
    let status = status.as_ref();
    ExplainedPolicyInfo {
        policy: policy.name().to_owned(),
        applies: policy.applies(),
        reason: policy.not_applied().map(ToString::to_string),
        key: status.map(|status| status.key_text()),
        cost: status.map(|status| status.cost()),
        limit: status.and_then(limit),
        remaining: status.and_then(remaining),
        blocked_until: status.and_then(blocked_until),
        retry_after_ms: status.and_then(|status| status.retry_after().duration().map(millis)),
        would_admit: policy.would_admit(),
        shadow: policy.is_shadow(),
    }
}

/// The head of the request. Values are left out of problems, since they may be credentials.
fn parts(request: ExplainRequest) -> Result<Parts, Failure> {
    let method: Method = parse(&request.method, "method: a method such as GET is expected")?;
    let uri: Uri = parse(
        &request.uri,
        "uri: a path such as /orders?id=7 or a URL is expected",
    )?;
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.uri) = (method, uri);
    for (name, value) in &request.headers {
        let name: HeaderName = parse(name, "headers: pairs of a name and a value are expected")?;
        let value: HeaderValue = parse(value, "headers: a value has invalid characters")?;
        parts.headers.append(name, value);
    }
    if let Some(peer) = &request.peer {
        let peer: IpAddr = parse(peer, "peer: an address such as 192.0.2.1 is expected")?;
        parts.extensions.insert(PeerAddr((peer, 0).into()));
    }
    Ok(parts)
}

fn parse<T: std::str::FromStr>(text: &str, expected: &'static str) -> Result<T, Failure> {
    text.parse().map_err(|_| Failure::bad_request(expected))
}

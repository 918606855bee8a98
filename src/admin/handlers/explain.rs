//! How a request would be decided.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::State;
use http::{HeaderName, HeaderValue, Method, Request, Uri, request::Parts};

use super::{blocked_until, limit, millis, remaining};
use crate::{
    admin::{
        api::{ExplainRequest, ExplainedPolicyInfo, ExplanationInfo},
        http::{Answer, Body, Failure, Json},
        key_text,
        state::SharedState,
    },
    extract::PeerAddr,
    key::Key,
    limiter::{
        Keys, Limiter,
        explain::{ExplainedPolicy, Explanation, NotApplied},
    },
    log::without_events,
    policy::Policy,
};

/// An address of a peer, to see what depends on it.
const EXAMPLE_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 0);

/// What is said of a request without a peer address, if a policy counts by it.
const ADD_PEER: &str = "the request as given has no peer address, by which policies count it: give one as `peer` \
     (`--peer` of the command line), such as 192.0.2.1";

/// `POST /explain`.
pub(crate) async fn explain(
    State(state): SharedState,
    Body(request): Body<ExplainRequest>,
) -> Answer<ExplanationInfo> {
    let parts = parts(&request)?;
    let keys = keys(state.limiter(), &request)?;
    let explanation = state.limiter().explain_with_keys(&parts, keys).await?;
    let in_force = state.limiter().policies();
    let mut counts_by_peer = false;
    let policies = explanation.policies().map(|explained| {
        let mut in_force = in_force.iter();
        let policy = in_force.find(|policy| policy.name() == explained.name());
        counts_by_peer |= looks_for_key(&explained)
            && policy.is_some_and(|policy| {
                !request.keys.contains_key(policy.name()) && depends_on_peer(policy, &parts)
            });
        info(explained, policy, &parts)
    });
    let policies = policies.collect();
    let lacks_peer = request.peer.is_none() && counts_by_peer;
    let hints = [
        lacks_peer.then(|| ADD_PEER.to_owned()),
        by_hand_hint(&explanation),
    ];
    let hints: Vec<String> = hints.into_iter().flatten().collect();
    let reason = explanation.list().map(ToString::to_string);
    let reason = reason.or_else(|| explanation.exemption().map(ToString::to_string));
    Ok(Json(ExplanationInfo {
        outcome: explanation.outcome().as_str().to_owned(),
        reason,
        retry_after_ms: explanation.retry_after().duration().map(millis),
        hint: (!hints.is_empty()).then(|| hints.join("; ")),
        policies,
    }))
}

/// What is said of a request that is admitted, but for policies that are not evaluated here.
fn by_hand_hint(explanation: &Explanation) -> Option<String> {
    let by_hand = |policy: &ExplainedPolicy<'_>| policy.not_applied() == Some(&NotApplied::ByHand);
    let names = explanation.policies().filter(by_hand);
    let names: Vec<&str> = names.map(|policy| policy.name()).collect();
    (explanation.would_admit() && !names.is_empty()).then(|| {
        format!(
            "policies by hand are not evaluated, and a call of the application may still reject the request: {}; \
             give their keys as `keys` (`--key POLICY=KEY` of the command line)",
            names.join(", ")
        )
    })
}

/// Whether the policy looks for the request's key, found or not.
fn looks_for_key(policy: &ExplainedPolicy<'_>) -> bool {
    policy.applies() || matches!(policy.not_applied(), Some(NotApplied::NoKey { .. }))
}

/// Whether the request has another key with a peer address.
fn depends_on_peer(policy: &Policy, parts: &Parts) -> bool {
    let mut with_peer = parts.clone();
    with_peer.extensions.insert(PeerAddr(EXAMPLE_PEER));
    let key = |parts| without_events(|| policy.extractor().extract(parts));
    key(parts) != key(&with_peer)
}

/// How a policy concerns a request.
fn info(
    policy: ExplainedPolicy<'_>,
    in_force: Option<&Policy>,
    parts: &Parts,
) -> ExplainedPolicyInfo {
    let status = policy.status();
    let status = status.as_ref();
    let reason = policy.not_applied().map(ToString::to_string);
    let overridden = status.and_then(|status| status.applied_override());
    let overridden = overridden.map(|setting| format!("override: {setting}"));
    let is_shared = status.is_some_and(|status| status.key() == Key::missing());
    let shared = |policy: &Policy| {
        let missing = policy.missing_key_name(parts);
        format!("counted with all requests without {missing}")
    };
    let shared = in_force.filter(|_| is_shared).map(shared);
    ExplainedPolicyInfo {
        policy: policy.name().to_owned(),
        applies: policy.applies(),
        reason: reason.or(overridden).or(shared),
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

/// The keys that are given for policies.
fn keys(limiter: &Limiter, request: &ExplainRequest) -> Result<Keys, Failure> {
    let keys = request.keys.iter().map(|(policy, text)| {
        let key = key_text::require(&limiter.policy(policy)?.policy()?, text)?;
        Ok((policy, key))
    });
    keys.collect()
}

/// The head of the request. Values are left out of problems, since they may be credentials.
fn parts(request: &ExplainRequest) -> Result<Parts, Failure> {
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

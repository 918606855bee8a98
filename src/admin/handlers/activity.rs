//! What limiters do in this process.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Interval, MissedTickBehavior, interval},
};

use crate::{
    admin::{
        activity::Activity,
        api::{ActivityReport, TopReport},
        http::{Answer, Failure, Json, Query, with_type},
        state::{AdminState, SharedState},
    },
    runtime::runtime_with_timers,
};

/// The time between two events.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// The keys of each policy that are answered unless asked for otherwise.
const DEFAULT_TOP: usize = 10;

/// `GET /activity`.
pub(crate) async fn activity(State(state): SharedState, query: Query) -> Answer<ActivityReport> {
    let [] = query.only([])?;
    Ok(Json(observed(&state)?.report(state.limiter(), &state.host)))
}

/// `GET /top`.
pub(crate) async fn top(State(state): SharedState, query: Query) -> Answer<TopReport> {
    let [policy, n] = query.only(["policy", "n"])?;
    if let Some(policy) = &policy {
        state.limiter().policy(policy)?;
    }
    let n = n.map_or(Ok(DEFAULT_TOP), |n| n.parse());
    let n = n.map_err(|_| Failure::bad_request("n: a number of keys is expected, such as 10"))?;
    Ok(Json(observed(&state)?.top(
        state.limiter(),
        policy.as_deref(),
        n,
    )))
}

/// `GET /events`: server-sent events, one a second.
pub(crate) async fn events(State(state): SharedState, query: Query) -> Result<Response, Response> {
    let checked = query.only([]).and_then(|[]| observed(&state).cloned());
    let activity = checked.map_err(IntoResponse::into_response)?;
    if runtime_with_timers().is_none() {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Err(
            Failure::new(status, "events need a tokio runtime with timers").into_response(),
        );
    }
    let Ok(permit) = state.event_streams.clone().try_acquire_owned() else {
        return Err(Failure::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "this process sends events to as many clients as it can: close a dashboard, or read /activity",
        )
        .into_response());
    };
    let mut interval = interval(EVENT_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let events = Events {
        state,
        activity,
        interval,
        _permit: permit,
    };
    Ok(with_type(
        StatusCode::OK,
        "text/event-stream",
        Body::new(events),
    ))
}

fn observed(state: &AdminState) -> Result<&Arc<Activity>, Failure> {
    state.activity.as_ref().ok_or_else(|| {
        Failure::new(
            StatusCode::NOT_FOUND,
            "the application counts no activity: add an Activity by LimiterBuilder::observe and by Admin::activity",
        )
    })
}

/// A body of server-sent events, which ends with its client.
struct Events {
    state: Arc<AdminState>,
    activity: Arc<Activity>,
    interval: Interval,
    /// Of [`AdminState::event_streams`].
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = serde_json::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        ready!(this.interval.poll_tick(cx));
        let report = this.activity.report(this.state.limiter(), &this.state.host);
        Poll::Ready(Some(serde_json::to_string(&report).map(|json| {
            // JSON has no line breaks, which would end the data.
            Frame::data(format!("event: activity\ndata: {json}\n\n").into())
        })))
    }
}

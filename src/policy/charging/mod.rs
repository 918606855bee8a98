//! When a policy charges requests.

use std::{
    any::{Any, TypeId},
    sync::Arc,
};

use super::Policy;
use crate::{
    charge::{ChargeTime, OutcomeFn},
    outcome::{self, Outcome},
    setting::{Code, CodeId, SettingValue},
};

mod lease;

/// When to charge.
///
/// | | on arrival | at the end | concurrent requests |
/// |---|---|---|---|
/// | default | charged | | never exceed the limit |
/// | [`refund_unless`](Policy::refund_unless) | charged | refunded, unless the outcome is to be charged | never exceed the limit |
/// | [`charge_after`](Policy::charge_after) | checked | charged, if the outcome is to be charged | may exceed the limit by their number, at most by one more capacity |
///
/// ```
/// use tollgate::{Policy, Quota, outcome};
///
/// // Five successes a minute, and never more than that in flight.
/// let ocr = Policy::new("ocr", Quota::requests(5).per_minute()).refund_unless(outcome::success);
/// // Only failures count.
/// let login = Policy::new("login", Quota::requests(20).per_minute()).charge_after(outcome::failure);
/// ```
///
/// A layer knows the response, and charges or refunds by it. A call by hand ([`Limiter::admit`](crate::Limiter::admit),
/// [`check`](crate::Limiter::check), [`wait`](crate::Limiter::wait)) has no response: `charge_after` then checks and charges nothing,
/// and `refund_unless` charges and refunds nothing. The caller does that by the admission:
///
/// ```
/// use tollgate::{Limiter, Policy, Quota, outcome};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("login", Quota::requests(5).per_minute()).charge_after(outcome::failure))
///     .policy(Policy::new("ocr", Quota::requests(5).per_minute()).refund_unless(outcome::success))
///     .build()?;
/// let admission = limiter.admit("alice").await?;
/// assert_eq!((admission.remaining("login"), admission.remaining("ocr")), (Some(5), Some(4)));
/// // The password was wrong: charge the failure, and refund what has not succeeded.
/// admission.policy("login")?.charge(1).await?;
/// admission.policy("ocr")?.refund(1).await?;
/// assert_eq!((admission.remaining("login"), admission.remaining("ocr")), (Some(4), Some(5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Policy {
    /// Charges a request when it has ended, if `charges` returns true for its outcome; on arrival it is only checked. So
    /// concurrent requests may exceed the limit together; where that costs money, use [`refund_unless`](Policy::refund_unless).
    /// The last call of the two methods counts. By default a request is charged on arrival, whatever its outcome.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use axum::body::Body;
    /// use http::{Request, Response};
    /// use tollgate::{Policy, Quota, RateLimitLayer, extract, outcome};
    /// use tower::{ServiceBuilder, ServiceExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Only failed logins count.
    /// let login = Policy::new("login", Quota::requests(1).per_minute()).charge_after(outcome::failure);
    /// let layer = RateLimitLayer::builder().policy(login.key(extract::global())).build()?;
    /// let service = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<Body>| {
    ///     let status = if request.uri().path() == "/right-password" { 200 } else { 401 };
    ///     let response = Response::builder().status(status).body(Body::empty());
    ///     Ok::<_, Infallible>(response.unwrap())
    /// });
    /// let mut statuses = Vec::new();
    /// for path in ["/right-password", "/right-password", "/wrong-password", "/right-password"] {
    ///     let response = service.clone().oneshot(Request::post(path).body(Body::empty())?).await?;
    ///     statuses.push(response.status().as_u16());
    /// }
    /// assert_eq!(statuses, [200, 200, 401, 429]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A request that is [dropped](crate::outcome::RequestEnd::Dropped) before it has a response is charged, since a client
    /// could otherwise evade a limit on failures by disconnecting: see [`charge_dropped`](Policy::charge_dropped).
    ///
    /// A call by hand, such as [`Limiter::check`](crate::Limiter::check), has no response and charges nothing: charge a failure
    /// by [`PolicyAdmission::charge`](crate::PolicyAdmission::charge).
    #[must_use]
    pub fn charge_after<F>(self, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        self.charge_by(ChargeTime::Response, charges)
    }

    /// Charges a request on arrival, and refunds it when it has ended, unless `charges` returns true for its outcome. The last
    /// call of this method and [`charge_after`](Policy::charge_after) counts.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use axum::body::Body;
    /// use http::{Request, Response};
    /// use tollgate::{Policy, Quota, RateLimitLayer, extract, outcome};
    /// use tower::{ServiceBuilder, ServiceExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // One success a minute, and never more than that in flight.
    /// let ocr = Policy::new("ocr", Quota::requests(1).per_minute()).refund_unless(outcome::success);
    /// let layer = RateLimitLayer::builder().policy(ocr.key(extract::global())).build()?;
    /// let service = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<Body>| {
    ///     let status = if request.uri().path() == "/scan.png" { 200 } else { 404 };
    ///     let response = Response::builder().status(status).body(Body::empty());
    ///     Ok::<_, Infallible>(response.unwrap())
    /// });
    /// let mut statuses = Vec::new();
    /// for path in ["/missing.png", "/scan.png", "/scan.png"] {
    ///     let response = service.clone().oneshot(Request::get(path).body(Body::empty())?).await?;
    ///     statuses.push(response.status().as_u16());
    /// }
    /// assert_eq!(statuses, [404, 200, 429]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Requests in flight hold units that may be refunded soon. While they hold all units, other requests are rejected, with a
    /// `Retry-After` that assumes no refund. To count failures only, use [`charge_after`](Policy::charge_after), which rejects
    /// no request because of others that will succeed.
    ///
    /// A refund returns only what time has not already given back, and only to the window that was charged. Under
    /// [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) the units that would have refilled while the request ran
    /// stay charged if other requests were charged at the same time; for slow work, [`FixedWindow`](crate::FixedWindow) refunds
    /// the whole charge. If the process dies during the request, the charge stays until its window ends or it has refilled.
    ///
    /// A call by hand, such as [`Limiter::check`](crate::Limiter::check), has no response and refunds nothing: refund it by
    /// [`PolicyAdmission::refund`](crate::PolicyAdmission::refund).
    #[must_use]
    pub fn refund_unless<F>(self, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        self.charge_by(ChargeTime::Reserve, charges)
    }

    /// Sets whether [`charge_after`](Policy::charge_after) and [`refund_unless`](Policy::refund_unless) charge a request that
    /// was [dropped](crate::outcome::RequestEnd::Dropped) before it had a response. Default: true.
    #[must_use]
    pub fn charge_dropped(mut self, charges: bool) -> Self {
        self.charge.dropped = charges;
        self
    }

    /// Sets whether a policy charges the requests that it rejects, down to a debt of at most one capacity, so that a client
    /// that keeps retrying has to wait longer. Default: false.
    ///
    /// Strategies that store each charge ([`SlidingLog`](crate::SlidingLog), [`ListWindow`](crate::ListWindow)) don't go into debt.
    /// Together with [`charge_after`](Policy::charge_after), or for an in-flight limit, it is a
    /// [`ConfigError`](crate::ConfigError).
    #[must_use]
    pub fn charge_rejected(mut self, charges: bool) -> Self {
        self.charge.rejected = charges;
        self
    }

    fn charge_by<F>(self, when: ChargeTime, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        let built_in = outcome_name::<F>();
        let charges = Arc::new(charges);
        let id = CodeId::of(&charges);
        self.charge_outcomes(
            when,
            match built_in {
                Some(name) => Code::described(charges, SettingValue::text(name)),
                None => Code::new(charges, id),
            },
        )
    }

    /// Charges at `when` the outcomes for which `charges` returns true.
    pub(crate) fn charge_outcomes(mut self, when: ChargeTime, charges: Code<OutcomeFn>) -> Self {
        self.charge.set(when, charges);
        self
    }
}

/// The name of a function of [`outcome`], by its type.
fn outcome_name<F: 'static>() -> Option<&'static str> {
    let names: [(TypeId, _); 4] = [
        (outcome::success.type_id(), "success"),
        (outcome::failure.type_id(), "failure"),
        (outcome::client_error.type_id(), "client_error"),
        (outcome::server_error.type_id(), "server_error"),
    ];
    let name = names.into_iter().find(|(id, _)| *id == TypeId::of::<F>());
    name.map(|(_, name)| name)
}

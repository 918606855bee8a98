//! The status of a request's caller, for an endpoint that reports it, and that of keys alone.

use std::sync::Arc;

use http::request::Parts;

use crate::{
    error::CallError,
    extract::Extracted,
    key::Key,
    limiter::{
        Limiter, check::Check, core::request_head::RequestHead, overrides::CheckOverrides,
        status::LimitStatus,
    },
    store::Op,
};
#[cfg(feature = "admin")]
use crate::{limiter::Keys, quota::Quota};

impl Limiter {
    /// Reports the status of a request's caller without charging it: under each policy, that of the key that its extractor
    /// finds in the request, as in a layer. For an endpoint such as `/usage` that is behind no layer of this limiter.
    ///
    /// The status has all policies, also those whose [conditions](crate::Policy::skip_path) exempt this request, except
    /// policies [by hand](crate::Policy::by_hand) and exempting policies whose key the request lacks. Access lists are
    /// evaluated as for any request, and a missing key is the status's [kind](LimitStatus::kind). The cost is that of this
    /// request under each policy, unless set.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Json, extract::{Request, State}};
    /// use tollgate::{CallError, Limiter};
    ///
    /// /// `{"tokens": 995, "requests": 9}`
    /// async fn usage(
    ///     State(limiter): State<Limiter>,
    ///     request: Request,
    /// ) -> Result<Json<std::collections::HashMap<String, u64>>, CallError> {
    ///     let (parts, _) = request.into_parts();
    ///     let status = limiter.peek_request(&parts).await?;
    ///     let left = status.policies().map(|policy| (policy.policy().to_owned(), policy.remaining()));
    ///     Ok(Json(left.collect()))
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says.
    pub fn peek_request(&self, parts: &Parts) -> Check<Result<LimitStatus, CallError>> {
        let mut keys: Vec<(String, Key)> = Vec::new();
        let mut missing = None;
        let limiter = self.local_ref();
        let head = RequestHead::new(parts);
        // A list rejects an ambiguous key of its policy also where the policy does not apply.
        let is_listed = |name: &str| {
            let mut lists = limiter.lists.iter();
            lists.any(|lists| lists.policies_of_keys().any(|policy| policy == name))
        };
        for bound in &limiter.policies {
            let policy = &bound.policy;
            let found = bound.peek_key(&head);
            if let Extracted::Key(key) = found {
                keys.push((policy.name().to_owned(), key));
            } else if bound.rejects_without_key(found)
                && !policy.is_by_hand()
                && !policy.skips(parts, &head.path)
                || found == Extracted::Ambiguous && is_listed(policy.name())
            {
                missing.get_or_insert_with(|| bound.missing_key_kind(parts));
            }
        }
        Check::new(limiter.clone(), Op::Peek, keys.into()).with(CheckOverrides {
            parts: Some(Arc::new(parts.clone())),
            any_request: true,
            missing,
            ..CheckOverrides::default()
        })
    }

    /// Reports the status of keys alone, as for an operator: access lists, conditions and costs of requests don't apply. A policy
    /// that takes its quota from requests has that of `quotas`, or else its own.
    #[cfg(feature = "admin")]
    pub(crate) fn peek_keys(
        &self,
        keys: Keys,
        mut quotas: Vec<(String, Quota)>,
    ) -> Check<Result<LimitStatus, CallError>> {
        let limiter = self.local_ref();
        let by_request = limiter
            .policies()
            .filter(|policy| policy.has_quota_of_request());
        // The first of a name counts.
        quotas.extend(by_request.map(|policy| (policy.name().to_owned(), policy.quota())));
        Check::new(limiter, Op::Peek, keys).with(CheckOverrides {
            unconditional: true,
            quotas,
            ..CheckOverrides::default()
        })
    }
}

//! Which requests a policy applies to.

use http::{Method, request::Parts};

use super::Policy;

impl Policy {
    /// Exempts requests to this path, as the client sent it and without its query, from the policy. `/static/*` matches every
    /// path below `/static/`. May be called several times.
    ///
    /// # Conditions
    ///
    /// | | the policy applies |
    /// |---|---|
    /// | `skip_path`, [`skip_method`](Policy::skip_method), [`skip_with`](Policy::skip_with) | unless one of them matches |
    /// | [`only_path`](Policy::only_path) | if one of these paths matches |
    /// | [`only_method`](Policy::only_method) | if it is one of these methods |
    /// | [`only_with`](Policy::only_with) | if all of these functions are true |
    ///
    /// All conditions that are set must hold. Paths are the original ones, also within a nested axum router, where `parts.uri`
    /// is the rest of the path: functions can read [`extract::original_path`](crate::extract::original_path).
    ///
    /// The policy applies to paths that servers read differently. So a path is never skipped that has segments `.` or `..`, a
    /// `;`, a backslash, one of these or a `/`, `%` or NUL in percent-encoding, or percent-encoding of invalid UTF-8; and
    /// `only_path("/login")` applies to `/%6Cogin`, `/login;a=b` and every path with `..` in it. A condition whose own path has
    /// any of these, or the parameters of a router's pattern (`/users/{id}`, `/users/:id`), is a
    /// [`ConfigError`](crate::ConfigError) when the limiter is built.
    ///
    /// `/login/`, `//login` and `/LOGIN` are other paths than `/login`, as in axum's router. Where a service takes them for the
    /// same, name them too; or, if a layer such as tower-http's `NormalizePathLayer` does, put it around the limiter.
    ///
    /// A [`check`](crate::Limiter::check) by hand takes the request from [`Check::parts`](crate::limiter::Check::parts). Without it, a
    /// policy with conditions has to be named with its key, or the check is rejected.
    ///
    /// ```
    /// use http::{Method, Request};
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// /// Inserted by an authentication layer around this one. A header could be sent by anyone.
    /// #[derive(Clone)]
    /// struct Internal;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(
    ///         Policy::new("login", Quota::requests(5).per_minute())
    ///             .only_path("/login")
    ///             .only_method(Method::POST),
    ///     )
    ///     .policy(
    ///         Policy::new("burst", Quota::requests(10).per_second())
    ///             .skip_path("/health")
    ///             .skip_path("/static/*")
    ///             .skip_with(|parts| parts.extensions.get::<Internal>().is_some()),
    ///     )
    ///     .build()?;
    /// let policies_of = async |method: Method, path: &str| {
    ///     let request = Request::builder().method(method).uri(path).body(()).unwrap();
    ///     let decision = limiter.check("alice").parts(&request.into_parts().0).await;
    ///     decision.policies().map(|policy| policy.policy().to_owned()).collect::<Vec<_>>()
    /// };
    /// assert_eq!(policies_of(Method::POST, "/login").await, ["login", "burst"]);
    /// assert_eq!(policies_of(Method::GET, "/login").await, ["burst"]);
    /// assert_eq!(policies_of(Method::GET, "/static/logo.png").await, [""; 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.settings.skip.add_path(path.as_ref());
        self
    }

    /// Exempts requests with this method from the policy. May be called several times: see [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn skip_method(mut self, method: Method) -> Self {
        self.settings.skip.add_method(method);
        self
    }

    /// Exempts requests for whose head `condition` returns true from the policy. May be called several times: see
    /// [`skip_path`](Policy::skip_path). It runs on the request path and must not block. Within a nested axum router the path
    /// is [`extract::original_path`](crate::extract::original_path), not that of `parts.uri`.
    #[must_use]
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.settings.skip.add(condition);
        self
    }

    /// Restricts the policy to requests to this path; `/admin/*` matches every path below `/admin/`, and `/*` every request, also
    /// `OPTIONS *`. Several calls add paths: see [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn only_path(mut self, path: impl AsRef<str>) -> Self {
        self.settings.only.add_path(path.as_ref());
        self
    }

    /// Restricts the policy to requests with this method. Several calls add methods: see [`skip_path`](Policy::skip_path).
    ///
    /// `HEAD` is a method of its own, although axum's routers pass it to the handler of `GET`, which does its work for it: where
    /// `GET` is limited, name both.
    #[must_use]
    pub fn only_method(mut self, method: Method) -> Self {
        self.settings.only.add_method(method);
        self
    }

    /// Restricts the policy to requests for whose head `condition` returns true. With several calls, all conditions have to be
    /// true: see [`skip_path`](Policy::skip_path). It runs on the request path and must not block. Within a nested axum router
    /// the path is [`extract::original_path`](crate::extract::original_path), not that of `parts.uri`.
    #[must_use]
    pub fn only_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.settings.only.add(condition);
        self
    }
}

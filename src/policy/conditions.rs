//! Which requests a policy applies to.

use http::{Method, request::Parts};

use super::Policy;

impl Policy {
    /// Doesn't apply to requests to this path, as the client sent it and without its query. `/static/*` is all beneath
    /// `/static/`.
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
    /// All of the conditions that are set have to hold. Paths are the original ones, also within a nested axum router,
    /// where `parts.uri` is the rest of the path: functions read [`extract::original_path`](crate::extract::original_path).
    ///
    /// Where servers may differ in how they read a path, the policy applies. So a path is never skipped that has segments
    /// `.` or `..`, a `;`, a backslash, one of them or a `/`, `%` or NUL in percent-encoding, or percent-encoding that is no
    /// UTF-8; and `only_path("/login")` applies to `/%6Cogin`, `/login;a=b` and whatever has `..` in it. A condition's own
    /// path with any of these is a [`ConfigError`](crate::ConfigError).
    ///
    /// A [`check`](crate::Limiter::check) by hand knows of the request what [`Check::parts`](crate::Check::parts) says. Without it,
    /// a policy with conditions has to be named with its key, or the check is rejected.
    ///
    /// ```
    /// use tollgate::{Policy, Quota};
    ///
    /// let login = Policy::new("login", Quota::requests(5).per_minute())
    ///     .only_path("/login")
    ///     .only_method(http::Method::POST);
    /// let burst = Policy::new("burst", Quota::requests(10).per_second())
    ///     .skip_path("/health")
    ///     .skip_path("/static/*")
    ///     .skip_method(http::Method::HEAD)
    ///     .skip_with(|parts| parts.headers.contains_key("x-internal"));
    /// ```
    #[must_use]
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.add_path(path.as_ref());
        self
    }

    /// Doesn't apply to requests by this method. See [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn skip_method(mut self, method: Method) -> Self {
        self.skips.add_method(method);
        self
    }

    /// Doesn't apply to requests of which `condition` is true. See [`skip_path`](Policy::skip_path); within a
    /// nested axum router the path is [`extract::original_path`](crate::extract::original_path), not that of `parts.uri`.
    #[must_use]
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.add(condition);
        self
    }

    /// Applies only to requests to this path, or to another one that is given so; `/admin/*` is all beneath `/admin/`. See
    /// [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn only_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.only_path(path.as_ref());
        self
    }

    /// Applies only to requests by this method, or by another one that is given so. See
    /// [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn only_method(mut self, method: Method) -> Self {
        self.skips.only_method(method);
        self
    }

    /// Applies only to requests of which `condition` is true, and all others that are given so. See
    /// [`skip_path`](Policy::skip_path); within a nested axum router the path is [`extract::original_path`](crate::extract::original_path), not
    /// that of `parts.uri`.
    #[must_use]
    pub fn only_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.only_with(condition);
        self
    }
}

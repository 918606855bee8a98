//! What applies to a call, by its entry point.

/// What of a limiter applies to a call. Each entry point has one of the constants. `tests/memory/http/entry_points.rs` tests the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    /// Whether access lists apply.
    pub(crate) lists: bool,
    /// Whether conditions apply, of the limiter and of its policies.
    pub(crate) conditions: bool,
    /// Whether a policy takes its cost from the request, if the call sets none.
    pub(crate) request_costs: bool,
    /// Whether a rejection is followed by another attempt, so that bans don't count it yet.
    pub(crate) will_retry: bool,
    pub(crate) on_failure: OnFailure,
}

/// What follows when the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// What [`OnStoreError`](crate::OnStoreError) says.
    AsConfigured,
    /// What it says if it is set, and else another attempt, until the timeout of [`Limiter::wait`](crate::Limiter::wait).
    Wait,
    /// The call returns the error.
    Return,
}

impl Mode {
    /// A request of a layer, [`check`](crate::Limiter::check) and [`admit`](crate::Limiter::admit).
    pub(crate) const CHECK: Self = Self {
        lists: true,
        conditions: true,
        request_costs: true,
        will_retry: false,
        on_failure: OnFailure::AsConfigured,
    };

    /// An attempt of a request that waits in a queue.
    pub(crate) const WAIT: Self = Self {
        will_retry: true,
        ..Self::WAIT_ONCE
    };

    /// The only attempt of a request that may not wait in a queue.
    pub(crate) const WAIT_ONCE: Self = Self {
        on_failure: OnFailure::Wait,
        ..Self::CHECK
    };

    /// The count of a final rejection under bans, after a request has waited.
    pub(crate) const BAN_COUNT: Self = Self {
        on_failure: OnFailure::AsConfigured,
        ..Self::BY_HAND
    };

    /// [`peek`](crate::Limiter::peek), and explanations.
    pub(crate) const PEEK: Self = Self {
        on_failure: OnFailure::Return,
        ..Self::CHECK
    };

    /// A peek at a key alone, whatever the request: for credits, and for the admin API.
    pub(crate) const PEEK_KEY: Self = Self {
        request_costs: false,
        ..Self::BY_HAND
    };

    /// [`charge`](crate::Limiter::charge) and [`reset`](crate::Limiter::reset).
    pub(crate) const BY_HAND: Self = Self {
        lists: false,
        conditions: false,
        request_costs: true,
        will_retry: false,
        on_failure: OnFailure::Return,
    };
}

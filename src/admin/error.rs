/// Why an [`Admin`](super::Admin) has no router.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// There is neither a token nor the opt-out.
    #[error(
        "the admin API has no token: add one by Admin::token, or call Admin::unprotected_behind_own_middleware if a middleware of \
         the application authenticates its requests"
    )]
    Unprotected,
    /// There are tokens, and the opt-out, which ignores them.
    #[error(
        "the admin API has tokens and is also unprotected_behind_own_middleware, which would ignore them: remove one of the two"
    )]
    TokensAndOwnMiddleware,
    /// A token is too short.
    #[error(
        "the admin token {name:?} has {length} characters; at least 16 are required, as by `openssl rand -hex 16`"
    )]
    #[non_exhaustive]
    TokenTooShort {
        /// The token's name.
        name: String,
        /// The token's length, without the `=` at its end.
        length: usize,
    },
    /// A token has characters that no request can carry.
    #[error(
        "the admin token {name:?} has characters other than letters, digits and -._~+/ with = at the end; a file that it was read \
         from may end with a line break"
    )]
    #[non_exhaustive]
    InvalidToken {
        /// The token's name.
        name: String,
    },
    /// A token has no name.
    #[error("an admin token has an empty name; it is what the log says of its user")]
    EmptyName,
    /// Two tokens have the same name.
    #[error("two admin tokens are named {name:?}; the log would not tell them apart")]
    #[non_exhaustive]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Two tokens are equal.
    #[error("the admin token {name:?} is the same as another one")]
    #[non_exhaustive]
    DuplicateToken {
        /// The name of the second.
        name: String,
    },
}

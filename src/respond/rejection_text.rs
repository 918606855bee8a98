//! The text of a rejection that a document sets.

use bytes::Bytes;
use http::{HeaderValue, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use super::{body::BoxError, delay::retry_after_seconds};
#[cfg(feature = "config")]
use crate::error::InvalidValue;
use crate::limiter::Rejected;

/// The body of the response to a rejected request.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RejectionText {
    /// The text, in which `{retry_after}` is the wait in seconds and `{policy}` the name of the policy that rejected, both
    /// empty if there is none. Another word in braces is a mistake; other braces stand for themselves.
    pub body: String,
    /// The media type. Default: `text/plain; charset=utf-8`.
    pub content_type: Option<String>,
}

impl RejectionText {
    fn content_type(&self) -> &str {
        let own = self.content_type.as_deref();
        own.unwrap_or("text/plain; charset=utf-8")
    }

    /// Reports a media type that is none, and a placeholder that does not exist.
    #[cfg(feature = "config")]
    pub(crate) fn validate(&self, report: &mut dyn FnMut(InvalidValue)) {
        let content_type = self.content_type();
        let is_media_type = content_type
            .split_once('/')
            .is_some_and(|(kind, subtype)| !kind.is_empty() && !subtype.is_empty());
        if !is_media_type || HeaderValue::from_str(content_type).is_err() {
            let expected = "a media type such as \"text/html\"";
            let invalid = InvalidValue::new(format!("{content_type:?}"), expected);
            report(invalid.in_field("rejection.content_type"));
        }
        if let Some(unknown) = unknown_placeholder(&self.body) {
            let expected = "{retry_after}, {policy}, or other text in braces than one word";
            let found = format!("the placeholder {{{unknown}}}");
            report(InvalidValue::new(found, expected).in_field("rejection.body"));
        }
    }

    pub(super) fn response(&self, rejected: &Rejected) -> Response<UnsyncBoxBody<Bytes, BoxError>> {
        let body = Full::new(Bytes::from(self.text(rejected)));
        let body = body.map_err(|never| match never {}).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = rejected.status();
        if let Ok(content_type) = HeaderValue::from_str(self.content_type()) {
            response.headers_mut().insert(CONTENT_TYPE, content_type);
        }
        response
    }

    /// The body of the response to a rejected request.
    fn text(&self, rejected: &Rejected) -> String {
        let wait = rejected.retry_after().duration();
        let seconds = wait.map(|wait| retry_after_seconds(wait).to_string());
        let mut policies = rejected.decision().policies();
        let policy = policies.find(|policy| policy.rejected());
        let policy = policy.map(|policy| policy.policy().to_owned());
        self.body
            .replace("{retry_after}", &seconds.unwrap_or_default())
            .replace("{policy}", &policy.unwrap_or_default())
    }
}

/// A word in braces that is no placeholder: probably a misspelled one.
#[cfg(feature = "config")]
fn unknown_placeholder(body: &str) -> Option<&str> {
    let words = body.split('{').skip(1);
    let words = words.filter_map(|text| Some(text.split_once('}')?.0));
    let is_word = |word: &&str| {
        let mut bytes = word.bytes();
        !word.is_empty()
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    };
    let mut words = words.filter(is_word);
    words.find(|word| !["retry_after", "policy"].contains(word))
}
